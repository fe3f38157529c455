"""Fused frames in a ring: what a fusion node puts there each tick, and what a policy gets out of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.engine import Frames, grid
from robocache_ros.frame import FusedFrame
from robocache_ros.ipc.layout import Field
from robocache_ros.ipc.reader import HeldFrame, Reader
from robocache_ros.ipc.writer import Writer
from robocache_ros.layout import Layout

log = logging.getLogger(__name__)

WINDOW, VALID, AGE = "window", "valid", "age_ns"  # no stream's tensor has these names: theirs carry a prefix
MEDIA = "media:"


class FrameWriter:
    """Puts each tick's frame into a ring, while somebody reads it.

    The ring is made with the first tick, and made anew when an image whose size was not declared has shown it: readers
    then connect again.

    Args:
        path: of the socket, from `socket_path`.
        layout: columns of a row; its JSON goes to the readers.
        device: where the frames are made, and so where the ring lies.
        slots: of the ring.
    """

    def __init__(
        self, path: str | os.PathLike[str], layout: Layout, device: torch.device | str = "cpu", *, slots: int = 8
    ) -> None:
        self._path = path
        self._layout = layout
        self._device = str(device)
        self._slots = slots
        self._meta = layout.to_json()
        streams = (layout.spec.horizon, len(layout.spec.streams))
        self._valid = np.zeros(streams, np.uint8)
        self._age_ns = np.zeros(streams, np.int64)
        self._newest: int | None = None
        self._writer: Writer | None = None
        self._form: list[tuple[torch.Size, torch.dtype]] = []  # of what its ring holds
        self._filled = False

    @property
    def readers(self) -> int:
        """Consumers that are connected."""
        return self._writer.readers if self._writer else 0

    @property
    def overtaken(self) -> int:
        """Frames whose slot was taken from a consumer that held it."""
        return self._writer.overtaken if self._writer else 0

    def publish(self, frames: Frames, window: Tensor) -> None:
        """Put a tick's frame into the ring and tell the readers; see `fill`."""
        self.fill(frames, window)
        self.announce()

    def announce(self) -> None:
        """Tell the readers of the frame that was filled last; nothing where nobody reads."""
        if self._filled and self._writer:
            self._writer.announce()
        self._filled = False

    def fill(self, frames: Frames, window: Tensor) -> None:
        """Put a tick's frame into the ring, for `announce` to tell of.

        Args:
            frames: of one tick.
            window: (horizon, D + 2 N) float32 rows that end with it, on the device of the ring.

        Raises:
            RoboCacheError: the ring's memory cannot be had, or another node has the socket.
        """
        self._remember(frames)
        media = {MEDIA + name: value[0] for name, value in frames.media.items() if value[0].numel()}
        form = [(value.shape, value.dtype) for value in (window, *media.values())]
        if self._writer is None or form != self._form:
            self.close()
            self._form = form
            fields = self._fields(window, media)
            self._writer = Writer(self._path, fields, slots=self._slots, device=self._device, meta=self._meta)
        if self._writer.readers:
            values: dict[str, Tensor | NDArray[Any]] = {WINDOW: window, VALID: self._valid, AGE: self._age_ns, **media}
            self._writer.fill(int(frames.ticks_ns[0]), values)
            self._filled = True

    def close(self) -> None:
        """Send the readers away and give the memory back."""
        if self._writer:
            self._writer.close()
            self._writer = None

    def _remember(self, frames: Frames) -> None:
        """Keep `valid` and the exact ages of the window's ticks; ticks that never were count as invalid."""
        tick = grid.first_at_or_after(int(frames.ticks_ns[0]), self._layout.spec.rate_hz)
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
            Field(WINDOW, "float32", tuple(window.shape)),
            Field(VALID, "uint8", self._valid.shape, host=True),
            Field(AGE, "int64", self._age_ns.shape, host=True),
            *(
                Field(name, str(value.dtype).removeprefix("torch."), tuple(value.shape))
                for name, value in media.items()
            ),
        )


def next_frame(reader: Reader, layout: Layout, timeout_s: float, after_ns: int | None) -> FusedFrame | None:
    """The newest frame past `after_ns`, waiting for one; None at the timeout or when the node goes."""

    def rehearse() -> None:
        held = reader.latest()
        if held:
            fused_frame(held, layout)

    held = reader.wait(timeout_s, after_ns, rehearse)
    return fused_frame(held, layout) if held else None


def fused_frame(held: HeldFrame, layout: Layout) -> FusedFrame:
    """The frame of a slot as a policy sees it; its tensors view the slot, and hold it as long as they live.

    Args:
        held: from a reader of a FrameWriter's ring.
        layout: the node's.
    """
    rate_hz = layout.spec.rate_hz
    window: Any = held.tensors[WINDOW]
    newest = grid.first_at_or_after(held.tick_ns, rate_hz)
    values = window.split([*layout.widths, window.shape[1] - layout.width], dim=1)
    media = {name[len(MEDIA) :]: value for name, value in held.tensors.items() if name.startswith(MEDIA)}
    return FusedFrame(
        held.tick_ns,
        torch.from_numpy(grid.ticks_ns(newest - len(window) + 1, len(window), rate_hz)),
        {**dict(zip(layout.slots, values, strict=False)), **media},  # behind the values: valid and age as in a message
        _by_stream(held.host[VALID], layout.names),
        _by_stream(held.host[AGE], layout.names),
    )


def _by_stream(table: NDArray[np.generic], names: Sequence[str]) -> dict[str, Tensor]:
    return dict(zip(names, torch.from_numpy(table).unbind(1), strict=True))
