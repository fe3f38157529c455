"""Frames: the rows and tensors of ticks, of the engine and for a policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.image.convert import normalize_image
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True)
class Frames:
    """T ticks of N streams; invalid values are zero, and `valid` marks them."""

    ticks_ns: NDArray[np.int64]  # (T,)
    fused: Tensor  # (T, D) float32, columns as in Layout
    valid: NDArray[np.uint8]  # (T, N) 0 invalid, 1 aligned, 2 held
    age_ns: NDArray[np.int64]  # (T, N) tick - stamp of its sample (the earlier of two, a window's newest); 0 if none
    media: dict[str, Tensor]  # images (T, C, H, W) uint8 or float32; voxels (T, X, Y, Z), (T, F, X, Y, Z)
    # Set only for a single tick on the GPU, whose tensors are views of rings that later ticks overwrite:
    window: Tensor | None = None  # (horizon, D + 2 N + W) float32, `rows()` of the last ticks up to this one
    host: Tensor | None = None  # (1, D) float32, `fused` in pinned memory, complete after `done`
    done: Any = None  # torch.cuda.Event after the tick; later work on the same CUDA stream need not wait for it

    sample_age_ms: NDArray[np.float32] | None = None  # (T, W) tick - stamp of each sample of the windows, -1 if none

    def __len__(self) -> int:
        return len(self.ticks_ns)

    def __getitem__(self, ticks: slice) -> Frames:
        media = {name: value[ticks] for name, value in self.media.items()}
        one = len(self) == 1 and ticks.indices(1) == (0, 1, 1)
        rest = (self.window, self.host, self.done) if one else ()
        parts = (self.ticks_ns[ticks], self.fused[ticks], self.valid[ticks], self.age_ns[ticks])
        ages = None if self.sample_age_ms is None else self.sample_age_ms[ticks]
        return replace(Frames(*parts, media, *rest), sample_age_ms=ages)

    @property
    def stamps_ns(self) -> NDArray[np.int64]:
        """(T, N) int64 stamp of the sample used (the earlier of two); 0 if there is none."""
        return np.where(self.valid > 0, self.ticks_ns[:, None] - self.age_ns, 0)

    def rows(self) -> Tensor:
        """(T, D + 2 N + W) float32 on the host: values, `valid`, ages in ms, sample ages; columns as in Layout.

        Waits for a tick on the GPU.
        """
        status = status_columns(self.valid, self.age_ns, self.sample_age_ms)
        if self.host is not None:
            self.done.synchronize()
        fused = self.fused.cpu() if self.host is None else self.host
        return torch.cat([fused, torch.from_numpy(status)], dim=1)


def status_columns(
    valid: NDArray[np.uint8], age_ns: NDArray[np.int64], sample_age_ms: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """(T, 2 N + W) float32 columns of a row after its values."""
    ticks, streams = valid.shape
    ages = 0 if sample_age_ms is None else sample_age_ms.shape[1]
    status = np.empty((ticks, 2 * streams + ages), np.float32)  # filled, because `concatenate` takes twice as long
    status[:, :streams], status[:, streams : 2 * streams] = valid, age_ms(age_ns)
    if ages:
        status[:, 2 * streams :] = sample_age_ms
    return status


def age_ms(age_ns: NDArray[np.int64]) -> NDArray[np.float32]:
    """Ages in ms: divided once in float64 and rounded once, so that every writer gives float32(age_ns / 1e6)."""
    return (age_ns / NS_PER_MS).astype(np.float32)


@dataclass(frozen=True, eq=False, repr=False)
class FusedFrame(Mapping[str, Tensor]):
    """A tick, and the window of H ticks that ends with this tick.

    It is a mapping from streams to tensors. `frame[name]` and `in` find every stream of `tensors`. Iterating, `keys()`,
    `items()` and `dict(frame)` give the observations: a policy computes the actions, and does not read them.

    Attributes:
        tick_ns: time of the tick, ns since the epoch.
        ticks_ns: (H,) int64, times of the window's ticks.
        tensors: by stream: vectors (H, D) and windows (H, n, D) float32; images (C, H, W) and voxels of the newest
            tick, if requested.
        valid: by stream (H,) uint8: 0 invalid, 1 aligned, 2 held.
        age_ns: by stream (H,) int64; ages from a message have the precision of float32 in ms.
        sample_age_ms: by window (H, n) float32, the age of each sample; -1 for padding.
        layout: the columns and the spec of the node; None: not known, and every stream counts as an observation.
        clock: the clock of the ticks, in ns: the wall clock, or sim time.
    """

    tick_ns: int
    ticks_ns: Tensor
    tensors: dict[str, Tensor]
    valid: dict[str, Tensor]
    age_ns: dict[str, Tensor]
    sample_age_ms: dict[str, Tensor] = field(default_factory=dict)
    layout: Layout | None = None
    clock: Callable[[], int] = time.time_ns

    @property
    def tick_age_ns(self) -> int:
        """How long ago the tick was, now, by the clock of the node; at least `delay_ms`, which a tick waits for."""
        return self.clock() - self.tick_ns

    @property
    def all_valid(self) -> bool:
        """Whether every stream of the mapping has a value at the newest tick: `valid` is 1 or 2."""
        return all(bool(self.valid[name][-1]) for name in self if name in self.valid)

    def mask(self, window: str) -> Tensor:
        """(H, n) bool: True for rows of a window that are samples, False for padding."""
        return self.sample_age_ms[window] >= 0

    def lerobot(self, task: str = "") -> dict[str, Tensor | str]:
        """The newest tick with the names, shapes and values of a row of `LeRobotDataset`, of an export with this spec.

        Args:
            task: the instruction, as `task`.

        Returns:
            `observation.state` (N,) float32, the observation vectors in the order of the spec;
            `observation.window.<stream>` (n, D) float32; `observation.images.<stream>` (3, H, W) float32, in 0..1
            unless the subscriber normalises; `task`. There is no dimension for a batch.

        Raises:
            RoboCacheError: the layout is not known, or an image of unknown size has not arrived yet.
        """
        if self.layout is None:
            raise RoboCacheError("frame.lerobot: the layout is not known; use a frame of FusedSubscriber")
        row: dict[str, Tensor | str] = {}
        state = self.layout.vectors_of("observation")
        if state:
            row["observation.state"] = torch.cat([self.tensors[stream.name][-1] for stream in state])
        for stream in self.layout.spec.streams:
            if stream.role != "observation" or stream.name not in self.tensors:
                continue
            value = self.tensors[stream.name]
            if stream.rows:
                row[f"observation.window.{stream.name}"] = value[-1]
            elif stream.kind == "image":
                if not value.numel():
                    raise RoboCacheError(f"{stream.name}: no image has arrived yet; wait until frame.all_valid")
                # Not depth, which is an array of the dataset and not a feature; grey has three channels there.
                if len(value) == 3 or value.dtype == torch.uint8:
                    floats = normalize_image(value) if value.dtype == torch.uint8 else value.to(torch.float32)
                    row[f"observation.images.{stream.name}"] = floats.expand(3, -1, -1)
        row["task"] = task
        return row

    def __getitem__(self, stream: str) -> Tensor:
        try:
            return self.tensors[stream]
        except KeyError:
            known = ", ".join(self.tensors) or "no streams"
            raise KeyError(f"{stream}: the frame has {known}; name image and voxel streams in images=") from None

    def __contains__(self, stream: object) -> bool:
        return stream in self.tensors

    def __iter__(self) -> Iterator[str]:
        roles = {s.name: s.role for s in self.layout.spec.streams} if self.layout else {}
        return (name for name in self.tensors if roles.get(name, "observation") == "observation")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # also without tensors

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        seconds, nanoseconds = divmod(self.tick_ns, NS_PER_S)
        shapes = [f"{name} {'x'.join(map(str, value.shape))}" for name, value in self.tensors.items()]
        invalid = [name for name, valid in self.valid.items() if not valid[-1]]
        parts = [f"tick {seconds}.{nanoseconds:09d}", _joined(shapes, 40)]
        if invalid:
            parts.append(f"invalid: {_joined(invalid, 12)}")
        return f"<FusedFrame {'; '.join(parts)}>"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its values as NumPy arrays by names such as `tensors/joints`, for pipes and files; see `frame_of_arrays`."""
        found = {"ticks_ns": self.ticks_ns.cpu().numpy()}
        for part in _PARTS:
            found |= {f"{part}/{name}": value.cpu().numpy() for name, value in getattr(self, part).items()}
        return found

    def to(self, device: torch.device) -> FusedFrame:
        """The frame with its tensors on a device."""
        if all(value.device == device for value in self.tensors.values()):
            return self

        def moved(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(device, non_blocking=device.type == "cuda") for name, value in values.items()}

        return replace(self, tensors=moved(self.tensors), sample_age_ms=moved(self.sample_age_ms))


