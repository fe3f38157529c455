"""Read exported MCAP recordings of fused episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import Data
from robocache_ros.bags.storage.mcap import McapFile
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.engine.backends.media import tensor_format
from robocache_ros.errors import printable
from robocache_ros.formats.columns import MAX_BYTES, Marks, export_columns, read_marks
from robocache_ros.formats.images import decode_image
from robocache_ros.formats.mcap import schema
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    DatasetError,
    SourceEpisode,
    check_image_bytes,
    numbers,
    read_object,
    refusing,
)
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.spec import FusionSpec, StreamSpec, load_spec
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below

_DTYPES = {encoding: np.dtype(dtype).newbyteorder("<") for dtype, encoding in schema.ENCODINGS.items()}


def window_values(values: NDArray[np.float32], rows: int, dim: int) -> NDArray[np.float32]:
    """Return the (T, rows, dim) values of a window, from its ages and the values of each component; 0 for padding."""
    by_sample: NDArray[np.float32] = values[:, rows:].reshape(len(values), dim, rows).transpose(0, 2, 1).copy()
    by_sample[values[:, :rows] < 0] = 0
    return by_sample


def read_image(message: bytes | memoryview) -> NDArray[Any]:
    """Return the (H, W, C) pixels of a sensor_msgs/Image."""
    image = _read(schema.IMAGE_TYPE, message)
    name = image.encoding.rstrip("0123456789")
    dtype, channels = _DTYPES[name], int(image.encoding[len(name) :])
    return np.frombuffer(bytes(image.data), dtype).reshape(image.height, image.width, channels)


def read_voxels(message: bytes | memoryview, stream: StreamSpec) -> NDArray[Any]:
    """Return the grid, (X, Y, Z) or (F, X, Y, Z), whose occupied voxels are a sensor_msgs/PointCloud2.

    Errors:
        ValueError: a point is outside of the grid.
    """
    cloud = _read(schema.CLOUD_TYPE, message)
    grid, form = stream.voxels, tensor_format(stream)
    assert grid is not None
    points = np.frombuffer(bytes(cloud.data), "<f4").reshape(cloud.width, -1)
    cells = np.rint((points[:, :3].astype(np.float64) - grid.origin_m) / grid.size_m - 0.5).astype(np.int64)
    if not ((cells >= 0) & (cells < grid.shape)).all():
        raise ValueError("a voxel is outside of the grid")
    shape, dtype = tuple(form.shape), np.dtype(str(form.dtype).removeprefix("torch."))
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"a grid of {shape}")
    found = np.zeros(shape if len(shape) == 4 else (1, *shape), dtype)
    x, y, z = cells.T
    found[:, x, y, z] = points[:, 3:].T if points.shape[1] > 3 else 1
    return found.reshape(shape)


def _read(name: str, message: bytes | memoryview) -> Any:
    return read_message(_type(name), message)


_type = cache(message_type)


_LAST_NS = 2**63 - 1
Messages = list[tuple[int, Data]]  # log time and data


class McapEpisodes:
    """The episodes of a dataset in the format mcap.

    Args:
        path: the folder with robocache.json and a folder per episode.

    Errors:
        DatasetError: a file is missing or damaged, or the recordings are not an export of this project.
    """

    def __init__(self, path: str | AnyPath) -> None:
        self.folder = as_path(path)
        self.name = self.folder.name
        provenance, where = (
            read_object(file_below(self.folder, PROVENANCE)),
            printable(self.folder / PROVENANCE),
        )
        self.export = export_columns(provenance, where)
        with refusing(where, "has no spec or no episodes", "export the dataset again"):
            self._spec: FusionSpec = load_spec(provenance["layout"]["spec"])
            self._count = len(provenance["episodes"])  # not that of the files, of which some may be missing
        if not 0 < self._count <= MAX_EPISODES:
            raise DatasetError(f"{where}: lists {self._count:,} episodes; 1 to {MAX_EPISODES:,} are read")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.folder / PROVENANCE, *(self.folder / self._name(index) for index in range(self._count)))

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images and arrays are read when they are asked for."""
        path = file_below(self.folder, self._name(index))
        where = printable(path)
        topics = {stream.name: schema.values_topic(stream) for stream in self._spec.streams}
        with _reading(path) as file:
            stored = {topic.name: topic.type for topic in file.topics if topic.count}
            read = _messages(file, {*topics.values(), schema.TASK, schema.REWARD}, 0, _LAST_NS)
            ticks = np.array([at for at, _ in read[schema.REWARD]], np.int64)
            counts = {len(read[topic]) for topic in topics.values()}
            if not 0 < len(ticks) <= MAX_STEPS or counts - {len(ticks)} or not read[schema.TASK]:
                raise ValueError("its topics do not have a message per tick")
            rows = {
                stream.name: schema.stream_rows(
                    [data for _, data in read[topics[stream.name]]], schema.values_of(stream)
                )
                for stream in self._spec.streams
            }
            rewards = np.array([_read(schema.NUMBER_TYPE, data).data for _, data in read[schema.REWARD]], np.float32)
            task = str(_read(schema.STRING_TYPE, read[schema.TASK][0][1]).data)
        marks = self._marks(ticks, rows, where)
        found: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for stream in self._spec.streams:
            topic = f"{schema.PREFIX}/{stream.name}"
            if stream.kind == "vector":
                if stream.role in ("observation", "action"):
                    found[stream.name] = numbers(_values(stream, rows[stream.name]), f"{where}: {stream.name}")
            elif topic in stored:
                is_image = stored[topic] == schema.COMPRESSED_TYPE
                convert = _picture if is_image else partial(_array, stream)
                (found if is_image else arrays)[stream.name] = TopicRows(
                    path, topic, _first_ticks(ticks, rows[stream.name]), convert
                )
        streams = self.export.episode_streams(ticks, marks, found, arrays, rewards, where)
        return SourceEpisode(streams, task, self.name, where)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        with _reading(file_below(self.folder, self._name(index))) as file:
            groups = file.log_times()
            return min(group.first_ns for group in groups), max(group.last_ns for group in groups)

    def _name(self, index: int) -> str:
        return f"{schema.episode_folder(index)}/{schema.episode_folder(index)}.mcap"

    def _marks(self, ticks: NDArray[np.int64], rows: dict[str, schema.StreamRows], where: str) -> Marks:
        names = self.export.names
        if missing := [name for name in names if name not in rows]:
            raise DatasetError(f"{where}: has no {printable(missing[0], 40)}; export the dataset again")
        valid = np.stack([rows[name].valid for name in names], axis=1)
        stamps = np.stack([rows[name].stamps_ns for name in names], axis=1)
        latency = np.array([self._spec.stream(name).latency_ns for name in names])
        age_ns = np.where(valid > 0, ticks[:, None] - (stamps - latency), 0)  # stamps are those of the messages
        return read_marks(self.export, valid, age_ns, where)


