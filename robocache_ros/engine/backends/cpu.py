"""The CPU backend."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.buffer_pool import BufferPool, host_pool
from robocache_ros.engine.backends.interface import Int64, MemoryRow, Options, Selections, TensorFormat, TickSelections
from robocache_ros.engine.backends.media import DecodeThread, Job, converter, converter_on, tensor_format, warm_up
from robocache_ros.engine.frames import Frames
from robocache_ros.ops.window import window_values
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

IMAGES = 4  # dimensions of (T, C, H, W)
WINDOW_VALUES = 1 << 22  # maximum number of values gathered at once


class VectorStore:
    """Rows of float32 values."""

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

    def take_windows(self, slots: Int64, out: Tensor) -> None:
        """Write the (T, D) or (T, n * D) values of windows of (T, n) slots, for a limited number of ticks at a time."""
        ticks = max(1, WINDOW_VALUES // (slots.shape[1] * self._rows.shape[1]))
        for first in range(0, len(out), ticks):
            some = slots[first : first + ticks]
            counts = np.count_nonzero(some >= 0, axis=1)
            values = window_values(self._rows, some, counts, self._stream.reduce).flatten(1)
            out[first : first + ticks, : values.shape[1]] = values


@dataclass(eq=False)
class MediaStore:
    """Images or clouds as received; each is converted when a tick first uses it, and kept until it is dropped."""

    convert_payload: Callable[[Any], Tensor]  # raises ValueError if the payload cannot be converted
    format: TensorFormat
    thread: DecodeThread | None = None  # converts a payload as soon as it arrives; None: the thread of the tick does
    pool: BufferPool | None = None  # memory for the frames; None: new memory for each frame
    channels_last: bool = False  # uint8 images are in this memory format

    def __post_init__(self) -> None:
        self._payloads: dict[int, Any] = {}  # by slot; jobs of the thread, if there is one
        self._converted: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes."""
        payloads = [item.payload if isinstance(item, Job) else item for item in self._payloads.values()]
        raw = sum(payload.data.nbytes for payload in payloads if payload is not None)
        ahead = self.thread.nbytes if self.thread else 0
        return int(raw) + ahead + sum(tensor.nbytes for tensor in self._converted.values())

    def put(self, slot: int, value: Any) -> None:
        """Keep a payload as received, in place of that of a sample that was dropped from a full index."""
        self.drop([slot])
        self._payloads[slot] = self.thread.submit(value) if self.thread else value

    def drop(self, slots: Sequence[int]) -> None:
        """Discard payloads and the tensors computed from them."""
        for slot in slots:
            item = self._payloads.pop(slot, None)
            if self.thread and item is not None:
                self.thread.discard(item)
            self._converted.pop(slot, None)

    def convert(self, slot: int) -> Tensor:
        """The tensor of a payload; raises ValueError if it is corrupt or its format differs from earlier ones."""
        tensor = self._converted.get(slot)
        if tensor is None:
            item = self._payloads[slot]
            tensor = self.thread.result(item) if self.thread else self.convert_payload(item)
            self.format.require(tuple(tensor.shape), tensor.dtype)
            self._converted[slot] = tensor
            self._payloads[slot] = None
        return tensor

    def take(self, slots: Int64) -> Tensor:
        """(T, ...) tensor of the converted payloads; zeros for slot -1."""
        if self.thread:
            self.thread.end_tick()
        out = self._empty(len(slots))
        for row, slot in zip(out, slots.tolist(), strict=True):
            if slot >= 0:  # with NumPy: the threads of torch would take time from the encoders of an export
                np.copyto(row.numpy(), self.convert(slot).numpy())
            else:
                row.zero_()
        return out

    def _empty(self, ticks: int) -> Tensor:
        shape, dtype = (ticks, *self.format.shape), self.format.dtype
        packed = self.channels_last and dtype == torch.uint8 and len(shape) == IMAGES
        if packed:
            shape = (ticks, *shape[2:], shape[1])
        nbytes = math.prod(shape) * dtype.itemsize
        if self.pool is None or not nbytes:
            out = torch.empty(shape, dtype=dtype)
        else:
            out = torch.from_numpy(self.pool.acquire(nbytes)[:nbytes]).view(dtype).view(shape)
        return out.permute(0, 3, 1, 2) if packed else out


