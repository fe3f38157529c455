"""The contents of a dataset, as a writer gets them: all episodes, read from the pieces of the recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.formats import pieces
from robocache_ros.formats.pictures import VIDEO, Blobs, blobs_name, samples_name, video_name
from robocache_ros.formats.pieces import (
    ArrayInfo,
    EpisodeInfo,
    Feature,
    PictureInfo,
    PieceContents,
    Rows,
    common,
    feature_columns,
    features_of,
)
from robocache_ros.formats.read import ACTION, IMAGES, STATE
from robocache_ros.formats.statistics import Histogram, Stats, by_column
from robocache_ros.formats.video import VideoPart, depth_stats
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.paths import AnyPath


class StoredMedia(Sequence[bytes]):
    """The images of an episode in one encoding, or its voxels or non-8-bit images; one for each row.

    Attributes:
        samples: (T,) the distinct image or array of each row, -1 if there is none; equal numbers are the same one.
        info: shape and dtype of `array`.
    """

    def __init__(self, blobs: Blobs, samples: NDArray[np.int64], info: ArrayInfo) -> None:
        self._blobs, self.samples, self.info = blobs, samples, info

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: Any) -> Any:
        """Return the bytes of a row that has some: a file, or an array in C order, little endian, bits packed."""
        return self._blobs[int(self.samples[row])]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(T,) number of bytes of each row."""
        return self._blobs.sizes[self.samples]

    def array(self, row: int) -> NDArray[Any]:
        """Return the array of a row; zeros if there is none. Of images, which are (H, W, 3): for the encoding raw."""
        sample = int(self.samples[row])
        if sample < 0:
            return np.zeros(self.info.shape, self.info.numpy_dtype)
        return self.info.array(self._blobs.view(sample))


@dataclass(frozen=True)
class Episode:
    """Consecutive ticks of a recording."""

    index: int  # in the dataset
    recording: AnyPath
    task: str
    task_index: int
    success: bool | None  # None: not known
    length: int
    first_row: int  # in the dataset
    piece: AnyPath
    number: int  # of the episode in the piece
    first: int  # first row in the piece
    dataset: ExportedDataset = field(repr=False)

    @property
    def layout(self) -> Layout:
        """The columns of the rows."""
        return self.dataset.layout

    @property
    def contents(self) -> PieceContents:
        """What is known of the piece."""
        return self.dataset.contents(self.piece)

    @property
    def stats(self) -> dict[str, Stats]:
        """Statistics of the numeric features."""
        return self.contents.stats[self.number]

    @cached_property
    def rows(self) -> Rows:
        """The columns of the piece, at these ticks."""
        stop = self.first + self.length
        return {name: values[self.first : stop] for name, values in pieces.load(self.piece, self.layout).items()}

    @property
    def ticks_ns(self) -> NDArray[np.int64]:
        """(T,) the ticks."""
        return self.rows["ticks_ns"]

    @property
    def stamps_ns(self) -> NDArray[np.int64]:
        """(T, N) stamp, as in the message, of the sample that each stream used; 0 if there is none."""
        return self.rows["stamps_ns"]

    @property
    def valid(self) -> NDArray[np.uint8]:
        """(T, N) 0 none, 1 aligned, 2 held."""
        return self.rows["valid"]

    @property
    def age_ns(self) -> NDArray[np.int64]:
        """(T, N) age of the sample at the tick."""
        return self.rows["age_ns"]

    @property
    def fused(self) -> NDArray[np.float32]:
        """(T, D) values; columns as in Layout."""
        return self.rows["fused"]

    @property
    def state(self) -> NDArray[np.float32]:
        """(T, S) all observation vectors that are not windows."""
        return self._feature(STATE)

    @property
    def action(self) -> NDArray[np.float32]:
        """(T, A) all action vectors."""
        return self._feature(ACTION)

    @cached_property
    def rewards(self) -> NDArray[np.float32]:
        """(T,) the stream with role reward, 0 where it has no value; without one, 1 at the last tick of a success."""
        for stream in self.layout.spec.vectors:
            if stream.role == "reward":
                return self.vector(stream.name)[:, 0]
        rewards = np.zeros(self.length, np.float32)
        rewards[-1] = 1.0 if self.success else 0.0
        return rewards

    @cached_property
    def successes(self) -> NDArray[np.bool_]:
        """(T,) whether the stream with role success is not 0, false without a value; the last: `success`, if known."""
        found = self._marked("success")
        found[-1] = bool(self.success)
        return found

    @cached_property
    def interventions(self) -> NDArray[np.bool_]:
        """(T,) whether the stream with role intervention is not 0, false without a value."""
        return self._marked("intervention")

    def _marked(self, role: str) -> NDArray[np.bool_]:
        found = np.zeros(self.length, np.bool_)
        for stream in self.layout.spec.vectors:
            if stream.role == role:
                found = self.has(stream.name) & (self.vector(stream.name)[:, 0] != 0)
        return found

    def has(self, stream: str) -> NDArray[np.bool_]:
        """(T,) whether a stream has a value."""
        found: NDArray[np.bool_] = self.valid[:, self.layout.names.index(stream)] > 0
        return found

    def vector(self, stream: str) -> NDArray[np.float32]:
        """Return the values of a vector stream, (T, dim) or for a window (T, n, dim)."""
        values = self.fused[:, self.layout.slots[stream]]
        return values.reshape(self.length, *self.layout.spec.stream(stream).shape)

    def window_ages_ms(self, stream: str) -> NDArray[np.float32]:
        """(T, n) age of each sample of a window, negative for padding."""
        ages: NDArray[np.float32] = self.rows["sample_age_ms"][:, self.layout.sample_ages[stream]]
        return ages

    def images(self, stream: str, encoding: str) -> StoredMedia:
        """Return the images of a stream in the encoding png, jpeg or raw, which the format must have requested."""
        return self._media(stream, encoding, ArrayInfo((*self.dataset.pictures[stream].shape, 3), "uint8"))

    def video(self, stream: str, codec: str) -> AnyPath:
        """Return the mp4 file with one frame per row, in a codec which the format must have requested.

        `DEPTH_VIDEO` for depth, with `DatasetOptions.depth` video.
        """
        return self.piece / video_name(stream, codec, self.number)

    def video_part(self, stream: str, codec: str) -> VideoPart:
        """Return what is known of the file of `video`, without reading it."""
        return self.contents.videos[video_name(stream, codec, self.number)]

    def histogram(self, stream: str) -> Histogram:
        """Return the counts of the pixel values of a stream of 8-bit images."""
        return self.contents.pictures[stream].episodes[self.number]

    def image_stats(self, stream: str) -> Stats:
        """Return the statistics of the pixels of a stream of 8-bit images in 0..1, or of depth videos in their unit."""
        if stream in self.dataset.pictures:
            return self.histogram(stream).stats()
        codes = self.contents.arrays[stream].depth_episodes[self.number]
        return depth_stats(codes, self.dataset.arrays[stream].depth_unit)

    def arrays(self, stream: str) -> StoredMedia:
        """Return the voxels or non-8-bit images of a stream."""
        return self._media(stream, "arrays", self.dataset.arrays[stream])

    def _media(self, stream: str, encoding: str, info: ArrayInfo) -> StoredMedia:
        samples = np.fromfile(self.piece / samples_name(stream), "<i8", self.length, offset=8 * self.first)
        return StoredMedia(Blobs(self.piece / blobs_name(stream, encoding)), samples.astype(np.int64), info)

    def _feature(self, name: str) -> NDArray[np.float32]:
        if name not in self.dataset.features:
            return np.zeros((self.length, 0), np.float32)
        return self.dataset.features[name].values(self.rows)


