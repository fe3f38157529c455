"""Writes the piece of one recording: the output of the engine, images in all encodings that the formats need.

columns/<column>                             a row per tick of an episode; see `RowColumnsWriter`
pictures/<stream>/<codec>/episode-<n>.mp4    a video per episode, with a frame per row
pictures/<stream>/<encoding>                 each distinct image once, with its ends in <encoding>.ends
pictures/<stream>/arrays                     each distinct array once (voxels, images that are not 8-bit)
pictures/<stream>/samples                    the image or array of each row
contents.json                                the episodes with their statistics, and what is known of each stream
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats import pieces
from robocache_ros.formats.pictures import ArrayWriter, PictureWriter, Used, stats_rows, video_name
from robocache_ros.formats.pieces import CONTENTS, features_of
from robocache_ros.formats.statistics import Histogram, by_column
from robocache_ros.formats.video import CODES, DEPTH_VIDEO, UNITS, VideoFile, VideoSettings, depth_codes, video_part
from robocache_ros.ops.voxel.voxelize import fixed_size_cloud
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

WAITING = 2  # calls whose arguments are in memory, besides those of the running call

P = ParamSpec("P")


class OrderedCalls:
    """Runs calls one after the other in one thread, so that their results do not depend on timing."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._calls: deque[Future[None]] = deque()

    def add(self, call: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        """Run a call after those before it. Waits while too many calls wait; raises the error of an earlier call."""
        self._calls.append(self._pool.submit(call, *args, **options))
        while len(self._calls) > WAITING + 1:
            self._calls.popleft().result()

    def wait(self) -> None:
        """Wait for all calls; raise the first error of one."""
        while self._calls:
            self._calls.popleft().result()

    def close(self) -> None:
        """Wait for the running call, and discard the calls after it."""
        self._pool.shutdown(cancel_futures=True)


def has_points(stream: StreamSpec) -> bool:
    """Return whether the voxels of a stream contain the coordinates of points."""
    return stream.voxels is not None and stream.voxels.features[:3] == ("x", "y", "z")


class _CloudWriter(ArrayWriter):
    """Writes each distinct grid of one stream as a (points, F) float32 array: see `ops.fixed_size_cloud`."""

    def __init__(self, folder: Path, stream: StreamSpec, points: int) -> None:
        super().__init__(folder, stream)
        self._points = points

    def write(self, arrays: NDArray[Any], used: Used) -> None:
        """Write the (T, F, X, Y, Z) grids of the next T rows."""
        super().write(fixed_size_cloud(torch.from_numpy(arrays), self._points).points.numpy(), used)


MIN_DEPTH_SIDE = 16  # pixels of an image, of x265


class _DepthWriter(ArrayWriter):
    """Writes the depth images of one stream as arrays, and as a video with one frame per row."""

    def __init__(self, folder: Path, stream: StreamSpec, rate_hz: int) -> None:
        if stream.unit not in UNITS:
            raise RoboCacheError(
                f"streams.{stream.name}.unit: {printable(stream.unit, 20)!r} is not one of {', '.join(UNITS)}, "
                "which depth video needs; give mm for 16UC1, m for 32FC1"
            )
        super().__init__(folder, stream)
        self._folder, self._unit, self._rate_hz = folder, stream.unit, rate_hz
        self._video: VideoFile | None = None
        self._codes: NDArray[np.uint16] = np.zeros((0, 0), np.uint16)
        self._written = -2  # the sample that the codes are of
        self._episodes: list[Histogram] = []

    def begin_episode(self) -> None:
        """Start an episode."""
        super().begin_episode()
        self._episodes.append(Histogram([[0] * CODES]))
        self._written = -2

    def write(self, arrays: NDArray[Any], used: Used) -> None:
        """Write the (T, 1, H, W) float32 images of the next T rows."""
        super().write(arrays, used)
        size = (arrays.shape[2], arrays.shape[3])
        if 0 in size:
            raise RoboCacheError(f"{self._name}: no image has come, so its size is not known; give it an image size")
        if min(size) < MIN_DEPTH_SIDE:
            raise RoboCacheError(
                f"{self._name}: depth video needs {MIN_DEPTH_SIDE}x{MIN_DEPTH_SIDE} pixels at least, images have "
                f"{size[0]}x{size[1]} (height x width); use depth arrays"
            )
        if self._video is None:
            path = self._folder / video_name(self._name, DEPTH_VIDEO, len(self._episodes) - 1)
            self._video = VideoFile(path, size, self._rate_hz, DEPTH_VIDEO)
        for (image,), stamp in zip(arrays, used.tolist(), strict=True):
            if stamp != self._written:
                self._codes, self._written = depth_codes(image, self._unit), stamp
                if stamp >= 0:
                    self._episodes[-1].add_values(self._codes[stats_rows(size[0])])
            self._video.write(self._codes)

    def end_episode(self) -> None:
        self._close_video(complete=True)

    def summary(self) -> dict[str, Any]:
        """Return the constructor arguments of an `ArrayInfo`."""
        episodes = [histogram.to_dict() for histogram in self._episodes]
        return {**super().summary(), "depth_unit": self._unit, "depth_episodes": episodes}

    def close(self, *, complete: bool) -> None:
        """Close the files."""
        self._close_video(complete=complete)
        super().close(complete=complete)

    def _close_video(self, *, complete: bool) -> None:
        video, self._video = self._video, None
        if video is not None:
            video.close(complete=complete)


WRITE_BYTES = 16 << 20  # bytes of images and voxels encoded at once

Encodings = Mapping[str, Sequence[str]]  # image stream -> the encodings that the formats of an export need


class PieceWriter:
    """Writes the piece of one recording. Memory is bounded: columns and images are written as they come.

    A thread for each stream of images or voxels writes and encodes it.

    Args:
        folder: empty; contains the piece after `finish`. Other code writes `recording.json`, `recording.npz` and
            `done.json` in it.
        layout: the columns of the frames.
        encodings: of each stream of images; 8-bit images without encodings are not stored. `DEPTH_VIDEO` is for depth.
        video: settings of the encoders of videos of 8-bit images.
        points: of the clouds that voxels with coordinates are stored as; 0: all voxels are stored as grids.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        encodings: Encodings,
        video: VideoSettings | None = None,
        points: int = 0,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._encodings, self._points = encodings, points
        self._video = video or VideoSettings()
        self._columns = pieces.RowColumnsWriter(folder, layout)
        self._pictures: dict[str, PictureWriter] = {}
        self._arrays: dict[str, ArrayWriter] = {}
        self._threads: dict[str, OrderedCalls] = {}
        self._episodes: list[dict[str, Any]] = []
        self._first = self._total = 0  # number of rows before this episode, and including it

    @property
    def _media(self) -> dict[str, PictureWriter | ArrayWriter]:
        return {**self._pictures, **self._arrays}

    def begin_episode(self) -> None:
        """Start an episode."""
        self._first = self._total
        for name, media in self._media.items():
            self._threads[name].add(media.begin_episode)

    def write(self, frames: Frames) -> None:
        """Write the next ticks of the episode."""
        if not self._total:
            self._open_media(frames)
        tick_bytes = sum(tensor[0].nbytes for tensor in frames.media.values() if len(tensor))
        step = max(1, WRITE_BYTES // (tick_bytes + 8 * self._layout.row_width))
        for start in range(0, len(frames), step):
            self._write_rows(frames[start : start + step])

    def end_episode(self) -> None:
        """Close the episode, and compute its statistics."""
        for name, media in self._media.items():
            self._threads[name].add(media.end_episode)
        self._columns.flush()
        rows = pieces.load(self._folder, self._layout)
        rows = {name: values[self._first : self._total] for name, values in rows.items()}
        length = self._total - self._first
        stats = {
            name: by_column((feature.column(rows, k) for k in range(len(feature.columns))), feature.shape, length)
            for name, feature in features_of(self._layout).items()
        }
        self._episodes.append({"length": length, "stats": stats})

    def finish(self, bag: Bag) -> None:
        """Complete the files. Videos that are copied are read from the recording."""
        for thread in self._threads.values():
            thread.wait()
        for picture in self._pictures.values():
            picture.copy_video(bag)
        self.close(complete=True)
        videos = sorted((self._folder / "pictures").glob("*/*/*.mp4"))
        contents = {
            "episodes": self._episodes,
            "pictures": {name: picture.summary() for name, picture in self._pictures.items()},
            "arrays": {name: array.summary() for name, array in self._arrays.items()},
            "videos": {path.relative_to(self._folder).as_posix(): video_part(path) for path in videos},
        }
        (self._folder / CONTENTS).write_text(json.dumps(contents), encoding="utf-8")

    def close(self, *, complete: bool = False) -> None:
        """Close the open files."""
        with ExitStack() as stack:  # closes each file, even if another raises
            stack.callback(self._columns.close)
            for media in self._media.values():
                stack.callback(media.close, complete=complete)
            for thread in self._threads.values():
                stack.callback(thread.close)  # before the files, because callbacks run in reverse order

    def _write_rows(self, frames: Frames) -> None:
        self._columns.append(frames)
        self._total += len(frames)
        stamps = frames.stamps_ns
        for name, media in self._media.items():
            row = self._layout.names.index(name)
            used = np.where(frames.valid[:, row] > 0, stamps[:, row], -1)
            self._threads[name].add(media.write, frames.media[name].cpu().numpy(), used)

    def _open_media(self, frames: Frames) -> None:
        for name, tensor in frames.media.items():
            stream = self._layout.spec.stream(name)
            encodings, rate_hz = set(self._encodings.get(name, ())), self._layout.spec.rate_hz
            if stream.kind != "image" or tensor.dtype.itemsize > 1:
                if DEPTH_VIDEO in encodings:
                    self._arrays[name] = _DepthWriter(self._folder, stream, rate_hz)
                elif self._points and has_points(stream):
                    self._arrays[name] = _CloudWriter(self._folder, stream, self._points)
                else:
                    self._arrays[name] = ArrayWriter(self._folder, stream)
            elif usual := sorted(encodings - {DEPTH_VIDEO}):
                self._pictures[name] = PictureWriter(self._folder, stream, usual, rate_hz, self._video)
        for name, media in self._media.items():
            media.begin_episode()
            self._threads[name] = OrderedCalls(f"write-{name}")