FRAME_BLOCKS = 5  # for a stream: frames that are being computed, that wait to be written, and that are being written


class CpuBackend:
    """Computes frames with the operations for the CPU; of a recording, a GPU may convert the images and clouds.

    Args:
        layout: the columns; its spec names the streams.
        capacities: initial slots of each stream; more are added when needed.
        options: how frames are computed.
        live: decode compressed images in separate threads, within the time limit of a tick.
    """

    device = torch.device("cpu")

    def __init__(self, layout: Layout, capacities: Mapping[str, int], options: Options, live: bool) -> None:
        self._layout = layout
        self._columns = {s.name: i for i, s in enumerate(layout.spec.streams)}
        self._vectors = {s.name: VectorStore(s, capacities[s.name]) for s in layout.spec.vectors}
        self._pools: defaultdict[str, BufferPool] = defaultdict(host_pool)
        # Empty, if only the times of images and clouds are of interest.
        self._media = {s.name: _media_store(s, options, live) for s in layout.spec.media if options.media}

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory for a message."""
        return self._pools[feed].acquire(nbytes)

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample."""
        if store := self._vectors.get(stream) or self._media.get(stream):
            store.put(slot, value)

    def put_rows(self, stream: str, slots: Int64, values: NDArray[np.float32]) -> None:
        """Keep the values of samples of a vector stream."""
        self._vectors[stream].put_rows(slots, values)

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """Discard the samples in these slots."""
        if stream in self._media:
            self._media[stream].drop(slots)

    def check(self, stream: str, slot: int) -> None:
        """Convert the payload; raises ValueError if it is corrupt."""
        if stream in self._media:
            self._media[stream].convert(slot)

    def render(self, ticks_ns: Int64, selections: Selections) -> Frames:
        """Compute the frames of T ticks; every selected slot has been checked."""
        fused = torch.zeros(len(ticks_ns), self._layout.width)
        lower, upper, weight = selections.lower, selections.upper, selections.weight
        for name, vectors in self._vectors.items() if len(ticks_ns) else ():
            i, out = self._columns[name], fused[:, self._layout.slots[name]]
            if i in selections.windows:
                vectors.take_windows(selections.windows[i], out)
            else:
                vectors.take(lower[:, i], upper[:, i], weight[:, i], out)
        media = {s.name: torch.empty(len(ticks_ns), 0, dtype=torch.uint8) for s in self._layout.spec.media}
        media |= {name: store.take(lower[:, self._columns[name]]) for name, store in self._media.items()}
        ages = selections.sample_age_ms
        return Frames(ticks_ns, fused, selections.valid, selections.age_ns, media, sample_age_ms=ages)

    def render_one(self, tick_ns: int, selected: TickSelections) -> Frames:
        """Compute the frame of a single tick, as `render`."""
        return self.render(np.array([tick_ns], np.int64), Selections.of(selected))

    def restart(self) -> None:
        """Do nothing: the backend has no state besides the samples."""

    def memory(self) -> list[MemoryRow]:
        """The memory in use; for images and clouds, the current amount."""
        held: dict[str, VectorStore | MediaStore] = {**self._vectors, **self._media}
        return [MemoryRow(name, "samples", "host", 1, store.nbytes) for name, store in held.items()]

    def counters(self) -> dict[str, int]:
        """Empty: the CPU needs no uploads and no graphs."""
        return {}


def _media_store(stream: StreamSpec, options: Options, live: bool) -> MediaStore:
    channels_last = options.channels_last and stream.kind == "image"
    if options.converts.type == "cpu":
        convert = converter(stream, options.normalized, channels_last)
    else:
        convert = converter_on(options.converts, stream, options.normalized, channels_last, options.jpeg)
    thread = None
    if live and stream.kind == "image" and stream.type.endswith("/CompressedImage"):
        warm_up(convert)
        thread = DecodeThread(stream.name, convert, lambda tensor: int(tensor.nbytes))
    # The frames of a recording take tens of MB each time; mapping new pages costs more than filling them.
    pool = None if live else host_pool(FRAME_BLOCKS)
    return MediaStore(convert, tensor_format(stream, options.normalized), thread, pool, channels_last)
