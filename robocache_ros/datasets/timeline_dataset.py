"""Episodes of any dataset on one timeline, or windows of them, as a map-style dataset of torch."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from robocache_ros.alignments import NAMES
from robocache_ros.datasets.alignment import KINDS, AlignedEpisode, Unaligned, method_of
from robocache_ros.engine import tick_grid
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.images import images_at
from robocache_ros.formats.read import (
    DatasetError,
    EpisodeSource,
    SourceEpisode,
    Stream,
    check_image_bytes,
    checked,
    known_names,
)
from robocache_ros.ops.image.conversion import ImageOptions
from robocache_ros.ops.image.convert import channels_last_layout
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.units import NS_PER_S


@dataclass(frozen=True)
class Window:
    """A training sample: some ticks of observations, and a chunk of actions.

    Attributes:
        n_obs: ticks of observations, up to the tick of the sample.
        horizon: ticks of actions.
        action_offset: ticks from the tick of the sample to the first action.
        n_images: ticks of images, the last ones of `n_obs`; None: all.
    """

    n_obs: int = 1
    horizon: int = 1
    action_offset: int = 0
    n_images: int | None = None

    def __post_init__(self) -> None:
        if self.n_images is not None and not 0 < self.n_images <= self.n_obs:
            raise RoboCacheError(f"window: {self}: n_images is from 1 to n_obs")
        if not (0 < self.n_obs <= 10_000 and 0 < self.horizon <= 10_000 and abs(self.action_offset) <= 10_000):
            raise RoboCacheError(f"window: {self}: n_obs and horizon are from 1 to 10000, action_offset to +-10000")

    def rows(self, tick: Any, count: int) -> tuple[list[NDArray[np.int64]], dict[str, NDArray[np.bool_]]]:
        """Return the ticks of observations (n_obs,) and of actions (horizon,), and which of them are padding.

        Args:
            tick: of the sample; or (B, 1) of samples, for results of (B, n_obs) and (B, horizon).
            count: ticks of its episode; those before the first and after the last are padding and repeat it.
        """
        wanted = [tick + np.arange(1 - self.n_obs, 1), tick + self.action_offset + np.arange(self.horizon)]
        flags = [(rows < 0) | (rows >= count) for rows in wanted]
        # np.clip does the same in three times the time.
        return [np.minimum(np.maximum(rows, 0), count - 1) for rows in wanted], {
            "is_pad": flags[0],
            "action_is_pad": flags[1],
        }


def cumulative_counts(
    episodes: int, ticks: Callable[[int], int], unreadable: dict[int, str] | None = None
) -> list[int]:
    """Return the number of ticks of all episodes up to each one.

    Args:
        episodes: their number.
        ticks: of an episode.
        unreadable: takes the episodes whose ticks cannot be read, and why; they count as 0. None: an error.
    """
    ends: list[int] = []
    for episode in range(episodes):
        try:
            count = ticks(episode)
        except (RoboCacheError, OSError) as error:
            if unreadable is None:
                raise
            unreadable[episode], count = f"episode {episode}: {error}", 0
        ends.append(count + (ends[-1] if ends else 0))
    return ends


MAX_SIDE = 16384  # px, as in a fusion spec
REDUCED = "reduced"
RESIZES = ("bilinear", "nearest", "area", REDUCED)


@dataclass(frozen=True)
class ResizedFrames:
    """The images of a stream, decoded and resized when they are asked for.

    Attributes:
        stream: of 8-bit RGB images of any size.
        size: height and width of the results.
        resize: bilinear, nearest or area, see `robocache_ros.convert_image`; or reduced, see `TimelineDataset`.
        where: file and record, for errors.
    """

    stream: Stream
    size: tuple[int, int]
    resize: str
    where: str

    def __len__(self) -> int:
        return len(self.stream.values)

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the (n, H, W, 3) images of rising rows.

        Errors:
            DatasetError: an image is damaged or missing.
        """
        images = images_at(self.stream, rows, self.where, self.size if self.resize == REDUCED else None)
        height, width = images.shape[1:3]
        if (height, width) == self.size:
            return images
        check_image_bytes(len(rows), (*self.size, 3), self.where)
        found = np.empty((len(rows), *self.size, 3), np.uint8)
        layout, options = (
            ImageLayout("rgb8", width, height, 3 * width, False),
            ImageOptions(self.size, None, "area" if self.resize == REDUCED else self.resize),
        )
        for place, image in enumerate(images):
            data = torch.from_numpy(np.require(image, requirements=["C", "W"]).reshape(-1))
            found[place] = channels_last_layout(data, layout, options).permute(1, 2, 0).numpy()
        return found