_PARTS = ("tensors", "valid", "age_ns", "sample_age_ms")  # of a FusedFrame, by stream


def frame_of_arrays(arrays: Mapping[str, NDArray[Any]], layout: Layout | None) -> FusedFrame:
    """The frame that `FusedFrame.arrays` has made arrays of.

    Errors:
        KeyError, IndexError: they are not those of a frame.
    """
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    for key, value in arrays.items():
        part, _, name = key.partition("/")
        if name:
            parts[part][name] = torch.from_numpy(value)
    ticks_ns = torch.from_numpy(arrays["ticks_ns"])
    tensors, valid, age_ns, sample_age_ms = (parts[part] for part in _PARTS)
    return FusedFrame(int(ticks_ns[-1]), ticks_ns, tensors, valid, age_ns, sample_age_ms, layout)


def split_window(layout: Layout, tick_ns: int, window: Tensor) -> FusedFrame:
    """Split an (H, D + 2 N + W) float32 window that ends with a tick into a frame; columns as in Layout."""
    rate_hz = layout.spec.rate_hz
    newest = -(-tick_ns * rate_hz // NS_PER_S)
    horizon = len(window)
    ticks = [(newest - back) * NS_PER_S // rate_hz for back in range(horizon - 1, -1, -1)]
    count = len(layout.names)
    valid = window[:, layout.width : layout.width + count].to(torch.uint8)
    ages = window[:, layout.width + count : layout.width + 2 * count]
    age_ns = (ages.double() * NS_PER_MS).round().to(torch.int64)
    return FusedFrame(
        tick_ns,
        torch.tensor(ticks),
        stream_values(layout, window),
        {name: valid[:, index] for index, name in enumerate(layout.names)},
        {name: age_ns[:, index] for index, name in enumerate(layout.names)},
        sample_ages(layout, window),
        layout,
    )


def _joined(words: list[str], length: int) -> str:
    """Words with commas, up to a length in characters, and how many more there are."""
    shown = 1
    while shown < len(words) and len(", ".join(words[: shown + 1])) <= length:
        shown += 1
    rest = f" and {len(words) - shown} more" if len(words) > shown else ""
    return (", ".join(words[:shown])[:length] or "no tensors") + rest


def sample_ages(layout: Layout, window: Tensor) -> dict[str, Tensor]:
    """The (H, n) sample ages of every window stream in the rows of a window, as views."""
    ages = window[:, window.shape[1] - layout.ages :]
    return {name: ages[:, slot] for name, slot in layout.sample_ages.items()}


def stream_values(layout: Layout, window: Tensor) -> dict[str, Tensor]:
    """The values of every vector stream in the rows of a window, as views: (H, D), or (H, n, D) for a window stream."""
    # One split is faster than several slices.
    values = torch.split(window, [*layout.widths, window.shape[1] - layout.width], dim=1)
    return {
        stream.name: value.view(len(window), stream.rows, stream.dim) if stream.rows else value
        for stream, value in zip(layout.spec.vectors, values, strict=False)
    }
