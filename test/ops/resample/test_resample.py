import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import Stream, fuse, resample_from_host, resample_trajectories
from robocache_ros.ops.resample.inputs import ABSENT_NS, NO_LIMIT_NS, nanoseconds
from robocache_ros.ops.resample.selection import Rule, select, select_batch
from test.ops.conftest import same_bits
from test.ops.resample import oracle

DATA = torch.tensor([[[0.0], [10.0], [30.0]]])
TIMES = torch.tensor([0, 100, 300])


def resample(targets, data=DATA, times=TIMES, **more):
    values, valid = resample_trajectories(data, times, torch.tensor(targets), return_valid=True, **more)
    return values[0, :, 0].tolist(), valid[0].tolist()


def test_limits_are_seconds_next_to_float_times():
    times = TIMES.double() / 1000
    values, valid = resample_trajectories(DATA, times, times + 0.05, max_gap=0.1, max_age=0.05, return_valid=True)
    assert values.flatten().tolist() == [5.0, 10.0, 30.0]
    assert valid.tolist() == [[1, 2, 2]]


def test_lengths_cut_each_row():
    data, targets = DATA.expand(3, -1, -1).contiguous(), torch.tensor([200])
    lengths = torch.tensor([3, 2, 0])
    values, valid = resample_trajectories(data, TIMES, targets, lengths=lengths, return_valid=True)
    assert values.flatten().tolist() == [20.0, 10.0, 0.0]
    assert valid.flatten().tolist() == [1, 2, 0]


def test_a_sample_or_target_marked_never_is_absent():
    assert resample([50, ABSENT_NS], times=torch.tensor([0, ABSENT_NS, 300])) == ([5.0, 0.0], [1, 0])


def test_nan_seconds_are_never():
    seconds = torch.tensor([0.0, float("nan"), 300.0])
    values, valid = resample_trajectories(DATA, seconds, seconds, return_valid=True)
    assert values.flatten().tolist() == [0.0, 0.0, 30.0]
    assert valid.tolist() == [[1, 0, 1]]


def test_nan_in_a_neighbour_does_not_affect_a_target_at_a_sample():
    data = torch.tensor([[[1.0], [float("nan")], [3.0]]])
    values, _ = resample([0, 50, 300], data)
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0])


def test_epoch_nanoseconds_are_exact():
    base = 1_700_000_000_000_000_001
    values, _ = resample([base + 1], torch.tensor([[[0.0], [3.0]]]), torch.tensor([base, base + 3]))
    assert values == [1.0]


def test_float32_seconds_are_converted_from_their_float64_value():
    assert nanoseconds(torch.tensor([0.1], dtype=torch.float32)).item() == 100000001
    assert nanoseconds(torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64)).tolist() == [2**62, -(2**62), 0]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(("batches", "samples", "targets"), [(0, 3, 2), (2, 0, 3), (2, 3, 0), (2, 1, 3)])
def test_empty_and_single_sizes(method, batches, samples, targets):
    data = torch.randn(batches, samples, 4)
    times, ticks = torch.arange(samples), torch.zeros(targets, dtype=torch.int64)
    values, valid = resample_trajectories(data, times, ticks, method=method, return_valid=True)
    assert values.shape == (batches, targets, 4)
    assert valid.shape == (batches, targets)
    assert (valid != 0).all() == (samples > 0 or targets == 0 or batches == 0)


def test_out_is_filled_and_returned():
    out = torch.empty(1, 2, 1)
    assert resample_trajectories(DATA, TIMES, torch.tensor([25, 150]), out=out) is out
    assert out.flatten().tolist() == [2.5, 15.0]