def resized(stream: Stream, size: tuple[int, int], resize: str, where: str) -> Stream:
    """Return a stream of images with images of another size."""
    return replace(stream, values=ResizedFrames(stream, size, resize, where))


def checked_size(key: str, size: Any, resize: str = RESIZES[0]) -> tuple[int, int]:
    """Return a height and a width.

    Errors:
        RoboCacheError: they are not such, or the way of resizing is not known.
    """
    if resize not in RESIZES:
        raise RoboCacheError(f"image_resize: {resize!r} is not one of {', '.join(RESIZES)}; choose one of them")
    if not (
        isinstance(size, Sequence)
        and len(size) == 2
        and all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in size)
    ):
        raise RoboCacheError(f"{key}: {size!r} is not a height and a width from 1 to {MAX_SIDE} px; give (H, W)")
    return int(size[0]), int(size[1])


MAX_EPISODES = 4096  # kept; each is a few kB of objects
MAX_FILES = 8  # that kept episodes are in: a mapped file is an open file


class EpisodeCache:
    """The last episode of a dataset that was read, and earlier ones whose arrays are all in mapped files.

    Their streams have been checked once, and are neither read nor checked again.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._last: SourceEpisode | None = None
        self._mapped: OrderedDict[int, SourceEpisode] = OrderedDict()
        self._files: set[mmap.mmap] = set()

    def get(self, index: int) -> SourceEpisode | None:
        """Return an episode, which is then the last one; None if it is not kept."""
        if index == self.last:
            return self._last
        found = self._mapped.get(index)
        if found is not None:
            self.last, self._last = index, found
        return found

    def put(self, index: int, episode: SourceEpisode) -> None:
        """Keep an episode as the last one."""
        self.last, self._last = index, episode
        if (files := _files(episode)) is None:
            return
        if len(self._files | files) > MAX_FILES:
            self._mapped.clear()
            self._files.clear()
        self._files |= files
        self._mapped[index] = episode
        if len(self._mapped) > MAX_EPISODES:
            self._mapped.popitem(last=False)


def _files(episode: SourceEpisode) -> set[mmap.mmap] | None:
    """The mapped files that all arrays of an episode are in; None if an array is in memory of its own."""
    files: set[mmap.mmap] = set()
    for stream in episode.streams.values():
        for array in (stream.stamps_ns, stream.values, stream.valid, stream.age_ns):
            owner: Any = array
            while isinstance(owner, np.ndarray):
                owner = owner.base
            if isinstance(owner, mmap.mmap):
                files.add(owner)
            elif array is not None:
                return None
    return files


MAX_TICKS = 10_000_000  # of an episode
OTHER_EPISODES = 32  # that are searched for a stream
MODALITIES = ("vision", "proprio", "language", "depth", "voxels")


class TimelineDataset(Dataset[dict[str, Any]]):
    """Episodes, or windows of them, aligned to ticks of one rate by the operations that align recordings.

    Args:
        source: the episodes.
        target_hz: ticks per second, a whole number from 1 to 1000. The grid is anchored to the epoch, or for nominal
            stamps to the first step.
        modalities: the parts that are read: vision, proprio, language, depth, voxels. Actions are always read.
        align: an alignment for some streams, by name or kind (vision, proprio, actions, rewards):
            `{"vision": "nearest", "actions": "next"}`. Without one, observations are linear, images and actions are
            held. A name that no stream has is refused when the first episode is read.
        window: samples are windows around each tick; None: whole episodes.
        image_size: height and width to which the images of all cameras are resized, with the bits of an export that
            resizes them; None: they stay as they are.
        image_resize: bilinear, nearest or area, see `robocache_ros.convert_image`; or reduced: libjpeg decodes jpeg
            files at an eighth, a quarter or a half of their size, the first that is not below `image_size`, and the
            rest is area. It takes less time, and its bits are not those of an export or a robot.

    A sample has, for T ticks:

    - proprio: (T, P) float32, the vectors of role observation; actions: (T, A) float32; rewards: (T,) float32.
    - vision: (T, C, H, W, 3) uint8 if all C cameras have one size; else `vision/<camera>`, (T, H, W, 3), for each.
    - depth/<camera>: (T, H, W, C), in the unit of the dataset; voxels/<name>: (T, X, Y, Z) or (T, F, X, Y, Z).
    - fused: (T, D) float32, all observations and actions in the order of the dataset's streams.
    - valid: (T, N) uint8: 0 none, 1 aligned, 2 held; age_ms: (T, N) float32; measured: (N,) bool, whether the stamps
      of the stream were measured. The names of the N streams are `stream_names(index)`.
    - tick_ns: (T,) int64; language: str; length: T; success: int64, 1 yes, 0 no, -1 not known.

    In a window, T is `n_obs`, actions and rewards have `horizon` ticks, images `n_images`; ticks before the first and
    after the last of the episode repeat it, and is_pad (n_obs,) and action_is_pad (horizon,) bool mark them.

    Errors:
        RoboCacheError: an argument is wrong. DatasetError: a file or a record is missing or damaged.
    """

    def __init__(
        self,
        source: EpisodeSource,
        *,
        target_hz: float = 50.0,
        modalities: Sequence[str] = ("vision", "proprio", "language"),
        align: Mapping[str, str] | None = None,
        window: Window | None = None,
        image_size: Sequence[int] | None = None,
        image_resize: str = RESIZES[0],
    ) -> None:
        if not (1 <= target_hz <= 1000 and target_hz == int(target_hz)):
            raise RoboCacheError(f"target_hz: {target_hz!r} is not a whole number from 1 to 1000; choose one")
        self.source = source
        self.rate_hz = int(target_hz)
        self.modalities = known_names("modalities", modalities, MODALITIES)
        self.align = dict(align or {})
        known_names("align", list(self.align.values()), NAMES)
        self.window = window
        (self.image_resize,) = known_names("image_resize", [image_resize], RESIZES)
        self.image_size = None if image_size is None else checked_size("image_size", image_size, image_resize)
        self._align_is_known = False
        self._ends: list[int] | None = None  # of the windows of each episode, counted when first needed
        # The episodes of windows as read, and the last one as aligned: the next window is often in it.
        self._episodes = EpisodeCache()
        self._aligned: tuple[int, tuple[AlignedEpisode, int]] | None = None

    def __len__(self) -> int:
        if self.window is None:
            return len(self.source)
        ends = self.window_ends()
        return ends[-1] if ends else 0

    def __repr__(self) -> str:
        what = f"{len(self.source):,} episodes" if self.window is None else f"{len(self):,} windows, {self.window}"
        return f"{type(self).__name__}({what}, target_hz={self.rate_hz})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_episodes": EpisodeCache(), "_aligned": None}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._sample(index, decode=True)

    def undecoded(self, index: int) -> dict[str, Any]:
        """Return a sample with images of files as `UndecodedImages`, which a loader decodes into the batch."""
        return self._sample(index, decode=False)

    def _sample(self, index: int, *, decode: bool) -> dict[str, Any]:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} of {size} samples")
        episode_index, tick = self.place(index % size)
        if self.window is None:
            return self.align_episode(self.streams_of(episode_index), decode=decode)
        once = self._episodes.last != episode_index  # windows in order use an episode again and again
        read = self.streams_of(episode_index)
        rows, flags = self.window.rows(tick, self.ticks(read.span_ns(), read.source)[1])
        if once:  # align the ticks of the window alone
            low, high = min(int(each.min()) for each in rows), max(int(each.max()) for each in rows)
            episode, rows = self._align(read, (low, high + 1))[0], [each - low for each in rows]
        else:
            episode = self.aligned_episode(episode_index)[0]
        outside = {key: torch.from_numpy(flag) for key, flag in flags.items()}
        observed, acted = rows
        found = episode.rows(observed, acted, self.window.n_images, decode=decode)
        return {**found, **outside, "length": self.window.n_obs}

    def align_episode(self, episode: SourceEpisode, *, decode: bool = True) -> dict[str, Any]:
        """Return the sample of a whole episode that `streams_of` has returned."""
        aligned, count = self._align(episode)
        rows = np.arange(count)
        return {**aligned.rows(rows, rows, decode=decode), "length": count}

    def unaligned(self, index: int) -> Unaligned:
        """Return a sample before its streams are aligned, as a loader sends it to a GPU.

        Errors:
            DatasetError: a file or a record is missing or damaged.
        """
        episode_index, tick = self.place(index)
        episode = self.streams_of(episode_index)
        first, count = self.ticks(episode.span_ns(), episode.source)
        methods = {stream.name: method_of(stream, self.align) for stream in episode.streams.values()}
        if self.window is None:
            times = tick_grid.ticks_ns(first, count, self.rate_hz)
            return Unaligned(episode, methods, times, None, {}, self._texts(episode))
        rows, flags = self.window.rows(tick, count)
        ticks, action_ticks = (tick_grid.ticks_after(first, each, self.rate_hz) for each in rows)
        return Unaligned(episode, methods, ticks, action_ticks, flags, self._texts(episode), self.window.n_images)

    def _texts(self, episode: SourceEpisode) -> dict[str, str]:
        return {"language": episode.task} if "language" in self.modalities else {}

    def streams_of(self, index: int) -> SourceEpisode:
        """Return the streams of an episode that the modalities select, before they are aligned."""
        if (kept := self._episodes.get(index)) is not None:
            return kept
        read = checked(self.source.read(index))
        self._check_align(read)
        streams = self._selected(read)
        if self.image_size is not None:
            size, resize = self.image_size, self.image_resize
            cameras = {name: s for name, s in streams.items() if s.is_image and s.modality == "vision"}
            streams |= {name: resized(stream, size, resize, read.source) for name, stream in cameras.items()}
        episode = replace(read, streams=streams)
        if self.window is not None:
            self._episodes.put(index, episode)
        return episode

    def _check_align(self, episode: SourceEpisode) -> None:
        """Refuse an alignment of a stream that neither this episode nor others have, of some of all parts."""
        if self._align_is_known:
            return
        known = [*KINDS, *episode.streams]
        others = np.unique(np.linspace(0, len(self.source) - 1, OTHER_EPISODES).astype(int)).tolist()
        while others and not set(self.align) <= set(known):
            with suppress(DatasetError):
                known += [name for name in self.source.read(others.pop()).streams if name not in known]
        known_names("align", self.align, known)
        self._align_is_known = True

    def of_source(self, source: EpisodeSource, window: Window | None = None) -> TimelineDataset:
        """Return this dataset with other streams of the same episodes, and other windows if they are given."""
        made = copy(self)
        made.source, made._episodes, made._aligned, made._align_is_known = source, EpisodeCache(), None, False
        made.window = window or self.window
        return made

    def stream_names(self, index: int = 0) -> tuple[str, ...]:
        """Return the names of an episode's streams, in the order of `valid`, `age_ms` and `measured`."""
        return tuple(self.streams_of(index).streams)

    def place(self, index: int) -> tuple[int, int]:
        """Return the episode of a sample, and its tick in it (0 for a whole episode)."""
        if self.window is None:
            return index, 0
        ends = self.window_ends()
        episode = bisect_right(ends, index)
        return episode, index - (ends[episode - 1] if episode else 0)

    def ticks(self, span_ns: tuple[int, int], where: str) -> tuple[int, int]:
        """Return the index of the first tick on the grid, and the number of ticks, of an episode's span."""
        first = tick_grid.first_at_or_after(span_ns[0], self.rate_hz)
        count = tick_grid.last_at_or_before(span_ns[1], self.rate_hz) - first + 1
        if not 0 < count <= MAX_TICKS:
            seconds = (span_ns[1] - span_ns[0]) / NS_PER_S
            raise DatasetError(f"{where}: {seconds:g} s have {count:,} ticks at {self.rate_hz} Hz; leave it out")
        return first, count

    def _align(self, episode: SourceEpisode, span: tuple[int, int] | None = None) -> tuple[AlignedEpisode, int]:
        """Return an episode at its ticks, or at those of a span, and the number of all ticks."""
        first, count = self.ticks(episode.span_ns(), episode.source)
        streams = list(episode.streams.values())
        methods = {stream.name: method_of(stream, self.align) for stream in streams}
        times = tick_grid.ticks_after(first, np.arange(*(span or (0, count))), self.rate_hz)
        return AlignedEpisode(streams, methods, times, self._texts(episode), episode.success, episode.source), count

    def aligned_episode(self, index: int) -> tuple[AlignedEpisode, int]:
        """Return an episode at its ticks, and their number."""
        if self._aligned is None or self._aligned[0] != index:
            self._aligned = index, self._align(self.streams_of(index))
        return self._aligned[1]

    def _selected(self, episode: SourceEpisode) -> dict[str, Stream]:
        streams = {name: stream for name, stream in episode.streams.items() if self._selects(stream)}
        if not streams:
            raise DatasetError(f"{episode.source}: has none of {', '.join(self.modalities)}; choose other modalities")
        return streams

    def _selects(self, stream: Stream) -> bool:
        if stream.is_image:
            return stream.modality in self.modalities
        return stream.role != "observation" or "proprio" in self.modalities

    def leave_out_unreadable(self) -> dict[int, str]:
        """Give no windows to episodes whose length cannot be read. Return these episodes, and why."""
        unreadable: dict[int, str] = {}
        if self.window is not None:
            self._ends = cumulative_counts(len(self.source), self._ticks_of, unreadable)
        return unreadable

    def window_ends(self) -> list[int]:
        """Return for each episode the number after its last window."""
        if self._ends is None:
            self._ends = cumulative_counts(len(self.source), self._ticks_of)
        return self._ends

    def _ticks_of(self, episode: int) -> int:
        return self.ticks(self.source.span_ns(episode), f"episode {episode}")[1]
