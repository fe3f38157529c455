"""The CUDA backend against the CPU backend, bit for bit: its kernels run on the CPU, and on a GPU for real."""

import pytest
import torch

from robocache_ros.alignments import NAMES
from robocache_ros.ops.resample.cuda import MAX_STREAMS, Key, StreamFlag, StreamKey, make_plan, plan_keys
from robocache_ros.ops.resample.inputs import Stream, check_streams
from robocache_ros.ops.resample.resample import fuse
from test.ops.resample.conftest import all_same_bits, rising, values

F32, F16, BF16, U8 = torch.float32, torch.float16, torch.bfloat16, torch.uint8


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_every_method_and_dtype(check, dtype):
    data, times = values(dtype, 3, 20, 8), rising(3, 20)
    streams = [Stream(data, times, method, max_gap=15_000_000, max_age=12_000_000) for method in NAMES]
    check(streams, rising(3, 30, seed=2))


def test_bytes_are_copied(check):
    data, times = values(U8, 3, 20, 48), rising(3, 20)
    check([Stream(data, times, method) for method in ("hold", "nearest", "next")], rising(3, 30, seed=2))


@pytest.mark.parametrize(
    ("batches", "samples", "targets", "width"),
    [
        (5, 100, 50, 32),  # samples staged, full batches
        (2, 500, 250, 64),  # samples read where they are
        (40, 120, 100, 14),  # staged, stores that reach from row to row
        (7, 12, 3, 7),  # several batches in a tile, the last tile not full
        (3, 9, 1, 5),  # one target
        (1, 3000, 700, 3),  # more times than are staged
        (2, 4, 3000, 1),  # many targets between few samples, cut into tiles
        (3, 1, 10, 8),  # one sample
        (3, 0, 10, 8),  # none
        (2, 10, 10, 0),  # no columns
        (1, 30, 20, 1100),  # a row of more items than a block has threads
    ],
)
def test_shapes(check, batches, samples, targets, width):
    stream = Stream(values(BF16, batches, samples, width), rising(batches, samples), "linear")
    check([stream], rising(batches, targets, seed=2))


@pytest.mark.parametrize(("offset", "width"), [(1, 8), (2, 8), (4, 6), (8, 3)])
def test_unaligned_storage(backend, offset, width):
    data = values(BF16, 2 * 20 * width + offset)[offset:].view(2, 20, width)
    out = torch.empty(2 * 30 * width + offset, dtype=BF16)[offset:].view(2, 30, width)
    stream, targets = Stream(data, rising(2, 20), "linear"), rising(2, 30, seed=2)
    all_same_bits(backend([stream], targets, out=out), fuse([stream], targets))


def test_unaligned_quaternions(check):
    data = values(F32, 2 * 20 * 8 + 1)[1:].view(2, 20, 8)
    check([Stream(data, rising(2, 20), "slerp")], rising(2, 30, seed=2))


def test_streams_of_every_kind_side_by_side(check):
    streams = [
        Stream(values(BF16, 4, 30, 512), rising(4, 30, step=33_000_000), "linear", max_gap=50_000_000),
        Stream(values(F32, 4, 100, 64), rising(4, 100), "angle"),
        Stream(values(F16, 4, 200, 12), rising(1, 200, step=5_000_000)[0], "slerp"),
        Stream(values(U8, 4, 10, 3), rising(4, 10, step=100_000_000), "hold", max_age=60_000_000),
        Stream(values(F32, 4, 0, 5), rising(4, 0), "nearest"),
    ]
    check(streams, torch.arange(50) * 20_000_000)
    check(streams, torch.arange(50) * 20_000_000, BF16)


def test_more_streams_than_fit_in_a_launch(check):
    streams = [
        Stream(values(F32, 3, 20 + n, 1 + n % 5), rising(3, 20 + n, seed=n), ["linear", "hold"][n % 2])
        for n in range(2 * MAX_STREAMS + 3)
    ]
    check(streams, rising(3, 30, seed=99))


