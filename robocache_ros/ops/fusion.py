"""Any number of streams, each with its own rate, width, dtype and method, onto one timeline in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.resample import run_streams_cuda
from robocache_ros.ops.pick import Picks, pick
from robocache_ros.ops.rows import blend_rows
from robocache_ros.ops.streams import (
    NO_GRADIENT,
    Fused,
    Label,
    Stream,
    check_marks,
    check_streams,
    stream_label,
)
from robocache_ros.ops.times import limit_ns, nanoseconds


def fuse(
    streams: Sequence[Stream],
    target_times: Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | Fused | None = None,
) -> Fused:
    """Bring streams onto one timeline and lay them side by side.

    Arithmetic and selection are those of `resample_trajectories`; on CUDA it is one launch (one for each 40 streams),
    without synchronisation. The CPU and CUDA backends give the same bits. Not differentiable: resample each stream
    where a gradient is wanted.

    Args:
        streams: at least one `Stream`, all of one device and batch size; (data, times[, method, ...]) tuples do.
        target_times: (B, T), or (T,) for all batches, of the dtype of the streams' times.
        dtype: of the result: float32, float16, bfloat16, or uint8 if all streams are. None: that of `out`, else the one
            dtype that all streams have, else float32.
        out: values, (B, T, sum of D) contiguous, to be filled; or all of a `Fused`, such as that of an earlier call,
            which spares the making of valid and age too. Made if not given.

    Raises:
        RoboCacheError: an input that is not as said; the message names it, what was expected and what was given.
    """
    try:
        streams = [stream if isinstance(stream, Stream) else _as_stream(stream) for stream in streams]
    except TypeError as error:
        raise RoboCacheError(f"streams: expected Streams or (data, times[, method, ...]) tuples: {error}") from error
    if isinstance(out, Fused):
        values, valid, age = run_streams(streams, target_times, dtype, out.values, valid=out.valid, age=out.age)
    else:
        values, valid, age = run_streams(streams, target_times, dtype, out)
    assert valid is not None
    assert age is not None
    return Fused(values, valid, age)


def _as_stream(fields: Sequence[Any]) -> Stream:
    if not isinstance(fields, tuple | list):
        raise TypeError(f"got {type(fields).__name__}")
    return Stream(*fields)


def fuse_multimodal_alignment(
    *data_and_times: Tensor,
    target_times: Tensor | None = None,
    method: str | Sequence[str] = "linear",
    max_gap: float | None = None,
    max_age: float | None = None,
    out: Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | Fused:
    """Fuse streams given in turn: `fuse_multimodal_alignment(data1, times1, data2, times2, ..., target_times)`.

    Args:
        data_and_times: (B, S, D) data and (B, S) or (S,) times of each stream, then the target times.
        target_times: (B, T) or (T,), if they do not come last among the others.
        method: for all streams, or one for each.
        max_gap: as in `resample_trajectories`, for all streams.
        max_age: likewise.
        out: (B, T, sum of D), to be filled.
        return_valid: return all of `Fused` and not its values alone.

    Raises:
        RoboCacheError: as `fuse`, or a stream without times, or not one method for each stream.
    """
    given = list(data_and_times)
    if target_times is None and given:
        target_times = given.pop()
    if target_times is None or not given or len(given) % 2:
        raise RoboCacheError(
            f"expected data1, times1, data2, times2, ... and target_times, got {len(data_and_times)} tensors in turn"
        )
    count = len(given) // 2
    methods = [method] * count if isinstance(method, str) else list(method)
    if len(methods) != count:
        raise RoboCacheError(f"method: expected one, or one for each of {count} streams, got {len(methods)}")
    streams = [
        Stream(data, times, each, None, max_gap, max_age)
        for data, times, each in zip(given[::2], given[1::2], methods, strict=True)
    ]
    values, valid, age = run_streams(streams, target_times, None, out, valid=return_valid, age=return_valid)
    if not return_valid:
        return values
    assert valid is not None
    assert age is not None
    return Fused(values, valid, age)


def run_streams(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    *,
    label: Label = stream_label,
    valid: Tensor | bool = True,
    age: Tensor | bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Check, make what is to be returned and not given, and fill it on the device of the streams."""
    if streams and isinstance(streams[0].data, Tensor) and streams[0].data.is_cuda:
        return run_streams_cuda(streams, targets, dtype, out, label, valid, age)
    shape = check_streams(streams, targets, dtype, out, label)
    check_marks(shape, len(streams), valid, age)
    if torch.is_grad_enabled() and any(stream.data.requires_grad for stream in streams):
        raise RoboCacheError(NO_GRADIENT)
    if out is None:
        out = torch.empty((shape.batches, shape.targets, shape.width), dtype=shape.dtype)
    marks = (shape.batches, shape.targets, len(streams))
    valids = valid if isinstance(valid, Tensor) else torch.empty(marks, dtype=torch.uint8) if valid else None
    ages = age if isinstance(age, Tensor) else torch.empty(marks, dtype=torch.int64) if age else None
    column = 0
    for index, stream in enumerate(streams):
        picks = pick_stream(stream, targets, label, index)
        size, width = stream.data.shape[1:]
        base = torch.arange(shape.batches)[:, None] * size
        lower = torch.where(picks.lower >= 0, picks.lower + base, -1).numpy()
        upper = torch.where(picks.upper >= 0, picks.upper + base, -1).numpy()
        rows = stream.data.reshape(shape.batches * size, width)
        blended = blend_rows(rows, lower, upper, picks.weight.numpy(), stream.method, shape.dtype)
        out[:, :, column : column + width] = blended
        column += width
        if valids is not None:
            valids[:, :, index] = picks.valid
        if ages is not None:
            ages[:, :, index] = picks.age
    return out, valids, ages


def pick_stream(stream: Stream, targets: Tensor, label: Label = stream_label, index: int = 0) -> Picks:
    """The rows that each target of a checked stream is made of, on the stream's device."""
    batches = stream.data.shape[0]
    times = nanoseconds(stream.times).expand(batches, -1).contiguous()
    ticks = nanoseconds(targets).expand(batches, -1).contiguous()
    max_gap = limit_ns(label(index, "max_gap"), stream.max_gap, stream.times.dtype)
    max_age = limit_ns(label(index, "max_age"), stream.max_age, stream.times.dtype)
    return pick(times, ticks, stream.lengths, stream.method, max_gap, max_age)
