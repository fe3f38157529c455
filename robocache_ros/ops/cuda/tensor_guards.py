"""Whether tensors are like those of an earlier call: class, dtype, device, sizes, strides and requires_grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# The C++ guards by which torch.compile decides whether to reuse compiled code. For ten tensors they take half a
# microsecond; the comparison in Python takes four.
_Guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def like(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A function that tells whether its arguments are tensors like these. It keeps no reference to these."""
    try:
        sizes, strides = ([list(get(tensor)) for tensor in tensors] for get in (Tensor.size, Tensor.stride))
        guards = _Guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
        if check(*tensors):  # not of one tensor given twice, or of a gradient while gradients are disabled
            return check
    except (AttributeError, TypeError):  # this version of torch has no such guards, or others
        pass
    wanted = [_described(tensor) for tensor in tensors]
    return lambda *others: [_described(other) for other in others] == wanted


def _described(tensor: Any) -> tuple[Any, ...] | None:
    if not isinstance(tensor, Tensor):
        return None
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad
