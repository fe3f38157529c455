"""The payloads of one stream in host memory, by slot, and the tensors that ticks compute from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.buffer_pool import BufferPool
from robocache_ros.engine.backends.decode_thread import DecodeThread, Job
from robocache_ros.engine.backends.interface import Int64, TensorFormat
from robocache_ros.ops.window.window_selection import WindowSelection
from robocache_ros.ops.window.window_values import window_values
from robocache_ros.spec import StreamSpec

IMAGES = 4  # dimensions of (T, C, H, W)
WINDOW_VALUES = 1 << 22  # maximum number of values gathered at once


class VectorStore:
    """Rows of float32 values.

    Args:
        stream: a vector stream.
        capacity: initial number of slots.
    """

    def __init__(self, stream: StreamSpec, capacity: int) -> None:
        self._stream = stream
        self._rows = torch.zeros(capacity, stream.dim)
        self._array = self._rows.numpy()

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes."""
        return self._array.nbytes

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Keep (D,) float32 values."""
        if slot >= len(self._array):
            self._grow()
        self._array[slot] = value

    def put_rows(self, slots: Int64, values: NDArray[np.float32]) -> None:
        """Keep (M, D) float32 values."""
        while len(slots) and slots.max() >= len(self._array):
            self._grow()
        self._array[slots] = values

    def _grow(self) -> None:
        self._rows = torch.cat([self._rows, torch.zeros_like(self._rows)])
        self._array = self._rows.numpy()

    def take(self, lower: Int64, upper: Int64, weight: NDArray[np.float32], out: Tensor) -> None:
        """Write the (T, D) values between slots; see Selections."""
        out.copy_(ops.blend(self._rows, lower, upper, weight, method=self._stream.method))

    def take_windows(self, windows: WindowSelection, out: Tensor) -> None:
        """Write the (T, D) or (T, n * D) values of windows, for a limited number of ticks at a time."""
        ticks = max(1, WINDOW_VALUES // (windows.rows.shape[1] * self._rows.shape[1]))
        for first in range(0, len(out), ticks):
            some = slice(first, first + ticks)
            values = window_values(self._rows, windows.rows[some], windows.counts[some], self._stream.reduce)
            out[some] = values.flatten(1)


class MediaStore:
    """Images or clouds as received; each is converted when a tick first uses it, and kept until it is dropped.

    Args:
        convert: payload -> tensor; raises ValueError if the payload cannot be converted.
        tensor_format: format of the tensors.
        thread: converts a payload as soon as it arrives; None: the thread of the tick converts it.
        pool: memory for the frames; None: new memory for each frame.
        channels_last: uint8 images are in this memory format.
    """

    def __init__(
        self,
        convert: Callable[[Any], Tensor],
        tensor_format: TensorFormat,
        thread: DecodeThread | None = None,
        pool: BufferPool | None = None,
        channels_last: bool = False,
    ) -> None:
        self.format = tensor_format
        self._convert = convert
        self._thread = thread
        self._pool = pool
        self._channels_last = channels_last
        self._payloads: dict[int, Any] = {}  # by slot; jobs of the thread, if there is one
        self._converted: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes."""
        payloads = [item.payload if isinstance(item, Job) else item for item in self._payloads.values()]
        raw = sum(payload.data.nbytes for payload in payloads if payload is not None)
        ahead = self._thread.nbytes if self._thread else 0
        return int(raw) + ahead + sum(tensor.nbytes for tensor in self._converted.values())

    def put(self, slot: int, value: Any) -> None:
        """Keep a payload as received."""
        self._payloads[slot] = self._thread.submit(value) if self._thread else value

    def drop(self, slots: Sequence[int]) -> None:
        """Discard payloads and the tensors computed from them."""
        for slot in slots:
            item = self._payloads.pop(slot, None)
            if self._thread and item is not None:
                self._thread.discard(item)
            self._converted.pop(slot, None)

    def convert(self, slot: int) -> Tensor:
        """The tensor of a payload; raises ValueError if it is corrupt or its format differs from earlier ones."""
        tensor = self._converted.get(slot)
        if tensor is None:
            item = self._payloads[slot]
            tensor = self._thread.result(item) if self._thread else self._convert(item)
            self.format.require(tuple(tensor.shape), tensor.dtype)
            self._converted[slot] = tensor
            self._payloads[slot] = None
        return tensor

    def take(self, slots: Int64) -> Tensor:
        """(T, ...) tensor of the converted payloads; zeros for slot -1."""
        if self._thread:
            self._thread.end_tick()
        out = self._empty(len(slots))
        for row, slot in zip(out, slots.tolist(), strict=True):
            if slot >= 0:  # with NumPy: the threads of torch would take time from the encoders of an export
                np.copyto(row.numpy(), self.convert(slot).numpy())
            else:
                row.zero_()
        return out

    def _empty(self, ticks: int) -> Tensor:
        shape, dtype = (ticks, *self.format.shape), self.format.dtype
        packed = self._channels_last and dtype == torch.uint8 and len(shape) == IMAGES
        if packed:
            shape = (ticks, *shape[2:], shape[1])
        nbytes = math.prod(shape) * dtype.itemsize
        if self._pool is None or not nbytes:
            out = torch.empty(shape, dtype=dtype)
        else:
            out = torch.from_numpy(self._pool.acquire(nbytes)[:nbytes]).view(dtype).view(shape)
        return out.permute(0, 3, 1, 2) if packed else out


class UnusedStore:
    """In place of a `MediaStore`, if only the times of images or clouds are of interest: keeps and converts nothing."""

    nbytes = 0

    def put(self, slot: int, value: Any) -> None:
        """Keep nothing."""

    def drop(self, slots: Sequence[int]) -> None:
        """Do nothing."""

    def convert(self, slot: int) -> None:
        """Accept every payload."""

    def take(self, lower: Int64) -> Tensor:
        """Return an empty tensor for each tick."""
        return torch.empty(len(lower), 0, dtype=torch.uint8)
