"""Whether tensors are like those of an earlier call: in class, dtype, device, sizes, strides, gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# What torch.compile asks before it runs compiled code again, in C++: ten tensors take it half a microsecond, and asking
# for what it compares four.
_Guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def like(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A function that tells whether as many arguments are tensors like these; these are not kept."""
    try:
        sizes, strides = ([list(get(tensor)) for tensor in tensors] for get in (Tensor.size, Tensor.stride))
        guards = _Guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
        if check(*tensors):  # not of one tensor twice, nor of one that wants a gradient where that is switched off
            return check
    except (AttributeError, TypeError):  # this torch has it not, or has another
        pass
    wanted = [_described(tensor) for tensor in tensors]
    return lambda *others: [_described(other) for other in others] == wanted


def _described(tensor: Any) -> tuple[Any, ...] | None:
    if not isinstance(tensor, Tensor):
        return None
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad
