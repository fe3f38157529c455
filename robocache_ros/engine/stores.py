"""Payloads of one stream's samples by slot, and what becomes of those that a tick uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.ops.select import Selection


class Store(Protocol):
    """Keeps a payload per slot."""

    def put(self, slot: int, value: Any) -> None:
        """Keep the payload of a sample; ValueError where it does not fit the stream."""

    def drop(self, slots: Sequence[int]) -> None:
        """The samples of these slots are gone."""


class VectorStore:
    """Rows of float32 values.

    Args:
        width: D, values in a sample.
        method: how two of them are blended.
    """

    def __init__(self, width: int, method: str, capacity: int) -> None:
        self.width = width
        self.method = method
        self._rows = torch.zeros(capacity, width)
        self._array = self._rows.numpy()

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Keep (D,) float32 values."""
        if slot >= len(self._array):
            self._rows = torch.cat([self._rows, torch.zeros_like(self._rows)])
            self._array = self._rows.numpy()
        self._array[slot] = value

    def drop(self, slots: Sequence[int]) -> None:
        """Nothing to give back: the rows stay."""

    def take(self, slots: NDArray[np.int64], chosen: Selection, out: Tensor) -> None:
        """Write the (T, D) values that a selection of rows means; `slots` maps a row to its slot."""
        if not len(slots):
            out.zero_()
            return
        lower, upper = (np.where(rows >= 0, slots[rows], -1) for rows in (chosen.lower, chosen.upper))
        out.copy_(ops.blend(self._rows, lower, upper, chosen.weight, method=self.method))


class MediaStore:
    """Images or clouds as they came, converted when a tick first uses one and kept until it is dropped.

    Args:
        convert: payload -> tensor; RoboCacheError where it cannot be converted.
        empty: what stands for it where there is none, until a first one has shown its shape.
    """

    def __init__(self, convert: Callable[[Any], Tensor], empty: Tensor) -> None:
        self._convert = convert
        self._payloads: dict[int, Any] = {}
        self._converted: dict[int, Tensor] = {}
        self._empty = empty
        self._shown = False

    def put(self, slot: int, value: Any) -> None:
        """Keep a payload as it came."""
        self._payloads[slot] = value

    def drop(self, slots: Sequence[int]) -> None:
        """Let go of payloads and of what was made of them."""
        for slot in slots:
            self._payloads.pop(slot, None)
            self._converted.pop(slot, None)

    def convert(self, slot: int) -> Tensor:
        """The tensor made of a payload; ValueError where it is corrupt or of another shape than those before."""
        tensor = self._converted.get(slot)
        if tensor is None:
            tensor = self._convert(self._payloads[slot])
            same = (tensor.shape, tensor.dtype) == (self._empty.shape, self._empty.dtype)
            if self._shown and not same:
                raise ValueError(
                    f"is {tuple(tensor.shape)} {tensor.dtype} where it was {tuple(self._empty.shape)} "
                    f"{self._empty.dtype}; give the stream an image size"
                )
            if not same:
                self._empty = torch.zeros_like(tensor)
            self._shown = True
            self._converted[slot] = tensor
            self._payloads[slot] = None
        return tensor

    def take(self, slots: Sequence[int]) -> Tensor:
        """(T, ...) tensor of the converted payloads; zeros where the slot is -1."""
        if not slots:
            return self._empty.new_zeros((0, *self._empty.shape))
        return torch.stack([self.convert(slot) if slot >= 0 else self._empty for slot in slots])
