"""Arguments, checked at the edge: each function names what it refuses, and what it would take."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.arithmetic import ARITHMETIC, METHODS

BLEND_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(name: str, value: Any) -> None:
    """Refuse what is no tensor, or none that lies in the memory of the host or of a GPU."""
    if not isinstance(value, Tensor):
        raise RoboCacheError(
            f"{name}: expected a tensor, got {type(value).__name__}; torch.as_tensor makes one of an array or a list"
        )
    if value.layout != torch.strided or value.device.type not in ("cpu", "cuda"):
        raise RoboCacheError(
            f"{name}: expected a dense tensor on the CPU or a CUDA device, got {value.layout} on {value.device}"
        )


def check_bytes(name: str, data: Any) -> None:
    """Refuse what is no contiguous (nbytes,) uint8 tensor."""
    check_tensor(name, data)
    if data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
        raise RoboCacheError(f"{name}: expected contiguous (nbytes,) uint8, got {described(data)}")


def checked_out(out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`out`, or where it is None a new tensor, with whatever lies in it."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    check_tensor("out", out)
    if out.shape != shape or out.dtype != dtype or out.device != device or not out.is_contiguous():
        raise RoboCacheError(f"out: expected contiguous {shape} {dtype} on {device}, got {described(out)}")
    found: Tensor = out
    return found


def described(tensor: Tensor) -> str:
    """A tensor in words, without its values."""
    contiguous = "contiguous" if tensor.is_contiguous() else "strided"
    return f"{contiguous} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def checked_whole(name: str, value: Any) -> int:
    """A whole number of any kind as int."""
    try:
        return operator.index(value)
    except TypeError:
        raise RoboCacheError(f"{name}: expected a whole number, got {value!r}") from None


def checked_sizes(**sizes: Any) -> tuple[int, ...]:
    """Whole numbers, each by the name of its argument."""
    return tuple(checked_whole(name, value) for name, value in sizes.items())


def checked_wholes(name: str, values: Any, form: tuple[str, ...]) -> tuple[int, ...]:
    """Whole numbers, one for each of the names in `form`."""
    return tuple(_checked_each(name, values, form, operator.index, "whole numbers"))


def checked_floats(name: str, values: Any, form: tuple[str, ...]) -> list[float]:
    """Numbers, one for each of the names in `form`."""
    return _checked_each(name, values, form, float, "numbers")


def _checked_each(name: str, values: Any, form: tuple[str, ...], kind: Callable[[Any], Any], what: str) -> list[Any]:
    try:
        found = list(map(kind, values))
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several values
        found = []
    if len(found) != len(form):
        raise RoboCacheError(f"{name}: expected the {what} ({', '.join(form)}), got {values!r}")
    return found


def check_choice(name: str, value: Any, among: Collection[str]) -> None:
    """Refuse what is not one of some words."""
    if not isinstance(value, str) or value not in among:
        raise RoboCacheError(f"{name}: {value!r} is not one of {', '.join(among)}")


def checked_list(name: str, values: Any) -> list[Any]:
    """What a sequence holds."""
    try:
        return list(values)
    except TypeError:
        raise RoboCacheError(f"{name}: expected a sequence, got {values!r}") from None


def check_names(name: str, values: Any) -> None:
    """Refuse what is no sequence of strings, such as a single one."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in checked_list(name, values)):
        raise RoboCacheError(f"{name}: expected a sequence of names, got {values!r}")


def check_dtype(dtype: Any) -> None:
    """Refuse what is neither None nor a torch.dtype."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise RoboCacheError(f"dtype: expected a torch.dtype such as torch.float32, got {dtype!r}")


def check_method(method: str) -> None:
    """Refuse a method that is not one of the five."""
    check_choice("method", method, METHODS)


def check_source(name: str, source: Tensor, method: str, dims: int) -> None:
    """Refuse a source whose shape or dtype the method cannot take."""
    check_tensor(name, source)
    if source.dim() != dims:
        raise RoboCacheError(f"{name}: expected {dims} dimensions, got shape {tuple(source.shape)}")
    if source.dtype not in BLEND_DTYPES and not (source.dtype == torch.uint8 and method not in ARITHMETIC):
        raise RoboCacheError(
            f"{name}: dtype {source.dtype} cannot be aligned by {method}; float32, float16 and bfloat16 can, "
            f"and uint8 by hold and nearest"
        )
    if method == "slerp" and source.shape[-1] % 4:
        raise RoboCacheError(f"{name}: slerp takes quaternions, four columns each, got {source.shape[-1]} columns")
