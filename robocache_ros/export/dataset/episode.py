"""One episode of a dataset, read from its piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset import row_columns
from robocache_ros.export.dataset.features import ACTION, STATE, Feature
from robocache_ros.export.dataset.piece_contents import ArrayInfo, PictureInfo, PieceContents
from robocache_ros.export.dataset.row_columns import Rows
from robocache_ros.export.media.blobs import Blobs
from robocache_ros.export.media.depth_codes import depth_stats
from robocache_ros.export.media.joined_video import VideoPart
from robocache_ros.export.media.picture_writer import blobs_path, samples_path, video_path
from robocache_ros.export.statistics import Histogram, Stats
from robocache_ros.spec.layout import Layout


class EncodedImages(Sequence[bytes]):
    """The images of an episode in one encoding, a file's bytes (or H W 3 raw bytes) per row.

    Attributes:
        samples: (T,) the distinct image of each row; equal numbers are the same image.
        shape: height and width.
    """

    def __init__(self, blobs: Blobs, samples: NDArray[np.int64], shape: tuple[int, int]) -> None:
        self._blobs, self.samples, self.shape = blobs, samples, shape

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: Any) -> Any:
        return self._blobs[int(self.samples[row])]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(T,) number of bytes of each row."""
        return self._blobs.sizes[self.samples]

    def array(self, row: int) -> NDArray[np.uint8]:
        """Return the (H, W, 3) uint8 image of a row; for the encoding raw."""
        return self._blobs.view(int(self.samples[row])).reshape(*self.shape, 3)


class StoredArrays:
    """The voxels or non-8-bit images of an episode.

    Attributes:
        samples: (T,) the distinct array of each row, -1 if there is none; equal numbers are the same array.
        info: shape and dtype.
    """

    def __init__(self, blobs: Blobs, samples: NDArray[np.int64], info: ArrayInfo) -> None:
        self._blobs, self.samples, self.info = blobs, samples, info

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> NDArray[Any] | None:
        data = self.data(row)
        return None if data is None else self.info.array(data)

    def data(self, row: int) -> bytes | None:
        """Return the bytes of a row's array: C order, little endian, bits packed; None if there is none."""
        sample = int(self.samples[row])
        return None if sample < 0 else self._blobs[sample]


@dataclass(frozen=True)
class Episode:
    """Consecutive ticks of a recording."""

    index: int  # in the dataset
    recording: Path
    task: str
    task_index: int
    success: bool | None  # None: not known
    length: int
    first_row: int  # in the dataset
    piece: Path
    number: int  # of the episode in the piece
    first: int  # first row in the piece
    layout: Layout
    features: dict[str, Feature] = field(repr=False)
    pictures: dict[str, PictureInfo] = field(repr=False)  # those of the dataset, without counts
    array_streams: dict[str, ArrayInfo] = field(repr=False)
    contents: Callable[[Path], PieceContents] = field(repr=False)  # reads those of a piece

    @property
    def stats(self) -> dict[str, Stats]:
        """Statistics of the numeric features."""
        return self.contents(self.piece).stats[self.number]

    @cached_property
    def rows(self) -> Rows:
        """The columns of the piece, at these ticks."""
        stop = self.first + self.length
        return {name: values[self.first : stop] for name, values in row_columns.load(self.piece, self.layout).items()}

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
        found = np.zeros(self.length, np.bool_)
        for stream in self.layout.spec.vectors:
            if stream.role == "success":
                found = self.has(stream.name) & (self.vector(stream.name)[:, 0] != 0)
        found[-1] = bool(self.success)
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

    def images(self, stream: str, encoding: str) -> EncodedImages:
        """Return the images of a stream in the encoding png, jpeg or raw, which the format must have asked for."""
        blobs = Blobs(blobs_path(self.piece, stream, encoding))
        return EncodedImages(blobs, self._samples(stream), self.pictures[stream].shape)

    def video(self, stream: str, codec: str) -> Path:
        """Return the mp4 file with one frame per row, in a codec which the format must have asked for.

        `DEPTH_VIDEO` for depth, with `ExportOptions.depth` video.
        """
        return video_path(self.piece, stream, codec, self.number)

    def video_part(self, stream: str, codec: str) -> VideoPart:
        """Return what is known of the file of `video`, without reading it."""
        return self.contents(self.piece).videos[video_path(Path(), stream, codec, self.number).as_posix()]

    def histogram(self, stream: str) -> Histogram:
        """Return the counts of the pixel values of a stream of 8-bit images."""
        return self.contents(self.piece).pictures[stream].episodes[self.number]

    def image_stats(self, stream: str) -> Stats:
        """Return the statistics of the pixels of a stream of 8-bit images in 0..1, or of depth videos in their unit."""
        if stream in self.pictures:
            return self.histogram(stream).stats()
        codes = self.contents(self.piece).arrays[stream].depth_episodes[self.number]
        return depth_stats(codes, self.array_streams[stream].depth_unit)

    def arrays(self, stream: str) -> StoredArrays:
        """Return the voxels or non-8-bit images of a stream."""
        blobs = Blobs(blobs_path(self.piece, stream, "arrays"))
        return StoredArrays(blobs, self._samples(stream), self.array_streams[stream])

    def _samples(self, stream: str) -> NDArray[np.int64]:
        offset = 8 * self.first
        return np.fromfile(samples_path(self.piece, stream), "<i8", self.length, offset=offset).astype(np.int64)

    def _feature(self, name: str) -> NDArray[np.float32]:
        if name not in self.features:
            return np.zeros((self.length, 0), np.float32)
        return self.features[name].values(self.rows)
