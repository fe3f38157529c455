"""Resample streams to target times: the operations, for tensors on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.cpu import blend_rows, run_streams_cpu, select_stream
from robocache_ros.ops.resample.cuda import blend_cuda, run_streams_cuda
from robocache_ros.ops.resample.inputs import Fused, Label, Stream, check_streams, stream_label
from robocache_ros.ops.tensor_checks import check_method, check_source, check_tensor


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
        return_valid: return a `Fused` instead of only its values.

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


Rows = Tensor | NDArray[Any]


def blend(source: Tensor, lower: Rows, upper: Rows, weight: Rows, *, method: str, out: Tensor | None = None) -> Tensor:
    """Blend pairs of rows: `source[lower] + weight * (source[upper] - source[lower])`, or the equivalent of `method`.

    A row is `source[lower]` to the bit where weight is 0 or upper equals lower, and zeros where lower is negative. The
    arithmetic is float32 with one rounding per operation, then one rounding to the dtype of `source`; the CPU and CUDA
    backends give the same bits. A NaN that arithmetic produces is the canonical one.

    Args:
        source: (S, D) float32, float16 or bfloat16; for hold, nearest and next also uint8. For slerp D is a multiple
            of 4.
        lower: (T,) int64 rows, -1 for none; on the CPU a NumPy array or a tensor, on CUDA a tensor on its device.
        upper: (T,) int64 rows, -1 for none: the row is then source[lower], whatever its weight. Ignored
            where lower is negative. Rows must be below S.
        weight: (T,) float32 in [0, 1].
        method: the name of an alignment; hold, nearest and next copy source[lower].
        out: (T, D) of the dtype and device of `source`, contiguous; allocated if None.

    Raises:
        RoboCacheError: a wrong shape, dtype or method.
    """
    check_method(method)
    check_source("source", source, method, dims=2)
    if source.device.type == "cuda":
        return blend_cuda(source, lower, upper, weight, method, out)
    lower, upper, weight = _array("lower", lower), _array("upper", upper), _array("weight", weight)
    for name, rows, dtype in (("lower", lower, np.int64), ("upper", upper, np.int64), ("weight", weight, np.float32)):
        if rows.dtype != dtype or rows.shape != lower.shape or rows.ndim != 1:
            raise RoboCacheError(f"{name}: expected ({lower.size},) {np.dtype(dtype)}, got {rows.shape} {rows.dtype}")
    if out is None:
        out = torch.empty((len(lower), source.shape[1]), dtype=source.dtype)
    elif out.shape != (len(lower), source.shape[1]) or out.dtype != source.dtype or out.device != source.device:
        raise RoboCacheError(
            f"out: expected {(len(lower), source.shape[1])} {source.dtype} on {source.device}, "
            f"got {tuple(out.shape)} {out.dtype} on {out.device}"
        )
    if lower.size and max(lower.max(), upper.max(where=lower >= 0, initial=-1)) >= len(source):
        raise RoboCacheError(f"lower, upper: rows must be below {len(source)}, the number of rows of source")
    return out.copy_(blend_rows(source, lower, upper, weight, method, source.dtype))


def _array(name: str, rows: Any) -> NDArray[Any]:
    if not isinstance(rows, np.ndarray):
        check_tensor(name, rows)
        if rows.is_cuda:
            raise RoboCacheError(f"{name}: on {rows.device}, but source is on the CPU; move one of them")
    return torch.as_tensor(rows).detach().numpy()


_NAMES = {"data": "source", "times": "source_times", "targets": "target_times"}


# More than 50 lines because of its signature and docstring; its steps are functions of their own.
def resample_trajectories(
    source: Tensor,
    source_times: Tensor,
    target_times: Tensor,
    *,
    method: str = "linear",
    lengths: Tensor | None = None,
    max_gap: float | None = None,
    max_age: float | None = None,
    out: Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Resample trajectories at new times.

    A target between two samples is blended from them by linear, slerp (quaternions of four columns, on the shorter arc)
    or angle and angle_deg (rad and deg, across the wrap). A target at the time of a sample is that sample, bit for bit.
    A target past the last sample, or in a gap wider than `max_gap`, holds the sample before it (valid 2). hold selects
    the newest sample at or before the target, next the first one at or after it, nearest the nearest one, the earlier
    of two. Where no sample is found within `max_age`, the row is zeros and valid is 0: nothing is extrapolated.

    Source times may be in any order; of samples with one time the first counts. (On CUDA a batch whose times all rise
    is searched by bisection, and any other by a linear scan.)

    The arithmetic is float32 with one rounding per operation, then one rounding to the dtype of `source`: the same bits
    on CPU and CUDA. A NaN that arithmetic produces is the canonical one. On CUDA it is one launch on torch's current
    stream, without synchronisation. Differentiable in `source` for linear, hold, nearest and next.

    Args:
        source: (B, S, D) contiguous; float32, float16, bfloat16; for hold, nearest and next also uint8.
        source_times: (B, S), or (S,) for all batches. int64 ns, exact; or float64 or float32 seconds, which are
            converted once, to the nearest ns of their float64 value: float64 seconds since 1970 are 238 ns apart,
            float32 ones 128 s. The minimum of int64, and NaN, mark an absent sample or target.
        target_times: (B, T), or (T,) for all batches, in any order, of the dtype of `source_times`.
        method: the name of an alignment.
        lengths: (B,) int64, how many samples of each row count; kept within [0, S].
        max_gap: widest gap between neighbours that are blended, in the unit of the times (ns or s); None for no limit.
        max_age: longest time from a target to a sample that is copied, in the same unit; None for no limit.
        out: (B, T, D) contiguous, of the dtype of `source`; allocated if None.
        return_valid: also return valid, (B, T) uint8: 0 none, 1 aligned, 2 held past the next sample.

    Raises:
        RoboCacheError: an argument is wrong; the message has its name, the expected value and the given one.
    """
    stream = Stream(source, source_times, method, lengths, max_gap, max_age)
    check_tensor("source", source)
    if source.requires_grad and torch.is_grad_enabled():
        if method in NAMES and not alignment(method).has_gradient:
            raise RoboCacheError(f"method: {method} has no gradient in source; use source.detach()")
        if out is not None:
            raise RoboCacheError("out: not supported with a gradient; leave it out, or use source.detach()")
        values, valid = _Resample.apply(source, stream, target_times)  # type: ignore[no-untyped-call]
    else:
        values, valid, _ = run_streams(
            (stream,), target_times, source.dtype, out, label=_label, valid=return_valid, age=False
        )
    if not return_valid:
        return values  # type: ignore[no-any-return]
    return values, valid[:, :, 0]