def test_batches_enough_for_several_rows_in_a_tile_of_many_streams(check):
    streams = [
        Stream(values(BF16, 700, 12, 20), rising(700, 12, step=33_000_000)),
        Stream(values(BF16, 700, 40, 7), rising(700, 40), "nearest"),
        Stream(values(BF16, 700, 1200, 2), rising(1, 1200, step=1_000_000)[0], "angle"),
    ]
    check(streams, torch.arange(20) * 20_000_000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_float_seconds(check, dtype):
    times, targets = rising(3, 20) / 1e9, rising(3, 30, seed=2) / 1e9
    times[0, 5], targets[1, 7] = float("nan"), float("nan")
    check([Stream(values(F32, 3, 20, 4), times.to(dtype))], targets.to(dtype))


@pytest.mark.parametrize("shared", [False, True])
def test_unsorted_repeated_and_ragged_times(check, shared):
    random = torch.Generator().manual_seed(5)
    times = torch.randint(0, 30, (1 if shared else 9, 25), generator=random)
    lengths = torch.tensor([0, 1, 25, 30, -4, 12, 3, 24, 7])
    targets = torch.randint(-3, 33, (9, 40), generator=random)
    stream = Stream(values(F32, 9, 25, 5), times[0] if shared else times, "linear", lengths, 6, 5)
    check([stream], targets)
    check([stream._replace(method=method) for method in ("linear", "hold", "nearest", "next")], targets)


def test_values_only(emulated):
    """`resample_trajectories` without valid."""
    stream, targets = Stream(values(BF16, 3, 20, 14), rising(3, 20), max_gap=15_000_000), rising(3, 30, seed=2)
    all_same_bits(emulated([stream], targets, marked=False)[:1], fuse([stream], targets)[:1])


def test_nan_infinite_and_subnormal_values(check):
    data = values(F32, 2, 20, 8)
    data[0, 3:6], data[0, 7], data[1] = float("nan"), float("inf"), data[1] * 1e-42
    check([Stream(data, rising(2, 20))], rising(2, 60, seed=2))


def planned_flags(streams, targets, skew=0):
    """The flags of each of the streams' traits."""
    ((_, key),) = plan_keys(streams, targets, check_streams(streams, targets), skew, processors=4)
    traits, *_ = make_plan(key).defines
    return [StreamFlag(int(each.split(",")[-2])) for each in traits.split(")")[:-1]]


@pytest.mark.parametrize("method", ["linear", "slerp", "hold"])
def test_wide_streams_cut_by_columns(check, method):
    wide = Stream(values(BF16, 9, 60, 256), rising(9, 60), method, torch.tensor([60, 0, 1, 59, 30, 60, 60, 2, 60]))
    narrow = Stream(values(F32, 9, 20, 12), rising(9, 20))
    targets = rising(9, 50, seed=2)
    (flags,) = planned_flags([wide], targets)
    assert flags & StreamFlag.PARTED
    check([wide], targets)
    if method != "hold":
        check([narrow, wide, narrow], targets, BF16)


@pytest.mark.parametrize(
    ("dtype", "method", "extra"), [(F16, "linear", 1), (BF16, "angle", 2), (BF16, "hold", 6), (U8, "hold", 1)]
)
def test_rows_that_begin_where_no_wide_store_can(backend, dtype, method, extra):
    targets = rising(9, 50, seed=2)
    streams = [
        Stream(values(dtype, 9, 70, 256), rising(9, 70), method, max_gap=15_000_000),  # cut by columns
        Stream(values(dtype, 9, 90, 19), rising(9, 90), method, max_age=2_000_000),  # staged
        Stream(values(dtype, 9, 400, 33), rising(9, 400, step=1_000_000), method),  # read where they are
        Stream(values(dtype, 9, 90, extra), rising(9, 90), method),  # too narrow
    ]
    padded = torch.empty(9 * 50 * (256 + 19 + 33 + extra) + 3, dtype=dtype)
    out = padded[3:].view(9, 50, -1)
    flags = planned_flags(streams, targets, skew=3 * dtype.itemsize)
    assert [bool(each & StreamFlag.SHIFTED) for each in flags] == [True, True, True, False]
    assert [bool(each & StreamFlag.STAGED) for each in flags] == [True, True, False, True]
    assert flags[0] & StreamFlag.PARTED
    all_same_bits(backend(streams, targets, out=out), fuse(streams, targets))


def test_turns_too_long_for_a_division_by_multiplying_are_one():
    def turn_and_magic(targets):
        stream = StreamKey(3, 64, F32, "linear", each_times=False, ragged=False, skew=0)
        plan = make_plan(Key((stream, stream), 2, targets, torch.int64, False, F32, 0, processors=4))
        return plan.grid, plan.arguments.job.turn, plan.arguments.job.turn_magic

    grid, turn, magic = turn_and_magic(1000)
    assert turn == grid // 2
    assert magic == -(-(1 << 32) // turn)
    grid, turn, magic = turn_and_magic(100_000_000)
    assert (turn, magic) == (grid, 0)
