"""What lies between the host's choice of samples and the tensors made of them: one protocol, two backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.ops.select import Pick, Selection

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Choices:
    """What T ticks take of N streams, in the order of the spec: selections with slots for rows."""

    lower: Int64  # (T, N) slot of the sample before the tick (of the one taken), -1 where there is none
    upper: Int64  # (T, N) slot of the sample after it; `lower` where nothing is blended
    weight: NDArray[np.float32]  # (T, N) share of `upper`
    valid: NDArray[np.uint8]  # (T, N) 0 none, 1 aligned, 2 held past its neighbour
    age_ns: Int64  # (T, N)

    @classmethod
    def room(cls, ticks: int, streams: int) -> Choices:
        """For so many ticks and streams, to be filled by `put`."""
        shape = (ticks, streams)
        lower, upper, age_ns = np.empty((3, *shape), np.int64)
        return cls(lower, upper, np.empty(shape, np.float32), np.empty(shape, np.uint8), age_ns)

    def put(self, stream: int, chosen: Selection, slots: Int64) -> None:
        """Fill the column of a stream; `slots` maps a row to its slot."""
        for into, rows in ((self.lower, chosen.lower), (self.upper, chosen.upper)):
            into[:, stream] = np.where(rows >= 0, slots[rows], -1) if len(slots) else -1
        self.weight[:, stream] = chosen.weight
        self.valid[:, stream] = chosen.valid
        self.age_ns[:, stream] = chosen.age_ns

    def put_one(self, stream: int, chosen: Pick, slots: Int64) -> None:
        """The same for the only tick."""
        self.lower[0, stream] = slots[chosen.lower] if chosen.lower >= 0 else -1
        self.upper[0, stream] = slots[chosen.upper] if chosen.upper >= 0 else -1
        self.weight[0, stream] = chosen.weight
        self.valid[0, stream] = chosen.valid
        self.age_ns[0, stream] = chosen.age_ns


@dataclass(frozen=True)
class Options:
    """How frames are made; see FusionEngine."""

    normalized: bool = False
    jpeg: str = "cpu"
    payload_bytes: Mapping[str, int] = field(default_factory=dict)


class Form:
    """The shape and type of a stream's tensors: what its spec declares, until the first one has shown it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self._shown = False

    def agree(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Take note of the first tensor's form; ValueError where a later one differs from it."""
        if self._shown and (shape, dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"is {shape} {dtype} where it was {self.shape} {self.dtype}; give the stream an image size"
            )
        self.shape, self.dtype, self._shown = shape, dtype, True


@dataclass(frozen=True)
class MemoryRow:
    """Memory that the engine holds for one purpose."""

    stream: str  # empty where it serves all of them
    purpose: str  # samples, frames, staging, plan
    place: str  # host, pinned or gpu
    slots: int
    slot_bytes: int  # 0 where the first sample is yet to show it

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes


class Backend(Protocol):
    """Keeps the payloads of all streams by slot, and makes frames of those that were chosen."""

    device: torch.device

    def room(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """At least `nbytes` uint8 to put a message into; in use as long as anything refers to it."""

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample."""

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """The samples of these slots are gone."""

    def check(self, stream: str, slot: int) -> None:
        """ValueError where the payload of an image or a cloud proves corrupt; converts or decodes it if that tells."""

    def render(self, ticks_ns: Int64, choices: Choices) -> Frames:
        """The frames of T ticks; every slot that is chosen has been checked."""

    def restart(self) -> None:
        """The timeline starts anew: no sample is left."""

    def memory(self) -> list[MemoryRow]:
        """What is held, by purpose."""

    def counters(self) -> dict[str, int]:
        """What a person should know of, by name."""
