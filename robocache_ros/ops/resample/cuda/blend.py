"""Launches of kernels/resample/blend.cu."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.resample.cuda.arguments import BlendArguments
from robocache_ros.ops.resample.cuda.items import IN_FLIGHT, StreamFlag, item_traits

BLEND_THREADS = 256


def blend_cuda(source: Tensor, lower: Any, upper: Any, weight: Any, method: str, out: Tensor | None) -> Tensor:
    """`blend` on the GPU: one launch. Rows past the end are clamped, because a check would wait for the GPU."""
    samples, width = source.shape
    count = lower.shape[0] if isinstance(lower, Tensor) and lower.dim() == 1 else -1
    if out is None:
        out = source.new_empty((max(count, 0), width))
    for name, tensor, expected, dtype in (
        ("source", source, (samples, width), source.dtype),
        ("lower", lower, (count,), torch.int64),
        ("upper", upper, (count,), torch.int64),
        ("weight", weight, (count,), torch.float32),
        ("out", out, (count, width), source.dtype),
    ):
        if not (
            isinstance(tensor, Tensor)
            and tensor.shape == expected
            and tensor.dtype == dtype
            and tensor.device == source.device
            and tensor.is_contiguous()
        ):
            shape = expected if count >= 0 else "(T,)"
            raise RoboCacheError(
                f"{name}: expected a contiguous {shape} {dtype} tensor on {source.device}, got {tensor!r}"
            )
    if count == 0 or width == 0:
        return out
    rows = max(1, min(1000, BLEND_THREADS * 32 // (width * source.element_size())))
    skews = (source.data_ptr() & 15, out.data_ptr() & 15)
    defines = blend_defines(method, source.dtype, width, skews, rows)
    arguments = (
        source.data_ptr(),
        out.data_ptr(),
        lower.data_ptr(),
        upper.data_ptr(),
        weight.data_ptr(),
        count,
        samples,
        width,
        rows,
    )
    launchable = kernel("resample/blend.cu", "blend_rows", packer(BlendArguments), source.get_device(), defines)
    launchable.launch((-(-count // rows), 1, 1), BLEND_THREADS, 16 * rows, *arguments)
    return out


def blend_defines(method: str, dtype: torch.dtype, width: int, skews: tuple[int, int], rows: int) -> tuple[str, ...]:
    """The kernel's definitions, for `rows` rows per block; skews: addresses of source and output modulo 16."""
    traits, *_ = item_traits(method, dtype, dtype, width, skews, width, ends=rows * width)
    return f"TRAITS={traits},{int(StreamFlag.WIDE)},0", f"THREADS={BLEND_THREADS}", f"IN_FLIGHT={IN_FLIGHT}"
