"""Fusion: any number of streams, each with its own rate, width, dtype and method, on one timeline in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.cpu import run_streams_cpu
from robocache_ros.ops.resample.cuda.resample import run_streams_cuda
from robocache_ros.ops.resample.inputs import Fused, Label, Stream, stream_label


def fuse(
    streams: Sequence[Stream],
    target_times: Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | Fused | None = None,
) -> Fused:
    """Resample streams to one timeline and concatenate their columns.

    Arithmetic and selection are those of `resample_trajectories`; on CUDA it is one launch (one for each 40 streams),
    without synchronisation. The CPU and CUDA backends give the same bits. It has no gradient; use
    `resample_trajectories` for one.

    Args:
        streams: at least one `Stream`, all of one device and batch size, or (data, times[, method, ...]) tuples.
        target_times: (B, T), or (T,) for all batches, of the dtype of the streams' times.
        dtype: of the result: float32, float16, bfloat16, or uint8 if all streams are. None: that of `out`, else the
            dtype of all streams if it is the same, else float32.
        out: (B, T, sum of D) contiguous, for the values; or a `Fused`, such as the result of an earlier call, whose
            three tensors are reused. Allocated if None.

    Raises:
        RoboCacheError: an argument has a wrong type, shape or dtype; the message names it.
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
    """Fuse streams given as tensors: `fuse_multimodal_alignment(data1, times1, data2, times2, ..., target_times)`.

    Args:
        data_and_times: (B, S, D) data and (B, S) or (S,) times of each stream, then the target times.
        target_times: (B, T) or (T,), if not given as the last tensor.
        method: one for all streams, or a list with one per stream.
        max_gap: as in `resample_trajectories`, for all streams.
        max_age: as in `resample_trajectories`, for all streams.
        out: (B, T, sum of D) contiguous, for the values; allocated if None.
        return_valid: return a `Fused` instead of its values alone.

    Raises:
        RoboCacheError: as `fuse`; or a stream has no times, or the number of methods is wrong.
    """
    given = list(data_and_times)
    if target_times is None and given:
        target_times = given.pop()
    if target_times is None or not given or len(given) % 2:
        raise RoboCacheError(
            f"expected data1, times1, data2, times2, ... and target_times, got {len(data_and_times)} tensors"
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
    """Check the arguments, allocate the results that are not given, and compute them on the streams' device."""
    if streams and isinstance(streams[0].data, Tensor) and streams[0].data.is_cuda:
        return run_streams_cuda(streams, targets, dtype, out, label, valid, age)
    return run_streams_cpu(streams, targets, dtype, out, label, valid, age)
