"""The CPU backend: payloads in host memory, frames as CPU tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.buffer_pool import BufferPool, host_pool
from robocache_ros.engine.backends.cpu.stores import MediaStore, UnusedStore, VectorStore
from robocache_ros.engine.backends.decode_thread import DecodeThread, warm_up
from robocache_ros.engine.backends.interface import Int64, MemoryRow, Options, Selections
from robocache_ros.engine.backends.media_tensors import converter, converter_on, tensor_format
from robocache_ros.engine.frames import Frames
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

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
        self._media: dict[str, MediaStore | UnusedStore] = {
            s.name: _media_store(s, options, live) if options.media else UnusedStore() for s in layout.spec.media
        }

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory for a message."""
        return self._pools[feed].acquire(nbytes)

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample."""
        (self._vectors.get(stream) or self._media[stream]).put(slot, value)

    def put_rows(self, stream: str, slots: Int64, values: NDArray[np.float32]) -> None:
        """Keep the values of samples of a vector stream."""
        self._vectors[stream].put_rows(slots, values)

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """Discard the samples in these slots."""
        if stream in self._media:
            self._media[stream].drop(slots)

    def check(self, stream: str, slot: int) -> None:
        """Convert the payload; raises ValueError if it is corrupt."""
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
        media = {name: store.take(lower[:, self._columns[name]]) for name, store in self._media.items()}
        ages = selections.sample_age_ms
        return Frames(ticks_ns, fused, selections.valid, selections.age_ns, media, sample_age_ms=ages)

    def restart(self) -> None:
        """Do nothing: the backend has no state besides the samples."""

    def memory(self) -> list[MemoryRow]:
        """The memory in use; for images and clouds, the current amount."""
        held: dict[str, VectorStore | MediaStore | UnusedStore] = {**self._vectors, **self._media}
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