def _label(_: int, field: str) -> str:
    return _NAMES.get(field, field)


class _Resample(torch.autograd.Function):
    """The forward pass by the kernels; the backward pass sums the shares of each sample in a fixed order."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, stream: Stream, targets: Tensor) -> tuple[Tensor, Tensor]:
        values, valid, _ = run_streams((stream,), targets, None, None, label=_label, age=False)
        assert valid is not None
        ctx.stream, ctx.targets = stream._replace(data=source.detach()), targets
        ctx.mark_non_differentiable(valid)
        return values, valid

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0]
        batches, size, width = ctx.stream.data.shape
        selected = select_stream(ctx.stream, ctx.targets, _label)
        base = torch.arange(batches, device=grad.device)[:, None] * size
        some = selected.lower >= 0
        weight = selected.weight.to(torch.promote_types(grad.dtype, torch.float32))
        total = torch.zeros(batches * size, width, dtype=weight.dtype, device=grad.device)
        for rows, share in ((selected.lower, 1 - weight), (selected.upper, weight)):
            shares = grad[some].to(weight.dtype) * share[some][:, None]
            # index_put_ sorts before it adds: the same bits every time, unlike scattered atomics
            total.index_put_(((rows + base)[some],), shares, accumulate=True)
        return total.view(batches, size, width).to(grad.dtype), None, None


SLAB_BYTES = 64 << 20  # large enough for the full rate of PCIe, small enough that little is waited for at both ends


class _Buffers(NamedTuple):
    """Memory of the device for a slab."""

    data: Tensor
    times: Tensor
    copied: Any  # torch.cuda.Event
    read: Any


# More than 50 lines because of its signature and docstring.
def resample_from_host(
    source: Tensor,
    source_times: Tensor,
    target_times: Tensor,
    device: str | torch.device = "cuda",
    *,
    method: str = "linear",
    max_gap: float | None = None,
    max_age: float | None = None,
    out: Tensor | None = None,
    slab_bytes: int = SLAB_BYTES,
) -> Tensor:
    """Resample trajectories in host memory at new times, on a GPU.

    The result is that of `resample_trajectories`, bit for bit. The device has two slabs of the source at a time; one is
    copied while the other is resampled. The call returns before the device is done: the source must stay as it is until
    torch's current stream is.

    Args:
        source: (B, S, D) contiguous, in host memory. Pinned memory is copied at the rate of PCIe; other memory several
            times slower.
        source_times: (B, S), or (S,) for all batches, in host memory.
        target_times: (T,), of the dtype of `source_times`.
        device: a CUDA device.
        method: as in `resample_trajectories`.
        max_gap: as in `resample_trajectories`.
        max_age: as in `resample_trajectories`.
        out: (B, T, D) contiguous on the device; allocated if None.
        slab_bytes: of the source that is copied at once, at least one trajectory.

    Raises:
        RoboCacheError: an argument is wrong; the message has its name, the expected value and the given one.
    """
    place = torch.device(device)
    if place.type != "cuda":
        raise RoboCacheError(f"device: {place} is not a CUDA device; use resample_trajectories")
    stream = Stream(source, source_times, method, None, max_gap, max_age)
    shape = check_streams((stream,), target_times)
    if shape.device.type != "cpu" or target_times.dim() != 1:
        raise RoboCacheError(f"source: expected host memory, and one row of targets, got {shape.device}")
    if out is None:
        out = torch.empty((shape.batches, shape.targets, shape.width), dtype=source.dtype, device=place)
    rows = max(1, min(slab_bytes // max(1, source[:1].nbytes), shape.batches))
    each = source_times.dim() == 2
    targets = target_times.to(place)
    shared = None if each else source_times.to(place)
    with torch.cuda.device(out.device):
        current = torch.cuda.current_stream()
        copies: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        copies.wait_stream(current)  # which may still use what was in the buffers' memory
        buffers = [_buffers(source, source_times, rows, place) for _ in range(2)]
        for number, first in enumerate(range(0, shape.batches, rows)):
            some, slab = slice(first, min(first + rows, shape.batches)), buffers[number % 2]
            count = some.stop - first
            with torch.cuda.stream(copies):
                if number >= len(buffers):
                    copies.wait_event(slab.read)
                slab.data[:count].copy_(source[some], non_blocking=True)
                if each:
                    slab.times[:count].copy_(source_times[some], non_blocking=True)
                slab.copied.record(copies)
            current.wait_event(slab.copied)
            times = slab.times[:count] if shared is None else shared
            limits = {"method": method, "max_gap": max_gap, "max_age": max_age}
            resample_trajectories(slab.data[:count], times, targets, out=out[some], **limits)  # type: ignore[arg-type]
            slab.read.record(current)
    return out


def _buffers(source: Tensor, times: Tensor, rows: int, device: torch.device) -> _Buffers:
    data = torch.empty((rows, *source.shape[1:]), dtype=source.dtype, device=device)
    stamps = torch.empty((rows, *times.shape[1:]) if times.dim() == 2 else (0,), dtype=times.dtype, device=device)
    return _Buffers(data, stamps, torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]
