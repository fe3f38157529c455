"""Rows between the rows of one buffer, for samples that were chosen elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.arithmetic import ARITHMETIC
from robocache_ros.ops.checks import check_method, check_source, check_tensor
from robocache_ros.ops.cuda.resample import blend_cuda

Rows = Tensor | NDArray[Any]


def blend(source: Tensor, lower: Rows, upper: Rows, weight: Rows, *, method: str, out: Tensor | None = None) -> Tensor:
    """Blend pairs of rows: `source[lower] + weight * (source[upper] - source[lower])`, or its like for `method`.

    A row is `source[lower]` to the bit where weight is 0 or upper equals lower, and zeros where lower is negative. The
    arithmetic is float32, each operation rounded on its own, and rounded once more to the dtype of `source`; the CPU
    and CUDA backends give the same bits. A NaN that comes out of arithmetic is the canonical one.

    Args:
        source: (S, D) float32, float16 or bfloat16; for hold and nearest also uint8. For slerp D is a multiple of 4.
        lower: (T,) int64 rows, -1 for none; on the CPU a NumPy array or a tensor, on CUDA a tensor beside `source`.
        upper: (T,) int64 rows; looked at where lower is not negative. Rows must lie in [0, S).
        weight: (T,) float32 in [0, 1].
        method: linear, slerp, angle, hold or nearest; the last two take source[lower] whole.
        out: (T, D) of the dtype and device of `source`, contiguous; made if not given.

    Raises:
        RoboCacheError: a shape, dtype or method that is not one of these.
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
        raise RoboCacheError(f"lower, upper: rows must be below {len(source)}, the rows of source")
    return out.copy_(blend_rows(source, lower, upper, weight, method, source.dtype))


def _array(name: str, rows: Any) -> NDArray[Any]:
    if not isinstance(rows, np.ndarray):
        check_tensor(name, rows)
        if rows.is_cuda:
            raise RoboCacheError(f"{name}: is on {rows.device}, and source on the CPU")
    return torch.as_tensor(rows).detach().numpy()


def blend_rows(
    source: Tensor,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    weight: NDArray[np.float32],
    method: str,
    dtype: torch.dtype,
) -> Tensor:
    """The CPU's blend: (S, D) and three (...) arrays to (..., D) of `dtype`; nothing is checked."""
    if not len(source):
        return torch.zeros((*lower.shape, source.shape[1]), dtype=dtype)
    source = source.detach()
    taken = rounded(source[torch.from_numpy(np.maximum(lower, 0))], dtype)
    if method in ARITHMETIC:
        between = (lower >= 0) & (weight != 0) & (upper != lower)
        before = source[torch.from_numpy(lower[between])].float().numpy()
        after = source[torch.from_numpy(upper[between])].float().numpy()
        with np.errstate(all="ignore"):  # NaN and infinities are values like others here
            mixed = ARITHMETIC[method](before, after, weight[between][:, None])
        taken[torch.from_numpy(between)] = canonical(torch.from_numpy(mixed).to(dtype))
    taken[torch.from_numpy(lower < 0)] = 0
    return taken


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Samples taken whole: the very bits, or once rounded to another dtype."""
    return values if values.dtype == dtype else canonical(values.float().to(dtype))


def canonical(values: Tensor) -> Tensor:
    """Give every NaN the same bits: processors differ in the sign and payload of the one they make."""
    if values.dtype == torch.float32:
        return values.masked_fill_(values.isnan(), float("nan"))
    if values.is_floating_point():  # all ones but for the sign, as GPUs round NaN to 16 bits
        values.view(torch.int16).masked_fill_(values.isnan(), 0x7FFF)
    return values
