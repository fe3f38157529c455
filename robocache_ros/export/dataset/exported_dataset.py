"""The contents of a dataset: all episodes, read from the pieces of the recordings. Formats write it to files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.feature_columns import FeatureColumns
from robocache_ros.export.dataset.features import Feature, features_of
from robocache_ros.export.dataset.outcomes import known_outcomes
from robocache_ros.export.dataset.piece_contents import ArrayInfo, PictureInfo, PieceContents, common
from robocache_ros.export.episodes.episode_info import EpisodeInfo
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.media.depth_codes import depth_stats
from robocache_ros.export.media.picture_writer import VIDEO
from robocache_ros.export.statistics import Histogram, Stats, by_column
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout

CONTENTS_KEPT = 256  # contents of pieces in memory
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
    """The contents of a dataset. Pickled, it is small: other processes read the pieces that they need.

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
        self.pieces = tuple(pieces)
        lengths, of_pictures, of_arrays = [], [], []
        for piece in pieces:
            contents = PieceContents.load(piece.folder)
            lengths.append(contents.lengths)
            of_pictures.append({name: replace(info, episodes=()) for name, info in contents.pictures.items()})
            of_arrays.append({name: replace(info, depth_episodes=()) for name, info in contents.arrays.items()})
        names = [piece.recording.name for piece in pieces]
        self.pictures: dict[str, PictureInfo] = common(of_pictures, names)
        self.arrays: dict[str, ArrayInfo] = common(of_arrays, names)
        self.depth_videos = tuple(name for name, info in self.arrays.items() if info.depth_unit)
        self.lengths = tuple(lengths)
        self._open()

    def _open(self) -> None:
        self.features: dict[str, Feature] = features_of(self.layout)
        self.contents = lru_cache(CONTENTS_KEPT)(PieceContents.load)
        self.episodes = Episodes(self)

    def __getstate__(self) -> dict[str, Any]:
        computed = ("features", "contents", "episodes", "stats", "tasks", "outcomes")
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

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
        return self.layout.vectors_of("observation")

    @property
    def actions(self) -> tuple[StreamSpec, ...]:
        """The action vectors, in column order."""
        return self.layout.vectors_of("action")

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The distinct tasks, in order of first use."""
        tasks = (piece.task_of(number) for piece in self.pieces for number in range(len(piece.episodes)))
        return tuple(dict.fromkeys(tasks))

    @cached_property
    def outcomes(self) -> frozenset[str]:
        """What is known of the outcomes of episodes: `reward`, `success`, both or nothing."""
        return known_outcomes(self.spec, (p.success_of(n) for p in self.pieces for n in range(len(p.episodes))))

    @property
    def frames(self) -> int:
        """Number of rows."""
        return sum(self.episodes.lengths)

    @cached_property
    def stats(self) -> dict[str, Stats]:
        """Statistics over all valid values, by feature.

        The numeric features; the images in 0..1 as [3][1][1]; the depth videos in their unit as [1][1][1].
        """
        return {name: self.stats_of(name) for name in self.stats_names}

    @property
    def stats_names(self) -> tuple[str, ...]:
        """The features that have statistics."""
        media = (IMAGES.format(name) for name in (*self.pictures, *self.depth_videos))
        return (*self.features, *media)

    def stats_of(self, name: str) -> Stats:
        """Compute the statistics of a feature."""
        if name in self.features:
            feature = self.features[name]
            column = FeatureColumns(feature, [piece.folder for piece in self.pieces], self.layout, self.frames)
            return by_column(column, feature.shape, self.frames)
        contents = (self.contents(piece.folder) for piece in self.pieces)
        stream = name[len(IMAGES.format("")) :]
        if stream in self.pictures:
            return sum((h for of in contents for h in of.pictures[stream].episodes), Histogram()).stats()
        first, *others = (h for of in contents for h in of.arrays[stream].depth_episodes)
        return depth_stats(sum(others, first), self.arrays[stream].depth_unit)

    def encodings(self, encoding: Callable[[StreamSpec, ExportOptions], str | None]) -> dict[str, str]:
        """Return the encoding of each stream of 8-bit images that a format stores, given that format's `encoding`."""
        found = {name: encoding(self.spec.stream(name), self.options) for name in self.pictures}
        return {name: each for name, each in found.items() if each}

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
        first_rows: the first row of each episode in the dataset.
    """

    def __init__(self, dataset: ExportedDataset) -> None:
        self._dataset = dataset
        self.lengths = tuple(length for of_piece in dataset.lengths for length in of_piece)
        self.first_rows = tuple(accumulate(self.lengths, initial=0))[:-1]
        self._places: list[tuple[int, int, int]] = []  # by episode: the piece, its number and its first row in it
        for index, lengths in enumerate(dataset.lengths):
            first = 0
            for number, length in enumerate(lengths):
                self._places.append((index, number, first))
                first += length

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        place, number, first = self._places[index]
        dataset = self._dataset
        piece = dataset.pieces[place]
        return Episode(
            index=range(len(self))[index],
            recording=piece.recording,
            task=piece.task_of(number),
            task_index=dataset.tasks.index(piece.task_of(number)),
            success=piece.success_of(number),
            length=self.lengths[index],
            first_row=self.first_rows[index],
            piece=piece.folder,
            number=number,
            first=first,
            layout=dataset.layout,
            features=dataset.features,
            pictures=dataset.pictures,
            array_streams=dataset.arrays,
            contents=dataset.contents,
        )
