"""The contents of a dataset: all episodes, read from the pieces of the recordings. Formats write it to files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.dataset import row_columns
from robocache_ros.export.dataset.episode import ArrayInfo, Episode, PictureInfo
from robocache_ros.export.dataset.features import Feature, features_of, of_role
from robocache_ros.export.dataset.outcomes import known_outcomes
from robocache_ros.export.episodes.episode_info import EpisodeInfo
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.media.depth_codes import depth_stats
from robocache_ros.export.media.picture_writer import VIDEO
from robocache_ros.export.statistics import Histogram, Stats, by_column
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout

CONTENTS = "contents.json"  # of a piece: its episodes with their statistics, and what is known of each stream
STATS_BYTES = 128 << 20  # bytes of columns that statistics are computed from at once
IMAGES = "observation.images.{}"
_LOSSLESS = {"png": "8-bit RGB as PNG, lossless", "raw": "8-bit RGB, lossless", "jpeg": "8-bit RGB as JPEG, lossy"}


@dataclass(frozen=True)
class Piece:
    """The piece of a recording in a dataset. The same folder may occur several times."""

    folder: Path
    recording: Path
    task: str  # of the episodes of which the recording does not state one
    episodes: tuple[EpisodeInfo, ...]
    success: bool | None = None  # of the episodes of which the recording does not state it; None: not known

    def task_of(self, number: int) -> str:
        """Return the task of an episode of the piece."""
        task = self.episodes[number].task
        return self.task if task is None else task

    def success_of(self, number: int) -> bool | None:
        """Return whether an episode of the piece succeeded."""
        success = self.episodes[number].success
        return self.success if success is None else success


class ExportedDataset:
    """The contents of a dataset.

    Args:
        pieces: in dataset order.
        layout: the columns of the rows.
        options: of the export.
        provenance: the data needed to recreate the dataset, as JSON values.

    Attributes:
        pictures: the streams of 8-bit images.
        arrays: the streams of voxels and of images that are not 8-bit.
        depth_videos: the names of those among `arrays` of which there are videos too.

    Errors:
        RoboCacheError: two recordings have images or arrays of different sizes or types.
    """

    def __init__(
        self, pieces: Sequence[Piece], layout: Layout, options: ExportOptions, provenance: dict[str, Any]
    ) -> None:
        self.layout, self.options, self.provenance = layout, options, provenance
        self._pieces = pieces
        self._contents = [json.loads((piece.folder / CONTENTS).read_text(encoding="utf-8")) for piece in pieces]
        self.features: dict[str, Feature] = features_of(layout)
        names = [piece.recording.name for piece in pieces]
        of_pictures = [{n: PictureInfo.from_dict(raw) for n, raw in c["pictures"].items()} for c in self._contents]
        of_arrays = [{n: ArrayInfo.from_dict(raw) for n, raw in c["arrays"].items()} for c in self._contents]
        self.pictures = {name: _common(name, [of[name] for of in of_pictures], names) for name in of_pictures[0]}
        self.arrays = {name: _common(name, [of[name] for of in of_arrays], names) for name in of_arrays[0]}
        self.depth_videos = tuple(name for name, info in self.arrays.items() if info.depth_unit)
        self._of_pictures, self._of_arrays = of_pictures, of_arrays
        self.episodes = Episodes(self, pieces, self._contents, of_pictures, of_arrays)

    @property
    def spec(self) -> FusionSpec:
        """The streams."""
        return self.layout.spec

    @property
    def rate_hz(self) -> int:
        """Ticks per second."""
        return self.spec.rate_hz

    @property
    def state(self) -> tuple[StreamSpec, ...]:
        """The observation vectors that are not windows, in column order."""
        return of_role(self.layout, "observation")

    @property
    def actions(self) -> tuple[StreamSpec, ...]:
        """The action vectors, in column order."""
        return of_role(self.layout, "action")

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The distinct tasks, in order of first use."""
        tasks = (piece.task_of(number) for piece in self._pieces for number in range(len(piece.episodes)))
        return tuple(dict.fromkeys(tasks))

    @cached_property
    def outcomes(self) -> frozenset[str]:
        """What is known of the outcomes of episodes: `reward`, `success`, both or nothing."""
        return known_outcomes(self.spec, (p.success_of(n) for p in self._pieces for n in range(len(p.episodes))))

    @property
    def frames(self) -> int:
        """Number of rows."""
        return sum(self.episodes.lengths)

    @cached_property
    def stats(self) -> dict[str, Stats]:
        """Statistics over all valid values, by feature.

        The numeric features; the images in 0..1 as [3][1][1]; the depth videos in their unit as [1][1][1].
        """
        stats = {}
        for name, feature in self.features.items():
            column = _Columns(feature, [piece.folder for piece in self._pieces], self.layout, self.frames)
            stats[name] = by_column(column, feature.shape, self.frames)
        for name in self.pictures:
            histograms = [h for of in self._of_pictures for h in of[name].episodes]
            stats[IMAGES.format(name)] = sum(histograms, Histogram()).stats()
        for name in self.depth_videos:
            first, *others = (h for of in self._of_arrays for h in of[name].depth_episodes)
            stats[IMAGES.format(name)] = depth_stats(sum(others, first), self.arrays[name].depth_unit)
        return stats

    def stored(self, stream: str, encoding: str | None) -> str:
        """Describe how a dataset stores a stream of images or voxels, given the encoding that its format uses."""
        if stream in self.depth_videos:
            return "arrays, lossless; in the format lerobot 12-bit depth video (hevc), in steps of 1 to 4 mm"
        if stream in self.arrays:
            return "arrays, lossless"
        if encoding is None or stream not in self.pictures:
            return "not stored"
        if encoding in VIDEO:
            picture = self.pictures[stream]
            return f"8-bit RGB as {picture.codecs[encoding]} video ({picture.pixel_formats[encoding]}), lossy"
        return _LOSSLESS[encoding]


