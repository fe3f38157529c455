"""Writes the piece of one recording: the output of the engine, with images in all encodings that the formats need.

columns/<column>                             a row per tick of an episode; see `dataset.row_columns`
pictures/<stream>/<codec>/episode-<n>.mp4    a video per episode, with a frame per row
pictures/<stream>/<encoding>                 each distinct image once, with its ends in <encoding>.ends
pictures/<stream>/arrays                     each distinct array once (voxels, images that are not 8-bit)
pictures/<stream>/samples                    the image or array of each row
contents.json                                the episodes with their statistics, and what is known of each stream
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.export.dataset import row_columns
from robocache_ros.export.dataset.features import features_of
from robocache_ros.export.dataset.piece_contents import CONTENTS
from robocache_ros.export.media.cloud_writer import CloudWriter, has_points
from robocache_ros.export.media.depth_writer import DepthWriter
from robocache_ros.export.media.joined_video import video_part
from robocache_ros.export.media.picture_writer import ArrayWriter, PictureWriter
from robocache_ros.export.media.video import DEPTH_VIDEO, VideoSettings
from robocache_ros.export.pieces.ordered_calls import OrderedCalls
from robocache_ros.export.statistics import by_column
from robocache_ros.spec.layout import Layout

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
        self._columns = row_columns.RowColumnsWriter(folder, layout)
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
        rows = row_columns.load(self._folder, self._layout)
        rows = {name: values[self._first : self._total] for name, values in rows.items()}
        length = self._total - self._first
        stats = {
            name: by_column(lambda k, of=feature: of.column(rows, k), feature.shape, length)  # type: ignore[misc]
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
                    self._arrays[name] = DepthWriter(self._folder, stream, rate_hz)
                elif self._points and has_points(stream):
                    self._arrays[name] = CloudWriter(self._folder, stream, self._points)
                else:
                    self._arrays[name] = ArrayWriter(self._folder, stream)
            elif usual := sorted(encodings - {DEPTH_VIDEO}):
                self._pictures[name] = PictureWriter(self._folder, stream, usual, rate_hz, self._video)
        for name, media in self._media.items():
            media.begin_episode()
            self._threads[name] = OrderedCalls(f"write-{name}")
