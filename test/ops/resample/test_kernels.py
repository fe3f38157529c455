"""The CUDA backend against the CPU backend, bit for bit: its kernels run on the CPU, and on a GPU for real."""

import pytest
import torch

from robocache_ros.alignments import NAMES
from robocache_ros.ops.resample.cuda import MAX_STREAMS
from robocache_ros.ops.resample.inputs import Stream
from robocache_ros.ops.resample.resample import fuse

F32, F16, BF16, U8 = torch.float32, torch.float16, torch.bfloat16, torch.uint8


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_every_method_and_dtype(check, values, rising, method, dtype):
    stream = Stream(values(dtype, 3, 20, 8), rising(3, 20), method, max_gap=15_000_000, max_age=12_000_000)
    check([stream], rising(3, 30, seed=2))


@pytest.mark.parametrize("method", ["hold", "nearest", "next"])
def test_bytes_are_copied(check, values, rising, method):
    check([Stream(values(U8, 3, 20, 48), rising(3, 20), method)], rising(3, 30, seed=2))


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
def test_shapes(check, values, rising, batches, samples, targets, width):
    stream = Stream(values(BF16, batches, samples, width), rising(batches, samples), "linear")
    check([stream], rising(batches, targets, seed=2))


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [8, 6, 3])
def test_unaligned_storage(backend, values, rising, assert_same_bits, offset, width):
    data = values(BF16, 2 * 20 * width + offset)[offset:].view(2, 20, width)
    out = torch.empty(2 * 30 * width + offset, dtype=BF16)[offset:].view(2, 30, width)
    stream, targets = Stream(data, rising(2, 20), "linear"), rising(2, 30, seed=2)
    assert_same_bits(backend([stream], targets, out=out), fuse([stream], targets))


def test_unaligned_quaternions(check, values, rising):
    data = values(F32, 2 * 20 * 8 + 1)[1:].view(2, 20, 8)
    check([Stream(data, rising(2, 20), "slerp")], rising(2, 30, seed=2))


def test_streams_of_every_kind_side_by_side(check, values, rising):
    streams = [
        Stream(values(BF16, 4, 30, 512), rising(4, 30, step=33_000_000), "linear", max_gap=50_000_000),
        Stream(values(F32, 4, 100, 64), rising(4, 100), "angle"),
        Stream(values(F16, 4, 200, 12), rising(1, 200, step=5_000_000)[0], "slerp"),
        Stream(values(U8, 4, 10, 3), rising(4, 10, step=100_000_000), "hold", max_age=60_000_000),
        Stream(values(F32, 4, 0, 5), rising(4, 0), "nearest"),
    ]
    check(streams, torch.arange(50) * 20_000_000)
    check(streams, torch.arange(50) * 20_000_000, BF16)


def test_more_streams_than_fit_in_a_launch(check, values, rising):
    streams = [
        Stream(values(F32, 3, 20 + n, 1 + n % 5), rising(3, 20 + n, seed=n), ["linear", "hold"][n % 2])
        for n in range(2 * MAX_STREAMS + 3)
    ]
    check(streams, rising(3, 30, seed=99))


def test_batches_enough_for_several_rows_in_a_tile_of_many_streams(check, values, rising):
    streams = [
        Stream(values(BF16, 700, 12, 20), rising(700, 12, step=33_000_000)),
        Stream(values(BF16, 700, 40, 7), rising(700, 40), "nearest"),
        Stream(values(BF16, 700, 1200, 2), rising(1, 1200, step=1_000_000)[0], "angle"),
    ]
    check(streams, torch.arange(20) * 20_000_000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_float_seconds(check, values, rising, dtype):
    times, targets = rising(3, 20) / 1e9, rising(3, 30, seed=2) / 1e9
    times[0, 5], targets[1, 7] = float("nan"), float("nan")
    check([Stream(values(F32, 3, 20, 4), times.to(dtype))], targets.to(dtype))


@pytest.mark.parametrize("method", ["linear", "hold", "nearest", "next"])
@pytest.mark.parametrize("shared", [False, True])
def test_unsorted_repeated_and_ragged_times(check, values, method, shared):
    random = torch.Generator().manual_seed(5)
    times = torch.randint(0, 30, (1 if shared else 9, 25), generator=random)
    lengths = torch.tensor([0, 1, 25, 30, -4, 12, 3, 24, 7])
    targets = torch.randint(-3, 33, (9, 40), generator=random)
    stream = Stream(values(F32, 9, 25, 5), times[0] if shared else times, method, lengths, 6, 5)
    check([stream], targets)


def test_values_alone(values, rising, assert_same_bits, emulated):
    """`resample_trajectories` without valid."""
    stream, targets = Stream(values(BF16, 3, 20, 14), rising(3, 20), max_gap=15_000_000), rising(3, 30, seed=2)
    assert_same_bits(emulated([stream], targets, marked=False)[:1], fuse([stream], targets)[:1])


def test_nan_infinite_and_subnormal_values(check, values, rising):
    data = values(F32, 2, 20, 8)
    data[0, 3:6], data[0, 7], data[1] = float("nan"), float("inf"), data[1] * 1e-42
    check([Stream(data, rising(2, 20))], rising(2, 60, seed=2))
