"""The CPU backend: payloads in host memory, frames as CPU tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.backend import Choices, Int64, MemoryRow
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.media import converter, form_of
from robocache_ros.engine.rooms import Rooms, host_rooms
from robocache_ros.engine.stores import MediaStore, VectorStore
from robocache_ros.layout import Layout


class HostBackend:
    """Makes frames with the CPU's operations.

    Args:
        layout: the columns; its spec names the streams.
        capacities: slots of each stream to begin with; a slot beyond them makes room for itself.
        normalized: images as float32, normalised as their spec says.
    """

    device = torch.device("cpu")

    def __init__(self, layout: Layout, capacities: Mapping[str, int], normalized: bool) -> None:
        self._layout = layout
        self._columns = {s.name: i for i, s in enumerate(layout.spec.streams)}
        self._vectors = {s.name: VectorStore(s.width, s.align, capacities[s.name]) for s in layout.spec.vectors}
        self._rooms: defaultdict[str, Rooms] = defaultdict(host_rooms)
        self._media = {s.name: MediaStore(converter(s, normalized), form_of(s, normalized)) for s in layout.spec.media}

    def room(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory to put a message into."""
        return self._rooms[feed].lend(nbytes)

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample."""
        (self._vectors.get(stream) or self._media[stream]).put(slot, value)

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """The samples of these slots are gone."""
        if stream in self._media:
            self._media[stream].drop(slots)

    def check(self, stream: str, slot: int) -> None:
        """Convert; ValueError where the payload is corrupt."""
        self._media[stream].convert(slot)

    def render(self, ticks_ns: Int64, choices: Choices) -> Frames:
        """The frames of T ticks; every slot that is chosen has been checked."""
        fused = torch.zeros(len(ticks_ns), self._layout.width)
        lower, upper, weight = choices.lower, choices.upper, choices.weight
        for name, vectors in self._vectors.items():
            i = self._columns[name]
            vectors.take(lower[:, i], upper[:, i], weight[:, i], fused[:, self._layout.slots[name]])
        media = {name: store.take(lower[:, self._columns[name]]) for name, store in self._media.items()}
        return Frames(ticks_ns, fused, choices.valid, choices.age_ns, media)

    def restart(self) -> None:
        """Nothing outlasts the samples."""

    def memory(self) -> list[MemoryRow]:
        """What is held; of images and clouds, what they take up at present."""
        held: dict[str, VectorStore | MediaStore] = {**self._vectors, **self._media}
        return [MemoryRow(name, "samples", "host", 1, store.nbytes) for name, store in held.items()]

    def counters(self) -> dict[str, int]:
        """Nothing can go wrong here that is not the samples' fault."""
        return {}
