"""Resampling of one batch of trajectories, with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.cpu import select_stream
from robocache_ros.ops.resample.fuse import run_streams
from robocache_ros.ops.resample.inputs import Stream
from robocache_ros.ops.tensor_checks import check_tensor

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
