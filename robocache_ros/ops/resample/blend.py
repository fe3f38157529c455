"""Blends of the rows of one buffer, for samples that the caller selected."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.cpu import blend_rows
from robocache_ros.ops.resample.cuda.blend import blend_cuda
from robocache_ros.ops.tensor_checks import check_method, check_source, check_tensor

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
        upper: (T,) int64 rows, -1 for none: the row is then source[lower] alone, whatever its weight. Ignored
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
