"""Fused frames in a ring: a fusion node writes one per tick, and a policy reads them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.engine import Frames, tick_grid
from robocache_ros.engine.frames import FusedFrame, sample_ages, stream_values
from robocache_ros.ipc.ring import Reader, SlotLease, Writer
from robocache_ros.ipc.shared_memory import IpcUnavailableError
from robocache_ros.ipc.slots import Field
from robocache_ros.spec.layout import Layout

log = logging.getLogger(__name__)

WINDOW, VALID, AGE = "window", "valid", "age_ns"  # streams' own tensors carry the prefix MEDIA
MEDIA = "media:"


class FrameWriter:
    """Writes each tick's frame into a ring, while there are readers.

    The ring is created with the first tick, and created again when the first image of an undeclared size arrives:
    readers then reconnect.

    Args:
        path: path of the socket, from `socket_path`.
        layout: columns of a row; its JSON is sent to the readers.
        device: device of the frames and of the ring.
        slots: number of slots of the ring.
        use_sim_time: whether the ticks are times of /clock, sent to the readers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout,
        device: torch.device | str = "cpu",
        *,
        slots: int = 8,
        use_sim_time: bool = False,
    ) -> None:
        self._path = path
        self._layout = layout
        self._device = str(device)
        self._slots = slots
        self._meta = layout.to_json(use_sim_time=use_sim_time)
        streams = (layout.spec.horizon, len(layout.spec.streams))
        self._valid = np.zeros(streams, np.uint8)
        self._age_ns = np.zeros(streams, np.int64)
        self._newest: int | None = None
        self._writer: Writer | None = None
        self._shapes: list[tuple[torch.Size, torch.dtype]] = []  # of the fields of its ring
        self._filled = False

    @property
    def readers(self) -> int:
        """Consumers that are connected."""
        return self._writer.readers if self._writer else 0

    @property
    def overwritten(self) -> int:
        """Frames whose slot was overwritten while a consumer had leased it."""
        return self._writer.overwritten if self._writer else 0

    def publish(self, frames: Frames, window: Tensor) -> None:
        """Write a tick's frame into the ring and announce it to the readers; see `fill`."""
        self.fill(frames, window)
        self.announce()

    def announce(self) -> None:
        """Announce the frame that was filled last; without readers, do nothing."""
        if self._filled and self._writer:
            self._writer.announce()
        self._filled = False

    def fill(self, frames: Frames, window: Tensor) -> None:
        """Write a tick's frame into the ring; `announce` then makes it visible.

        Args:
            frames: the frames of one tick.
            window: (horizon, D + 2 N + W) float32 rows that end with it, on the device of the ring.

        Raises:
            RoboCacheError: the ring cannot be created (IpcUnavailableError), or its device has too little memory.
        """
        self._remember(frames)
        media = {MEDIA + name: value[0] for name, value in frames.media.items() if value[0].numel()}
        shapes = [(value.shape, value.dtype) for value in (window, *media.values())]
        if self._writer is None or shapes != self._shapes:
            self.close()
            self._shapes = shapes
            fields = self._fields(window, media)
            self._writer = Writer(self._path, fields, slots=self._slots, device=self._device, meta=self._meta)
        if self._writer.readers:
            values: dict[str, Tensor | NDArray[Any]] = {WINDOW: window, VALID: self._valid, AGE: self._age_ns, **media}
            self._writer.fill(int(frames.ticks_ns[0]), values)
            self._filled = True

    def close(self) -> None:
        """Disconnect the readers and free the memory."""
        if self._writer:
            self._writer.close()
            self._writer = None

    def _remember(self, frames: Frames) -> None:
        """Store `valid` and the exact ages of the window's ticks; ticks that were not published are invalid."""
        tick = tick_grid.first_at_or_after(int(frames.ticks_ns[0]), self._layout.spec.rate_hz)
        steps = 1 if self._newest is None else tick - self._newest
        self._newest = tick
        for kept, row in ((self._valid, frames.valid[0]), (self._age_ns, frames.age_ns[0])):
            if 0 < steps < len(kept):
                kept[:-steps] = kept[steps:].copy()
                kept[-steps:] = 0
            else:
                kept[:] = 0
            kept[-1] = row

    def _fields(self, window: Tensor, media: Mapping[str, Tensor]) -> tuple[Field, ...]:
        return (
            *_frame_fields(tuple(window.shape), self._valid.shape),
            *(
                Field(name, str(value.dtype).removeprefix("torch."), tuple(value.shape))
                for name, value in media.items()
            ),
        )


class FrameReader:
    """Returns each newest frame of a FrameWriter's ring once, from the first one that is made after it connected.

    The frame that the ring has at that moment may be old: it is the last one that was made for an earlier reader.

    Args:
        reader: a reader that is connected to the ring.
        layout: the node's layout.

    Raises:
        IpcUnavailableError: the ring does not contain frames of this layout.
    """

    def __init__(self, reader: Reader, layout: Layout) -> None:
        streams = (layout.spec.horizon, len(layout.spec.streams))
        if not set(reader.layout.fields).issuperset(_frame_fields((layout.spec.horizon, layout.row_width), streams)):
            raise IpcUnavailableError("the fields of the ring do not match its layout; use one version on both sides")
        self._reader = reader
        self._layout = layout
        self._sequence = reader.newest_sequence  # of the last frame; ticks do not order frames: a clock may jump back

    def next(self, timeout_s: float) -> FusedFrame | None:
        """Wait for a new frame and return the newest one; None at the timeout or when the node ends."""
        lease = self._reader.wait(timeout_s, self._sequence, self._warm_up)
        if lease is None:
            return None
        self._sequence = lease.sequence
        return fused_frame(lease, self._layout)

    def _warm_up(self) -> None:
        lease = self._reader.latest()
        if lease:
            fused_frame(lease, self._layout)


def fused_frame(lease: SlotLease, layout: Layout) -> FusedFrame:
    """The frame of a slot for a policy; its tensors view the slot, which stays leased until they are deleted.

    Args:
        lease: a lease from a reader of a FrameWriter's ring.
        layout: the node's layout.
    """
    rate_hz = layout.spec.rate_hz
    window: Any = lease.tensors[WINDOW]
    newest = tick_grid.first_at_or_after(lease.tick_ns, rate_hz)
    media = {name[len(MEDIA) :]: value for name, value in lease.tensors.items() if name.startswith(MEDIA)}
    return FusedFrame(
        lease.tick_ns,
        torch.from_numpy(tick_grid.ticks_ns(newest - len(window) + 1, len(window), rate_hz)),
        {**stream_values(layout, window), **media},
        _by_stream(lease.host[VALID], layout.names),
        _by_stream(lease.host[AGE], layout.names),
        sample_ages(layout, window),
        layout,
    )


def _by_stream(table: NDArray[np.generic], names: Sequence[str]) -> dict[str, Tensor]:
    return dict(zip(names, torch.from_numpy(table).unbind(1), strict=True))


def _frame_fields(window: tuple[int, ...], streams: tuple[int, ...]) -> tuple[Field, ...]:
    """The fields that every ring of frames has."""
    return (
        Field(WINDOW, "float32", window),
        Field(VALID, "uint8", streams, host=True),
        Field(AGE, "int64", streams, host=True),
    )