def test_subnormals_are_kept():
    tiny = torch.tensor([[[0.0], [2.8e-45]]])  # two of the smallest float32
    assert resample([50], tiny, torch.tensor([0, 100]))[0][0] == torch.tensor(1e-45).item() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": torch.randn(1, 3, 2).transpose(1, 2)}, r"source: expected contiguous.*call \.contiguous\(\)"),
        ({"source": torch.zeros(3, 1)}, "source: expected 3 dimensions"),
        ({"source": torch.zeros(1, 3, 1, dtype=torch.int32)}, "source: dtype torch.int32 cannot be aligned"),
        ({"source_times": torch.arange(4)}, r"source_times: expected contiguous \(3,\) or \(1, 3\)"),
        ({"source_times": torch.arange(3, dtype=torch.int32)}, "source_times: torch.int32 is not"),
        ({"source_times": torch.arange(3.0)}, r"source_times: expected .*int64 \(dtype of the target times\)"),
        ({"target_times": torch.zeros(2, 5, dtype=torch.int64)}, "target_times: expected"),
        ({"lengths": torch.tensor([1, 2])}, r"lengths: expected contiguous \(1,\)"),
        ({"method": "cubic"}, "method: 'cubic' is not one of angle"),
        ({"method": "slerp"}, "source: 1 columns, and slerp is for quaternions of 4"),
        ({"max_gap": -1}, "max_gap: expected an integer number of ns"),
        ({"max_age": 0.5}, "max_age: expected an integer number of ns"),
        ({"out": torch.empty(1, 5, 2)}, r"out: expected contiguous \(1, 5, 1\)"),
        ({"out": torch.empty(1, 5, 1).half()}, "out: expected contiguous .* torch.float32"),
    ],
)
def test_a_wrong_input_is_named(change, message):
    given = {"source": DATA, "source_times": TIMES, "target_times": torch.arange(5), **change}
    with pytest.raises(RoboCacheError, match=message):
        resample_trajectories(**given)


@st.composite
def trajectories(draw):
    size = draw(st.integers(1, 12))
    times = draw(st.lists(st.integers(-40, 40), min_size=size, max_size=size, unique=draw(st.booleans())))
    targets = draw(st.lists(st.integers(-50, 50), min_size=1, max_size=8))
    limits = draw(st.tuples(*[st.none() | st.integers(0, 60)] * 2))
    return np.array(times), np.array(targets), limits, draw(st.integers(0, 2**32 - 1))


# The error of blending in float32: three roundings of values below 8 in size, and that of the weight.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}


@settings(max_examples=80)
@given(trajectories(), st.sampled_from(NAMES), st.sampled_from(list(TOLERANCE)))
def test_the_cpu_backend_follows_the_reference(trajectory, method, dtype):
    times, targets, (gap, age), seed = trajectory
    values = np.random.default_rng(seed).normal(size=(len(times), 8))
    group = alignment(method).group
    if group > 1:  # such as unit quaternions
        values /= np.linalg.norm(values.reshape(-1, group), axis=1).reshape(len(times), -1).repeat(group, 1)
    data = torch.from_numpy(np.clip(values, -4, 4)).to(dtype)
    expected, *marks = oracle.resample(data.double().numpy(), times, targets, method, gap, age)
    stream = Stream(data[None], torch.from_numpy(times), method, None, gap, age)
    got, *found = fuse([stream], torch.from_numpy(targets))
    assert [mark.flatten().tolist() for mark in found] == [mark.tolist() for mark in marks]
    apart = got[0].double().numpy() - expected
    if method == "angle_deg":  # -4 to 4 deg do not wrap, except from or to 360
        apart = (apart + 180) % 360 - 180
    if method == "angle":  # pi and -pi are one angle, and half a turn may go either way
        turns = np.exp(1j * got[0].double().numpy()) - np.exp(1j * expected)
        apart = np.minimum(abs(turns), abs(apart))
        gaps = np.abs(np.abs(np.diff(data.double().numpy(), axis=0)) - np.pi)
        if len(gaps) and gaps.min() < 1e-5:
            return
    np.testing.assert_allclose(apart, 0, atol=TOLERANCE[dtype])


@settings(max_examples=100)
@given(trajectories(), st.sampled_from(NAMES))
def test_a_batch_selects_the_rows_that_an_engines_tick_does(trajectory, method):
    times, targets, (gap, age), _ = trajectory
    times = np.unique(times)
    gap, age = (NO_LIMIT_NS if limit is None else limit for limit in (gap, age))
    expected = select(times, targets, Rule(method, gap, age))
    got = select_batch(torch.from_numpy(times)[None], torch.from_numpy(targets)[None], None, method, gap, age)
    for name, ours in got._asdict().items():
        np.testing.assert_array_equal(ours[0].numpy(), getattr(expected, name), name)