@dataclass(frozen=True)
class TopicRows:
    """The images or voxels of an episode: a message at the first tick of each.

    Attributes:
        firsts_ns: (T,) the tick whose message a row uses; -1 where there is none.
    """

    path: DatasetFile
    topic: str
    firsts_ns: NDArray[np.int64]
    convert: Callable[[Data, str], NDArray[Any]]

    def __len__(self) -> int:
        return len(self.firsts_ns)

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, ...) images or voxels of rising rows; zeros where there is none.

        Errors:
            DatasetError: a message is missing or damaged.
        """
        firsts = self.firsts_ns[rows]
        wanted = np.unique(firsts[firsts >= 0])
        where = f"{printable(self.path)}: {printable(self.topic, 60)}"
        if not len(wanted):  # of one for the shape
            wanted = np.unique(self.firsts_ns[self.firsts_ns >= 0])[:1]
        found: NDArray[Any] | None = None
        with _reading(self.path) as file:
            messages = dict(_messages(file, {self.topic}, int(wanted[0]), int(wanted[-1]) + 1)[self.topic])
            for first in wanted.tolist():
                if first not in messages:
                    raise DatasetError(f"{where}: no message at {first} ns; export the dataset again")
                array = self.convert(messages[first], f"{where} at {first} ns")
                if found is None:
                    check_image_bytes(len(rows), (*array.shape, array.itemsize), where)
                    found = np.zeros((len(rows), *array.shape), array.dtype)
                found[firsts == first] = array
        assert found is not None
        return found


@contextmanager
def _reading(path: DatasetFile) -> Iterator[McapFile]:
    """Open a file; a damaged message in it is an error."""
    where = printable(path)
    # Damaged messages raise errors of any kind.
    with refusing(where, "damaged", errors=(Exception,)), closing(McapFile(path)) as file:
        yield file
        if file.notes:
            raise DatasetError(f"{where}: {printable(file.notes[0], 100)}; get the file again")


def _messages(file: McapFile, topics: set[str], start_ns: int, stop_ns: int) -> dict[str, Messages]:
    found: dict[str, Messages] = {topic: [] for topic in topics}
    for message in file.messages(topics, start_ns, stop_ns):
        found[message.topic].append((message.log_ns, message.data))
    return found


def _values(stream: StreamSpec, rows: schema.StreamRows) -> NDArray[np.float32]:
    """Return the values of a stream; 0 where its marks say that there is none, so that any other NaN is refused."""
    if stream.rows:
        return window_values(rows.values, stream.rows, stream.dim)
    return np.where(rows.valid[:, None] > 0, rows.values, np.float32(0))


def _first_ticks(ticks: NDArray[np.int64], rows: schema.StreamRows) -> NDArray[np.int64]:
    """(T,) the first tick that uses the sample of each tick, -1 where there is none."""
    _, first, sample = np.unique(rows.stamps_ns + (rows.valid == 0) * -_LAST_NS, return_index=True, return_inverse=True)
    return np.where(rows.valid > 0, ticks[first[sample.reshape(-1)]], -1)


def _picture(data: Data, where: str) -> NDArray[Any]:
    return decode_image(bytes(_read(schema.COMPRESSED_TYPE, data).data), where)


def _array(stream: StreamSpec, data: Data, where: str) -> NDArray[Any]:
    return read_voxels(data, stream) if stream.voxels else read_image(data)