CONTENTS_KEPT = 256  # contents of pieces in memory
_LOSSLESS = {"png": "8-bit RGB as PNG, lossless", "raw": "8-bit RGB, lossless", "jpeg": "8-bit RGB as JPEG, lossy"}


@dataclass(frozen=True)
class Piece:
    """The piece of a recording in a dataset. The same folder may occur several times."""

    folder: AnyPath
    recording: AnyPath
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
    """The contents of a dataset. Pickled, it is small: other processes read the pieces that they need."""

    def __init__(
        self, pieces: Sequence[Piece], layout: Layout, options: DatasetOptions, provenance: dict[str, Any]
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
        self.pictures: dict[str, PictureInfo] = common(of_pictures, names)  # 8-bit images
        self.arrays: dict[str, ArrayInfo] = common(of_arrays, names)  # voxels, and images that are not 8-bit
        # Of which there are videos too.
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
        """What is known of the episodes: `reward` and `success`, `reward` or nothing; and `intervention`.

        A known success is also a reward, at the last tick.
        """
        roles = {stream.role for stream in self.spec.vectors}
        successes = (piece.success_of(number) for piece in self.pieces for number in range(len(piece.episodes)))
        known = "success" in roles or any(success is not None for success in successes)
        return frozenset({"reward", "intervention"} & roles | ({"reward", "success"} if known else set()))

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
        media = (IMAGES + name for name in (*self.pictures, *self.depth_videos))
        return (*self.features, *media)

    def stats_of(self, name: str) -> Stats:
        """Compute the statistics of a feature."""
        if name in self.features:
            feature = self.features[name]
            columns = feature_columns(feature, [piece.folder for piece in self.pieces], self.layout, self.frames)
            return by_column(columns, feature.shape, self.frames)
        contents = (self.contents(piece.folder) for piece in self.pieces)
        stream = name[len(IMAGES) :]
        if stream in self.pictures:
            return sum((h for of in contents for h in of.pictures[stream].episodes), Histogram()).stats()
        first, *others = (h for of in contents for h in of.arrays[stream].depth_episodes)
        return depth_stats(sum(others, first), self.arrays[stream].depth_unit)

    def encodings(self, encoding: Callable[[StreamSpec, DatasetOptions], str | None]) -> dict[str, str]:
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
    """The episodes of a dataset, in order. Each one is read when it is asked for."""

    def __init__(self, dataset: ExportedDataset) -> None:
        self._dataset = dataset
        self.lengths = tuple(length for of_piece in dataset.lengths for length in of_piece)  # rows of each
        self.first_rows = tuple(accumulate(self.lengths, initial=0))[:-1]  # in the dataset
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
            dataset=dataset,
        )
