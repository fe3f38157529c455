"""Payloads of one stream's samples by slot on the host, and what becomes of those that a tick uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.engine.backend import Form, Int64


class VectorStore:
    """Rows of float32 values.

    Args:
        width: D, values in a sample.
        method: how two of them are blended.
        capacity: slots to begin with.
    """

    def __init__(self, width: int, method: str, capacity: int) -> None:
        self.method = method
        self._rows = torch.zeros(capacity, width)
        self._array = self._rows.numpy()

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._array.nbytes

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Keep (D,) float32 values."""
        if slot >= len(self._array):
            self._rows = torch.cat([self._rows, torch.zeros_like(self._rows)])
            self._array = self._rows.numpy()
        self._array[slot] = value

    def take(self, lower: Int64, upper: Int64, weight: NDArray[np.float32], out: Tensor) -> None:
        """Write the (T, D) values between slots; see Choices."""
        out.copy_(ops.blend(self._rows, lower, upper, weight, method=self.method))


class MediaStore:
    """Images or clouds as they came, converted when a tick first uses one and kept until it is dropped.

    Args:
        convert: payload -> tensor; ValueError where it cannot be converted.
        form: the shape of its tensors.
    """

    def __init__(self, convert: Callable[[Any], Tensor], form: Form) -> None:
        self.form = form
        self._convert = convert
        self._payloads: dict[int, Any] = {}
        self._converted: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        raw = sum(payload.data.nbytes for payload in self._payloads.values() if payload is not None)
        return int(raw) + sum(tensor.nbytes for tensor in self._converted.values())

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
            self.form.agree(tuple(tensor.shape), tensor.dtype)
            self._converted[slot] = tensor
            self._payloads[slot] = None
        return tensor

    def take(self, slots: Int64) -> Tensor:
        """(T, ...) tensor of the converted payloads; zeros where the slot is -1."""
        out = torch.zeros((len(slots), *self.form.shape), dtype=self.form.dtype)
        for row, slot in zip(out, slots.tolist(), strict=True):
            if slot >= 0:
                row.copy_(self.convert(slot))
        return out
