"""What a call on the GPU launches, and which calls are alike: of tensors on the CPU, and with launches only noted."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import Stream
from robocache_ros.ops.cuda import kernels
from robocache_ros.ops.cuda.kernels import like
from robocache_ros.ops.resample import cuda
from robocache_ros.ops.resample.inputs import stream_label

FOREVER = 2**63 - 1


@pytest.fixture(params=["guards", "plain"])
def guards(request, monkeypatch):
    """Torch's own comparison of tensors, and ours where it has none."""
    if request.param == "plain":
        monkeypatch.setattr(kernels, "_Guards", None)


@pytest.fixture
def launches(monkeypatch, guards):
    """The arguments of each launch."""
    noted = []
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(cuda, "kernel", lambda *parts: parts)
    monkeypatch.setattr(cuda, "launch_captured_dependent", lambda kernel, *call: noted.append(call))
    monkeypatch.setattr(cuda, "_ready", {})
    return noted


def run(streams, targets, dtype=None, out=None, valid=True, age=True):
    return cuda.run_streams_cuda(streams, targets, dtype, out, stream_label, valid, age)


def inputs():
    data, times = torch.randn(2, 10, 4), torch.arange(10).repeat(2, 1)
    lengths = torch.tensor([10, 7])
    return [Stream(data, times), Stream(data.half(), times[0], "hold", lengths, 5, 6)], torch.arange(20)


def test_a_launch_gets_all_addresses(launches):
    streams, targets = inputs()
    values, valid, age = run(streams, targets)
    assert (values.shape, values.dtype) == ((2, 20, 8), torch.float32)
    assert (valid.shape, valid.dtype) == ((2, 20, 2), torch.uint8)
    assert (age.shape, age.dtype) == ((2, 20, 2), torch.int64)
    ((_, _, _, *arguments),) = launches
    first, second = streams
    assert arguments[:4] == [tensor.data_ptr() for tensor in (values, targets, valid, age)]
    assert arguments[5:10] == [first.data.data_ptr(), first.times.data_ptr(), 0, FOREVER, FOREVER]
    assert arguments[11:16] == [second.data.data_ptr(), second.times.data_ptr(), second.lengths.data_ptr(), 5, 6]


def test_a_result_is_filled_again(launches):
    streams, targets = inputs()
    first = run(streams, targets)
    again = run(streams, targets, None, *first)
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert launches[0][3:7] == launches[1][3:7]


def test_what_is_not_wanted_is_not_made(launches):
    streams, targets = inputs()
    assert run(streams, targets, valid=False, age=False)[1:] == (None, None)
    assert launches[0][5:7] == (0, 0)


def test_a_call_like_an_earlier_one_is_neither_checked_nor_planned_again(launches, monkeypatch):
    streams, targets = inputs()
    run(streams, targets)
    monkeypatch.setattr(cuda, "_prepare", None)
    moved = [stream._replace(data=stream.data.clone(), times=stream.times.clone()) for stream in streams]
    run(moved, targets.clone())
    assert len(launches) == 2


def test_shared_times_are_not_taken_for_times_apart(launches):
    times, targets = torch.arange(10), torch.arange(10)
    a, b = torch.randn(2, 10, 4), torch.randn(2, 10, 4)
    for first, second, to in (
        (times, times, targets),
        (times, times.clone(), targets),
        (times, targets, targets),
        (targets, targets, targets),
        (times, times.repeat(2, 1), targets),
    ):
        run([Stream(a, first), Stream(b, second)], to)
        (*_, last) = launches
        assert (last[4], last[9], last[15]) == (to.data_ptr(), first.data_ptr(), second.data_ptr())


def test_of_many_shapes_the_latest_are_kept(launches, monkeypatch):
    monkeypatch.setattr(cuda, "_MAX_ALIKE", 3)
    targets = torch.arange(20)

    def call(size):
        run([Stream(torch.zeros(2, size, 4), torch.arange(size))], targets)

    for size in (1, 2, 3, 4, 2, 5):
        call(size)
    monkeypatch.setattr(cuda, "_prepare", None)
    for size in (5, 2, 4):
        call(size)
    with pytest.raises(TypeError):
        call(3)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s._replace(data=s.data.double()),
        lambda s: s._replace(data=s.data[:, :, :3].contiguous()),
        lambda s: s._replace(data=s.data.transpose(1, 2).contiguous().transpose(1, 2)),
        lambda s: s._replace(data=torch.randn(s.data.numel() + 1)[1:].view_as(s.data)),
        lambda s: s._replace(data=s.data.clone().requires_grad_()),
        lambda s: s._replace(data=torch.nn.Parameter(s.data.clone(), requires_grad=False)),
        lambda s: s._replace(data=s.data[:1]),
        lambda s: s._replace(data=torch.empty(4, 10, 4)[::2]),
        lambda s: s._replace(data=s.data.to("meta")),
        lambda s: s._replace(times=s.times.double()),
        lambda s: s._replace(times=s.times[:, :9]),
        lambda s: s._replace(times=s.times[0]),
        lambda s: s._replace(method="angle"),
        lambda s: s._replace(lengths=torch.tensor([1, 2])),
        lambda s: s._replace(lengths=torch.tensor([1])),
        lambda s: s._replace(data=s.data.numpy()),
        lambda s: s._replace(times=None),
        lambda s: s._replace(method=["linear"]),
    ],
)
def test_a_call_that_differs_is_checked_anew(launches, monkeypatch, change):
    (first, second), targets = inputs()
    run([first, second], targets)
    prepared = []
    prepare = cuda._prepare
    monkeypatch.setattr(cuda, "_prepare", lambda *given: prepared.append(given) or prepare(*given))
    try:
        run([change(first), second], targets)
    except RoboCacheError as error:
        assert str(error).startswith(("streams", "method"))  # noqa: PT017
    else:
        assert len(prepared) == 1


def test_results_that_differ_are_checked_anew(launches):
    streams, targets = inputs()
    values, valid, age = run(streams, targets)
    for out, message in (
        ((values[:, :, :7], valid, age), "out: expected contiguous"),
        ((values, valid.bool(), age), r"out\.valid: expected contiguous"),
        ((values, valid, age[:, ::2]), r"out\.age: expected contiguous"),
        ((values, None, age), r"out\.valid: expected a tensor, got NoneType"),
        (([], valid, age), "out: expected a tensor, got list"),
    ):
        with pytest.raises(RoboCacheError, match=message):
            run(streams, targets, None, *out)
    assert len(launches) == 1


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_tensors_that_need_a_gradient_are_like_themselves(here, there):
    data = torch.randn(3, requires_grad=True)
    with torch.set_grad_enabled(here):
        is_like = like([data])
        assert is_like(data)
    with torch.set_grad_enabled(there):
        assert not is_like(data.detach())


@pytest.mark.usefixtures("guards")
def test_tensors_are_not_kept():
    given = [torch.randn(4, 5, 6), torch.empty(0, 3), torch.tensor(1.0)]
    kept = [weakref.ref(tensor) for tensor in given]
    is_like = like(given)
    del given
    gc.collect()
    assert [tensor() for tensor in kept] == [None] * 3
    assert is_like(torch.zeros(4, 5, 6), torch.empty(0, 3), torch.tensor(2.0))
    assert not is_like(None, torch.empty(0, 3), torch.tensor(2.0))


def test_a_torch_with_other_guards_is_served(monkeypatch):
    def called(*tensors):
        raise AssertionError("called with names that it does not take")

    monkeypatch.setattr(kernels, "_Guards", SimpleNamespace(TensorGuards=called))
    assert like([torch.zeros(3)])(torch.ones(3))
