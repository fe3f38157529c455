"""The inputs of a resampling, checked, with times in nanoseconds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.tensor_checks import BLEND_DTYPES, check_dtype, check_method, check_source, check_tensor

TIME_DTYPES = (torch.int64, torch.float64, torch.float32)
ABSENT_NS = torch.iinfo(torch.int64).min  # marks a sample or a target as absent
NO_LIMIT_NS = torch.iinfo(torch.int64).max
_LIMIT = 2.0**62  # float seconds are kept within 146 years of zero, so that differences fit


def nanoseconds(times: Tensor) -> Tensor:
    """Times of any allowed dtype as int64 nanoseconds: seconds * 1e9 in float64, to the nearest; NaN is ABSENT_NS."""
    if times.dtype == torch.int64:
        return times
    seconds = times.double()
    whole = (seconds * 1e9).round_().clamp_(-_LIMIT, _LIMIT)
    return whole.nan_to_num_(nan=0.0).long().masked_fill_(seconds.isnan(), ABSENT_NS)


def limit_ns(name: str, limit: float | None, dtype: torch.dtype) -> int:
    """A limit in ns. It is given in the unit of the times: ns for int64, seconds for floats; None for no limit."""
    if limit is None:
        return NO_LIMIT_NS
    limit = _number(name, limit)
    if math.isnan(limit) or limit < 0 or (dtype == torch.int64 and limit != int(min(limit, NO_LIMIT_NS))):
        unit = "an integer number of ns" if dtype == torch.int64 else "seconds"
        raise RoboCacheError(f"{name}: expected {unit}, not negative, because times are {dtype}; got {limit}")
    return min(int(limit) if dtype == torch.int64 else round(min(limit, 9e9) * 1e9), NO_LIMIT_NS)


def _number(name: str, value: Any) -> float:
    for kind in (operator.index, float):  # integers of any type stay exact
        with suppress(TypeError, ValueError):
            return kind(value)
    raise RoboCacheError(f"{name}: expected a number or None, got {value!r}")


INT_LIMIT = 2**31
NO_GRADIENT = "streams: fuse has no gradient; detach the data, or use resample_trajectories for a gradient"


class Stream(NamedTuple):
    """One stream of samples, and how it is aligned to the target times."""

    data: Tensor  # (B, S, D) contiguous; float32, float16, bfloat16; where samples are copied also uint8
    times: Tensor  # (B, S), or (S,) for all batches; int64 ns, or float64 or float32 seconds
    method: str = "linear"  # the name of an alignment
    lengths: Tensor | None = None  # (B,) int64, how many samples of each row count
    max_gap: float | None = None  # between neighbours that are blended, in the unit of the times
    max_age: float | None = None  # from target to a sample that is copied


class Fused(NamedTuple):
    """All streams on one timeline."""

    values: Tensor  # (B, T, sum of D); zeros where invalid
    valid: Tensor  # (B, T, streams) uint8: 0 none, 1 aligned, 2 held past the next sample
    age: Tensor  # (B, T, streams) int64 ns, target minus the stamp of the earlier sample used; 0 where invalid


class Shape(NamedTuple):
    """The sizes, dtype and device of a checked call's result."""

    batches: int
    targets: int
    width: int  # columns of all streams
    dtype: torch.dtype
    device: torch.device


Label = Callable[[int, str], str]


def stream_label(index: int, field: str) -> str:
    """The name of a stream's field in an error."""
    return "target_times" if field == "targets" else field if field in ("out", "dtype") else f"streams[{index}].{field}"


def check_streams(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    label: Label = stream_label,
) -> Shape:
    """Check all inputs of a fusion.

    Raises:
        RoboCacheError: an input is wrong; the message has its name, the expected value and the given one.
    """
    if not streams:
        raise RoboCacheError("streams: expected at least one, got none")
    check_dtype(dtype)
    if out is not None:
        check_tensor(label(0, "out"), out)
    check_tensor(label(0, "targets"), targets)
    _check_times(label(0, "targets"), targets)
    for index, stream in enumerate(streams):
        check_method(stream.method)
        check_tensor(label(index, "times"), stream.times)
        check_source(label(index, "data"), stream.data, stream.method, dims=3)
    batches, device = streams[0].data.shape[0], streams[0].data.device
    for index, stream in enumerate(streams):
        size = stream.data.shape[1]
        _expect(label(index, "data"), stream.data, [(batches, *stream.data.shape[1:])], stream.data.dtype, device)
        _check_times(label(index, "times"), stream.times)
        shapes = [(size,), (batches, size)]
        _expect(label(index, "times"), stream.times, shapes, targets.dtype, device, "dtype of the target times")
        if stream.lengths is not None:
            _expect(label(index, "lengths"), stream.lengths, [(batches,)], torch.int64, device)
    count = targets.shape[-1] if targets.dim() else 0
    _expect(label(0, "targets"), targets, [(count,), (batches, count)], targets.dtype, device)
    width = sum(stream.data.shape[2] for stream in streams)
    if max(batches, count, width, *(stream.data.shape[1] for stream in streams)) >= INT_LIMIT:
        raise RoboCacheError(f"at most {INT_LIMIT - 1} batches, samples, targets and columns each")
    shape = Shape(batches, count, width, _output_dtype(streams, dtype, out, label), device)
    if out is not None:
        _expect(label(0, "out"), out, [(batches, count, width)], shape.dtype, device)
    return shape


def _check_times(name: str, times: Tensor) -> None:
    if times.dtype not in TIME_DTYPES:
        raise RoboCacheError(f"{name}: {times.dtype} is not int64 ns, float64 s or float32 s")


def check_marks(shape: Shape, streams: int, valid: Tensor | bool, age: Tensor | bool) -> None:
    """Check the tensors that are given for valid and age.

    Raises:
        RoboCacheError: one of them has a wrong shape, dtype or device.
    """
    for name, tensor, dtype in (("valid", valid, torch.uint8), ("age", age, torch.int64)):
        if not isinstance(tensor, bool):
            _expect(f"out.{name}", tensor, [(shape.batches, shape.targets, streams)], dtype, shape.device)


def _output_dtype(
    streams: Sequence[Stream], dtype: torch.dtype | None, out: Tensor | None, label: Label
) -> torch.dtype:
    given = {stream.data.dtype for stream in streams}
    dtype = dtype or (out.dtype if out is not None else given.pop() if len(given) == 1 else torch.float32)
    if dtype not in BLEND_DTYPES and any(stream.data.dtype != dtype for stream in streams):
        raise RoboCacheError(f"{label(0, 'dtype')}: {dtype} is not float32, float16 or bfloat16")
    return dtype


def _expect(
    name: str, tensor: Tensor, shapes: list[tuple[int, ...]], dtype: torch.dtype, device: torch.device, why: str = ""
) -> None:
    check_tensor(name, tensor)
    if tuple(tensor.shape) in shapes and tensor.dtype == dtype and tensor.device == device and tensor.is_contiguous():
        return
    expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
    strides = "" if tensor.is_contiguous() else f" with strides {tensor.stride()}; call .contiguous() first"
    raise RoboCacheError(
        f"{name}: expected contiguous {expected} {dtype}{f' ({why})' if why else ''} on {device}, "
        f"got {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}{strides}"
    )
