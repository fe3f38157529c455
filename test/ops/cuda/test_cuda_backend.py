"""What only a GPU can show: launches, streams, graphs, sizes, and the memory they touch."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import blend, enable_jit_cache, fuse, resample_trajectories, self_test, set_device
from robocache_ros.ops.cuda import kernels
from robocache_ros.ops.resample import cuda
from robocache_ros.ops.resample.inputs import Fused, Stream

pytestmark = pytest.mark.gpu


@pytest.fixture
def sample():
    random = torch.Generator().manual_seed(0)
    times = torch.randint(1, 20, (8, 60), generator=random).cumsum(1)
    return torch.randn(8, 60, 24, generator=random), times, torch.randint(0, 700, (8, 90), generator=random)


def same(a, b):
    return torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


def test_the_gradient_is_the_cpus_and_the_same_every_time(sample):
    grads = []
    for device in ("cpu", "cuda", "cuda"):
        data, times, targets = (tensor.to(device) for tensor in sample)
        data = data.clone().requires_grad_()
        weights = torch.arange(8 * 90 * 24, device=device).view(8, 90, 24) % 7 - 3.0
        (resample_trajectories(data, times, targets) * weights).sum().backward()
        grads.append(data.grad)
    torch.testing.assert_close(grads[1].cpu(), grads[0], rtol=1e-5, atol=1e-5)  # summed in another order
    assert same(grads[1], grads[2])


def test_it_runs_on_torchs_current_stream_and_in_a_graph(sample):
    data, times, targets = (tensor.cuda() for tensor in sample)
    out = torch.empty(8, 90, 24, device="cuda")
    expected = resample_trajectories(data * 2, times, targets)  # compiles
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        doubled = data * 2
        got = resample_trajectories(doubled, times, targets)
    side.synchronize()
    assert same(got, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        resample_trajectories(data, times, targets, out=out)
    data.mul_(2)
    graph.replay()
    assert same(out, expected)


def test_launches_that_begin_early_in_a_graph_wait_for_what_others_write(sample):
    source, times, targets = (tensor.cuda() for tensor in sample)
    source = source.repeat(64, 1, 1)  # long enough that a launch which did not wait would read what is not there yet
    times, targets = times.repeat(64, 1), targets.repeat(64, 1)
    work, out = torch.zeros_like(source), torch.zeros(512, 90, 24, device="cuda")
    turned = torch.zeros_like(out)

    def chain():
        torch.mul(source, 2, out=work)
        resample_trajectories(work, times, targets, out=out)
        resample_trajectories(out, targets.sort().values, targets, method="hold", out=turned)
        torch.add(turned, 1, out=out)
        resample_trajectories(work, times, targets, out=turned)

    chain()
    expected = out.clone(), turned.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(50):
        work.fill_(7), out.zero_(), turned.zero_()
        graph.replay()
        assert same(out, expected[0])
        assert same(turned, expected[1])


def test_a_result_is_filled_again_and_one_that_does_not_fit_is_refused(sample):
    source, times, targets = (tensor.cuda() for tensor in sample)
    streams = [Stream(source, times), Stream(source, times, "hold")]
    expected = fuse(streams, targets)
    given = Fused(*(torch.zeros_like(tensor) for tensor in expected))
    for _ in range(2):
        assert fuse(streams, targets, out=given).valid is given.valid
    assert all(same(a, b) for a, b in zip(given, expected, strict=True))
    with pytest.raises(RoboCacheError, match=r"out.valid: .*uint8"):
        fuse(streams, targets, out=given._replace(valid=given.age))


def test_many_threads_launch_at_once(sample):
    data, times, targets = (tensor.cuda() for tensor in sample)
    scaled = [data * factor for factor in range(1, 9)]
    expected = [resample_trajectories(each, times, targets) for each in scaled]

    def all_right(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [resample_trajectories(scaled[number], times, targets) for _ in range(200)]
            return all(torch.equal(result, expected[number]) for result in results)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(all_right, range(8)))


def test_more_than_2_to_the_31_elements():
    rows = 2**31 // 64 + 100
    data = torch.zeros(1, rows, 64, dtype=torch.bfloat16, device="cuda")
    data[0, -50:] = torch.arange(50, device="cuda")[:, None]
    times = torch.arange(rows, device="cuda") * 2
    targets = (rows - 50) * 2 + torch.arange(98, device="cuda")
    got = resample_trajectories(data, times, targets)
    assert got[0, :, 63].tolist() == [n / 2 for n in range(98)]
    del data, got
    many = torch.full((2**25 + 3, 2, 32), 3, dtype=torch.uint8, device="cuda")
    many[-1, 1] = 7
    times = torch.arange(2, device="cuda")
    got = resample_trajectories(many, times, times, method="hold")
    assert got[-1].tolist() == [[3] * 32, [7] * 32]
    assert int(got.view(-1, 32)[:, 0].sum(dtype=torch.int64)) == 3 * (2 * (2**25 + 3) - 1) + 7


def test_inputs_on_different_devices_are_refused(sample):
    data, times, targets = sample
    with pytest.raises(RoboCacheError, match=r"source_times: expected .* on cuda:0, got .* on cpu"):
        resample_trajectories(data.cuda(), times, targets.cuda())
    with pytest.raises(RoboCacheError, match=r"out: expected .* on cuda:0"):
        resample_trajectories(data.cuda(), times.cuda(), targets.cuda(), out=torch.empty(8, 90, 24))
    rows = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(RoboCacheError, match="lower: expected a contiguous"):
        blend(data[0].cuda(), rows, rows, rows.float(), method="linear")


def test_a_wrong_input_is_refused_after_a_right_one_like_it(sample):
    data, times, targets = (tensor.cuda() for tensor in sample)
    resample_trajectories(data, times, targets)
    with pytest.raises(RoboCacheError, match="contiguous"):
        resample_trajectories(data.transpose(1, 2).contiguous().transpose(1, 2), times, targets)
    with pytest.raises(RoboCacheError, match="max_gap"):
        resample_trajectories(data, times, targets, max_gap=-1)


def test_blend_keeps_rows_past_the_end_in_bounds():
    source = torch.arange(6.0, device="cuda").view(3, 2)
    rows = torch.tensor([2, 9], device="cuda")
    assert blend(source, rows, rows, torch.zeros(2, device="cuda"), method="hold").tolist() == [[4, 5], [4, 5]]


def test_a_corrupt_module_on_disk_is_rebuilt(sample, tmp_path, monkeypatch):
    def forget():
        for module, name in ((kernels, "_kernels"), (kernels, "_modules"), (cuda, "_ready")):
            monkeypatch.setattr(module, name, {})

    forget()
    monkeypatch.setattr(kernels, "_cache_directory", None)
    enable_jit_cache(tmp_path)
    data, times, targets = (tensor.cuda() for tensor in sample)
    expected = resample_trajectories(data, times, targets)
    (entry,) = tmp_path.glob("*.cubin")
    complete = entry.read_bytes()
    other = b"not a cubin, though complete"
    for damaged in (complete[:100], b"", hashlib.sha256(other).digest() + other):
        entry.write_bytes(damaged)
        forget()
        assert same(resample_trajectories(data, times, targets), expected)
        assert entry.read_bytes() == complete


def test_fuse_of_many_streams_is_one_launch(monkeypatch):
    streams = [Stream(torch.randn(2, 5, 1 + n % 3, device="cuda"), torch.arange(5, device="cuda")) for n in range(40)]
    ticks = torch.arange(4, device="cuda")
    fuse(streams, ticks)
    launched = []
    monkeypatch.setattr(kernels.Kernel, "launch", lambda kernel, *arguments: launched.append(arguments[0]))
    fuse(streams, ticks)
    assert len(launched) == 1


def test_the_self_test_passes(capsys):
    assert set_device() == torch.device("cuda", torch.cuda.current_device())
    assert self_test("cuda"), capsys.readouterr().out