class Episodes(Sequence[Episode]):
    """The episodes of a dataset, in order. Each one is read when it is asked for.

    Attributes:
        lengths: number of rows of each episode.
    """

    def __init__(
        self,
        dataset: ExportedDataset,
        pieces: Sequence[Piece],
        contents: Sequence[dict[str, Any]],
        pictures: Sequence[dict[str, PictureInfo]],
        arrays: Sequence[dict[str, ArrayInfo]],
    ) -> None:
        self._dataset, self._pieces, self._contents = dataset, pieces, contents
        self._pictures, self._arrays = pictures, arrays
        self.lengths = tuple(episode["length"] for told in contents for episode in told["episodes"])
        self._places: list[tuple[int, int, int]] = []  # by episode: the piece, its number and its first row in it
        for index, told in enumerate(contents):
            first = 0
            for number, episode in enumerate(told["episodes"]):
                self._places.append((index, number, first))
                first += episode["length"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        place, number, first = self._places[index]
        piece, dataset = self._pieces[place], self._dataset
        return Episode(
            index=range(len(self))[index],
            recording=piece.recording,
            task=piece.task_of(number),
            task_index=dataset.tasks.index(piece.task_of(number)),
            success=piece.success_of(number),
            length=self.lengths[index],
            piece=piece.folder,
            number=number,
            first=first,
            layout=dataset.layout,
            features=dataset.features,
            pictures=self._pictures[place],
            array_streams={
                name: replace(info, depth_episodes=self._arrays[place][name].depth_episodes)
                for name, info in dataset.arrays.items()
            },
            stats=self._contents[place]["episodes"][number]["stats"],
        )


class _Columns:
    """Reads the values of each number of a feature from all pieces, several numbers at a time in bounded memory."""

    def __init__(self, feature: Feature, pieces: Sequence[Path], layout: Layout, rows: int) -> None:
        self._feature, self._pieces, self._layout = feature, pieces, layout
        self._step = max(1, STATS_BYTES // (8 * rows))
        self._first, self._block = -self._step, np.zeros((0, 0))

    def __call__(self, k: int) -> NDArray[Any]:
        if not self._first <= k < self._first + self._step:
            numbers = range(k, min(k + self._step, len(self._feature.columns)))
            self._first, self._block = k, np.concatenate([self._read(piece, numbers) for piece in self._pieces], axis=1)
        values: NDArray[Any] = self._block[k - self._first]
        return values

    def _read(self, piece: Path, numbers: Sequence[int]) -> NDArray[Any]:
        rows = row_columns.load(piece, self._layout)  # of one piece at a time: the number of mapped files is limited
        return np.stack([self._feature.column(rows, k) for k in numbers])


def _common(name: str, parts: Sequence[Any], recordings: Sequence[str]) -> Any:
    """Return what is known of a stream, which must be equal in all pieces where an image has come."""
    known = [index for index, part in enumerate(parts) if 0 not in part.shape] or [0]
    first = parts[known[0]]
    for index in known:
        part = parts[index]
        if _described(part) != _described(first):
            raise RoboCacheError(
                f"streams.{name}: {_described(first)} in {recordings[known[0]]}, {_described(part)} in "
                f"{recordings[index]}; give it one size, or make two datasets"
            )
    return first


def _described(part: PictureInfo | ArrayInfo) -> str:
    dtype = part.dtype if isinstance(part, ArrayInfo) else "uint8"
    return f"{'x'.join(map(str, part.shape))} {dtype}"
