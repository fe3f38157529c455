"""How streams are cut into tiles: each kind of cut gives the bits of the CPU backend."""

import pytest
import torch

from robocache_ros.ops.resample.cuda import Key, StreamFlag, StreamKey, make_plan, plan_keys
from robocache_ros.ops.resample.inputs import Stream, check_streams
from robocache_ros.ops.resample.resample import fuse

F32, F16, BF16, U8 = torch.float32, torch.float16, torch.bfloat16, torch.uint8


def planned_flags(streams, targets, skew=0):
    """The flags of each of the streams' traits."""
    ((_, key),) = plan_keys(streams, targets, check_streams(streams, targets), skew, processors=4)
    traits, *_ = make_plan(key).defines
    return [StreamFlag(int(each.split(",")[-2])) for each in traits.split(")")[:-1]]


@pytest.mark.parametrize("method", ["linear", "slerp", "hold"])
def test_wide_streams_cut_by_columns(check, values, rising, method):
    wide = Stream(values(BF16, 9, 60, 256), rising(9, 60), method, torch.tensor([60, 0, 1, 59, 30, 60, 60, 2, 60]))
    narrow = Stream(values(F32, 9, 20, 12), rising(9, 20))
    targets = rising(9, 50, seed=2)
    (flags,) = planned_flags([wide], targets)
    assert flags & StreamFlag.PARTED
    check([wide], targets)
    check([narrow, wide, narrow], targets, BF16)


@pytest.mark.parametrize(
    ("dtype", "method"), [*((d, m) for d in (F16, BF16) for m in ("linear", "angle", "hold")), (U8, "hold")]
)
@pytest.mark.parametrize("extra", [1, 2, 6])
def test_rows_that_begin_where_no_wide_store_can(backend, values, rising, assert_same_bits, dtype, method, extra):
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
    assert_same_bits(backend(streams, targets, out=out), fuse(streams, targets))


def test_few_batches_read_where_they_are_get_many_threads_and_many_batches_few():
    def threads(batches):
        stream = StreamKey(500, 7, F32, "linear", each_times=True, ragged=False, skew=0)
        return make_plan(Key((stream,), batches, 50, torch.int64, True, F32, 0, processors=132)).block

    assert threads(16) == threads(1024) == 256
    assert threads(2048) == 128
    assert threads(8192) == 64


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