@settings(max_examples=50)
@given(trajectories(), st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_shuffling_samples_with_distinct_times_changes_no_bit(trajectory, method, random):
    times, targets, (gap, age), seed = trajectory
    times = torch.from_numpy(np.unique(times))
    data = torch.randn(1, len(times), 4, generator=torch.Generator().manual_seed(seed % 1000))
    order = random.sample(range(len(times)), len(times))
    options = {"method": method, "max_gap": gap, "max_age": age}
    one, other = (
        resample_trajectories(data[:, rows].contiguous(), times[rows], torch.from_numpy(targets), **options)
        for rows in (sorted(order), order)
    )
    same_bits(one, other)


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.sampled_from(["slerp", "angle", "angle_deg", "heading"]))
def test_unit_quaternions_stay_unit_and_angles_stay_in_range(seed, method):
    values = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(seed))
    if method == "slerp":
        values = values / values.norm(dim=2, keepdim=True)
    low, high = {"slerp": (-1, 1), "angle": (-3.14159274, 3.14159274), "angle_deg": (-180, 180)}.get(method, (0, 360))
    values = (values if high < 4 else values * 100 + (high + low) / 2).clamp(low, high)
    align = "angle_deg" if method == "heading" else method
    got = resample_trajectories(values, torch.arange(9) * 100, torch.arange(800), method=align)
    if method == "slerp":
        torch.testing.assert_close(got.norm(dim=2), torch.ones(1, 800), rtol=0, atol=1e-6)
    elif method == "angle":
        assert got.abs().max() <= 3.1415932  # pi, and one rounding at pi
    else:
        assert low <= got.min()
        assert got.max() <= high


ROWS = torch.tensor([[0, 10, 10, 30, 35], [5, 0, 20, 40, 41]])
BETWEEN = torch.tensor([-1, 0, 5, 10, 20, 33, 50])


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double:UserWarning")
@pytest.mark.parametrize("method", [name for name in NAMES if alignment(name).has_gradient])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 5])])
def test_gradcheck(method, lengths):
    source = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    # The map is linear in the source, so that a wide step has a rounding error alone: a few float32 roundings at 4.
    assert torch.autograd.gradcheck(
        lambda data: resample_trajectories(data, ROWS, BETWEEN, method=method, lengths=lengths, max_gap=25),
        (source,),
        eps=1.0,
        atol=2e-6,
        rtol=0,
    )


def test_sixteen_bit_gradients_are_summed_in_float32():
    source = torch.zeros(1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(1000)
    resample_trajectories(source, torch.tensor([0]), targets, method="hold").sum().backward()
    assert source.grad.item() == 1000


def test_valid_comes_with_the_gradient():
    source = torch.zeros(1, 2, 1, requires_grad=True)
    values, valid = resample_trajectories(source, torch.tensor([0, 9]), torch.tensor([-1, 3]), return_valid=True)
    assert values.requires_grad
    assert valid.tolist() == [[0, 1]]


@pytest.mark.parametrize("method", [name for name in NAMES if not alignment(name).has_gradient])
def test_methods_without_a_gradient_are_refused_where_one_is_needed(method):
    given = torch.zeros(1, 2, 4, requires_grad=True), torch.arange(2), torch.arange(2)
    with pytest.raises(RoboCacheError, match=f"{method} has no gradient"):
        resample_trajectories(*given, method=method)
    with torch.no_grad():
        assert resample_trajectories(*given, method=method).shape == (1, 2, 4)


SECOND = 1_000_000_000


def on_timelines(each_times):
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(37, 20, 5, generator=generator)
    times = torch.arange(20) * (SECOND // 20)
    if each_times:
        times = times + torch.randint(0, SECOND // 40, (37, 20), generator=generator)
    return source, times, torch.arange(15) * (SECOND // 15)


@pytest.mark.gpu
@pytest.mark.parametrize("each_times", [False, True], ids=["one timeline", "own times"])
@pytest.mark.parametrize("slab_bytes", [1, 4 * 20 * 5 * 4, 1 << 20])
def test_slabs_have_the_bits_of_one_call(each_times, slab_bytes):
    source, times, targets = on_timelines(each_times)
    options = {"max_gap": SECOND // 15, "max_age": SECOND // 10}
    found = resample_from_host(source.pin_memory(), times.pin_memory(), targets, slab_bytes=slab_bytes, **options)
    assert found.cpu().equal(resample_trajectories(source, times, targets, **options))


def test_a_device_without_slabs_is_refused():
    with pytest.raises(RoboCacheError, match="device: cpu is not a CUDA device; use resample_trajectories"):
        resample_from_host(*on_timelines(False), "cpu")
