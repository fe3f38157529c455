"""The CPU backend of resampling and blending, in NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.alignments import alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.inputs import (
    NO_GRADIENT,
    Label,
    Stream,
    check_marks,
    check_streams,
    limit_ns,
    nanoseconds,
    stream_label,
)
from robocache_ros.ops.resample.selection import BatchSelection, select_batch


def run_streams_cpu(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    label: Label,
    valid: Tensor | bool,
    age: Tensor | bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`run_streams` on the CPU."""
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
        selected = select_stream(stream, targets, label, index)
        size, width = stream.data.shape[1:]
        base = torch.arange(shape.batches)[:, None] * size
        lower = torch.where(selected.lower >= 0, selected.lower + base, -1).numpy()
        upper = torch.where(selected.upper >= 0, selected.upper + base, -1).numpy()
        rows = stream.data.reshape(shape.batches * size, width)
        blended = blend_rows(rows, lower, upper, selected.weight.numpy(), stream.method, shape.dtype)
        out[:, :, column : column + width] = blended
        column += width
        if valids is not None:
            valids[:, :, index] = selected.valid
        if ages is not None:
            ages[:, :, index] = selected.age_ns
    return out, valids, ages


def select_stream(stream: Stream, targets: Tensor, label: Label = stream_label, index: int = 0) -> BatchSelection:
    """Select the samples of each target of a checked stream, on the stream's device."""
    batches = stream.data.shape[0]
    times = nanoseconds(stream.times).expand(batches, -1).contiguous()
    ticks = nanoseconds(targets).expand(batches, -1).contiguous()
    max_gap = limit_ns(label(index, "max_gap"), stream.max_gap, stream.times.dtype)
    max_age = limit_ns(label(index, "max_age"), stream.max_age, stream.times.dtype)
    return select_batch(times, ticks, stream.lengths, stream.method, max_gap, max_age)


def blend_rows(
    source: Tensor,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    weight: NDArray[np.float32],
    method: str,
    dtype: torch.dtype,
) -> Tensor:
    """Blend rows of (S, D) `source`, selected by three (...) arrays, into (..., D) of `dtype`; checks no argument."""
    if not len(source):
        return torch.zeros((*lower.shape, source.shape[1]), dtype=dtype)
    source = source.detach()
    blended = rounded(source[torch.from_numpy(np.maximum(lower, 0))], dtype)
    mix = alignment(method).blend
    if mix is not None:
        between = (lower >= 0) & (upper >= 0) & (weight != 0) & (upper != lower)
        before = source[torch.from_numpy(lower[between])].float().numpy()
        after = source[torch.from_numpy(upper[between])].float().numpy()
        with np.errstate(all="ignore"):  # NaN and infinities are ordinary values here
            mixed = mix(before, after, weight[between][:, None])
        blended[torch.from_numpy(between)] = canonical(torch.from_numpy(mixed).to(dtype))
    blended[torch.from_numpy(lower < 0)] = 0
    return blended


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Copied samples in `dtype`: the same bits if it is theirs, else rounded once."""
    return values if values.dtype == dtype else canonical(values.float().to(dtype))


def canonical(values: Tensor) -> Tensor:
    """Replace every NaN by the canonical one: processors differ in the sign and payload of the NaN they produce."""
    if values.dtype == torch.float32:
        return values.masked_fill_(values.isnan(), float("nan"))
    if values.is_floating_point():  # 0x7fff, which GPUs round a NaN to
        values.view(torch.int16).masked_fill_(values.isnan(), 0x7FFF)
    return values
