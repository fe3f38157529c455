"""The interface between the selection of samples on the host and a backend, which computes tensors from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.ops.resample.selection import ALIGNED, NONE, Selection, TickSelection
from robocache_ros.ops.window import WindowSelection
from robocache_ros.units import NS_PER_MS

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Selections:
    """The samples selected for T ticks of N streams, as slots of a backend; streams are in the order of the spec."""

    lower: Int64  # (T, N) slot of the sample before the tick, or of the only one used; -1 if there is none
    upper: Int64  # (T, N) slot of the sample after the tick; `lower` if nothing is blended
    weight: NDArray[np.float32]  # (T, N) share of `upper`
    valid: NDArray[np.uint8]  # (T, N) 0 invalid, 1 aligned, 2 held
    age_ns: Int64  # (T, N)
    sample_age_ms: NDArray[np.float32]  # (T, W) ages of the samples of windows, -1 if there is none
    windows: dict[int, Int64] = field(default_factory=dict)  # by the number of the stream: (T, n) slots, -1 after them

    @classmethod
    def empty(cls, ticks: int, streams: int, sample_ages: int) -> Selections:
        """Uninitialized arrays for T ticks of N streams with W sample ages, to be filled by `set`."""
        shape = (ticks, streams)
        lower, upper, age_ns = np.empty((3, *shape), np.int64)
        ages = np.empty((ticks, sample_ages), np.float32)
        return cls(lower, upper, np.empty(shape, np.float32), np.empty(shape, np.uint8), age_ns, ages)

    def set(self, stream: int, selected: Selection, slots: Int64) -> None:
        """Fill the column of a stream; `slots` maps a row of its index to a slot."""
        for column, rows in ((self.lower, selected.lower), (self.upper, selected.upper)):
            column[:, stream] = np.where(rows >= 0, slots[rows], -1) if len(slots) else -1
        self.weight[:, stream] = selected.weight
        self.valid[:, stream] = selected.valid
        self.age_ns[:, stream] = selected.age_ns

    def set_window(self, stream: int, selected: WindowSelection, slots: Int64, ages: slice) -> None:
        """Fill the column of a window, and the columns `ages` with the ages of its samples."""
        ticks, found = np.arange(len(selected.counts)), selected.counts > 0
        newest = np.maximum(selected.counts - 1, 0)
        rows = np.where(selected.rows >= 0, slots[selected.rows], -1) if len(slots) else selected.rows
        self.lower[:, stream] = self.upper[:, stream] = rows[ticks, newest]
        self.weight[:, stream] = 0
        self.valid[:, stream] = np.where(found, ALIGNED, NONE)
        self.age_ns[:, stream] = np.where(found, selected.age_ns[ticks, newest], 0)
        if ages.stop > ages.start:
            self.sample_age_ms[:, ages] = np.where(selected.rows >= 0, selected.age_ns / NS_PER_MS, -1)
        self.windows[stream] = rows

    @classmethod
    def of(cls, one: TickSelections) -> Selections:
        """The selections for a single tick."""
        lower, upper, weight, valid, age_ns = ([numbers] for numbers in zip(*one.streams, strict=True))
        slots, ages = np.array([lower, upper, age_ns], np.int64), np.array([one.sample_age_ms], np.float32)
        windows = {stream: np.array([found or [-1]], np.int64) for stream, found in one.windows.items()}
        marks = (np.array(weight, np.float32), np.array(valid, np.uint8))
        return cls(slots[0], slots[1], *marks, slots[2], ages, windows)

    def one(self, tick: int) -> TickSelections:
        """The selections for one of the ticks."""
        columns = (self.lower[tick], self.upper[tick], self.weight[tick], self.valid[tick], self.age_ns[tick])
        streams = list(zip(*(column.tolist() for column in columns), strict=True))
        windows = {stream: [slot for slot in rows[tick].tolist() if slot >= 0] for stream, rows in self.windows.items()}
        return TickSelections(streams, windows, self.sample_age_ms[tick].tolist())


@dataclass
class TickSelections:
    """The samples selected for one tick, as Python numbers: what `Selections` has for several ticks."""

    streams: list[TickSelection]  # slots in place of rows; in the order of the spec
    windows: dict[int, list[int]]  # by the number of the stream: the slots of its samples, the oldest first
    sample_age_ms: list[float]  # (W,)


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """How frames are computed; see FusionEngine."""

    normalized: bool = False
    jpeg: str = "cpu"
    payload_bytes: Mapping[str, int] = field(default_factory=dict)
    channels_last: bool = False
    media: bool = True
    converts: torch.device = CPU  # of the CPU backend: where images and clouds are converted


class TensorFormat:
    """The shape and dtype of a stream's tensors: as the spec declares them, or as the first tensor fixes them."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self._fixed = False

    def require(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Fix the format at the first tensor; raises ValueError if a later tensor differs."""
        if self._fixed and (shape, dtype) != (self.shape, self.dtype):
            raise ValueError(f"is {shape} {dtype}, but was {self.shape} {self.dtype}; give the stream an image size")
        self.shape, self.dtype, self._fixed = shape, dtype, True


class TooSlowError(ValueError):
    """An image needs more processor time to decode than a tick may wait for."""


@dataclass(frozen=True)
class MemoryRow:
    """Memory that the engine holds for one purpose."""

    stream: str  # empty if all streams share it
    purpose: str  # samples, frames, staging, plan
    place: str  # host, pinned or gpu
    slots: int
    slot_bytes: int  # 0 until the first sample determines it

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes


class Backend(Protocol):
    """Keeps the payloads of all streams by slot, and computes frames from the selected ones."""

    device: torch.device

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory of at least `nbytes` uint8 for a message of a feed; in use while any object refers to it."""

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample."""

    def put_rows(self, stream: str, slots: Int64, values: NDArray[np.float32]) -> None:
        """Keep the (M, D) values of M samples of a vector stream."""

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """Discard the samples in these slots."""

    def check(self, stream: str, slot: int) -> None:
        """Convert or decode the payload of an image or a cloud as far as needed to know that it is usable.

        Raises ValueError if it is corrupt, TooSlowError if a tick cannot wait for it.
        """

    def render(self, ticks_ns: Int64, selections: Selections) -> Frames:
        """Compute the frames of T ticks; every selected slot has been checked."""

    def render_one(self, tick_ns: int, selected: TickSelections) -> Frames:
        """Compute the frame of a single tick, as `render`."""

    def restart(self) -> None:
        """Discard all samples and restart the timeline."""

    def memory(self) -> list[MemoryRow]:
        """The memory in use, by purpose."""

    def counters(self) -> dict[str, int]:
        """Events of the device's memory and copies, by name."""
