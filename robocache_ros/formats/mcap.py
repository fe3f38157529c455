"""The fused stream as a recording (mcap) per episode, which Foxglove and PlotJuggler plot and ROS 2 plays.

episode_000000/episode_000000.mcap   the messages; their log time is the tick
episode_000000/metadata.yaml         as in each rosbag2 recording
robocache.json                       the provenance, written last

/robocache/<vector>                  a message per tick, with a field for each value, and valid, age_ms and stamp
/robocache/<image>                   sensor_msgs/CompressedImage or Image, at the ticks with a new one
/robocache/<voxels>                  sensor_msgs/PointCloud2, at the ticks with a new one
/robocache/<image or voxels>/status  valid, age_ms and stamp of each tick
/robocache/episode/<name>            task, layout: at the first tick; reward: at each tick

The messages are packed here, because ROS is not needed for an export, and general serializers take many times as long.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.bags.source import Data
from robocache_ros.bags.storage.mcap import McapFile, add_checksums
from robocache_ros.bags.storage.metadata import read_metadata
from robocache_ros.bags.write import write_bag
from robocache_ros.decode.cdr import CdrWriter, read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.engine.backends.media import tensor_format
from robocache_ros.engine.frames import status_columns
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import (
    ExportedRows,
    Findings,
    FormatCheck,
    check_ticks,
    file_in,
    files_in,
    image_size,
    read_json,
    stamps_disagree,
)
from robocache_ros.formats.columns import MAX_BYTES, Marks, export_columns, read_marks
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.images import decode_image
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    PROVENANCE,
    DatasetError,
    SourceEpisode,
    check_image_bytes,
    numbers,
    read_object,
    refusing,
)
from robocache_ros.formats.write import (
    FileTask,
    WrittenByTasks,
    group_tasks,
    row_bytes,
    write_provenance,
)
from robocache_ros.ops.voxel.grid import voxel_points
from robocache_ros.spec import FusionSpec, StreamSpec, VoxelSpec, load_spec
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.units import NS_PER_S
from robocache_ros.untrusted_files import DatasetFile, file_below

PREFIX = "/robocache"  # and the name of a stream
TASK, LAYOUT, REWARD = (f"{PREFIX}/episode/{name}" for name in ("task", "layout", "reward"))
IMAGE_TYPE, COMPRESSED_TYPE = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CLOUD_TYPE, STRING_TYPE, NUMBER_TYPE = "sensor_msgs/msg/PointCloud2", "std_msgs/msg/String", "std_msgs/msg/Float32"
EPISODE_TYPES = {LAYOUT: STRING_TYPE, TASK: STRING_TYPE, REWARD: NUMBER_TYPE}
LITTLE_ENDIAN = b"\0\1\0\0"
# Of images that are not 8-bit RGB: dtype -> encoding, less the number of channels.
ENCODINGS = {"float32": "32FC", "uint16": "16UC", "uint8": "8UC", "int32": "32SC", "float64": "64FC"}
_FLOAT32 = 7  # a sensor_msgs/PointField datatype
_STATUS = ("stamp", "valid", "age_ms", "sample_age_ms")  # fields before the values


def episode_folder(number: int) -> str:
    """Return the name of the folder of a recording, and of its file without .mcap."""
    return f"episode_{number:06d}"


def values_topic(stream: StreamSpec) -> str:
    """Return the topic with a message per tick: the values of a vector, or the status of images or voxels."""
    return f"{PREFIX}/{stream.name}{'' if stream.kind == 'vector' else '/status'}"


def values_of(stream: StreamSpec) -> int:
    """Return the number of values after `age_ms` in a message of `values_topic`."""
    if stream.kind != "vector":
        return 0
    return stream.rows + stream.rows * stream.dim if stream.rows else stream.dim


def field_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return a distinct ROS field name for each label: `panda_joint1`, `position_x` for `position.x`, `v0` for `0`."""
    names: list[str] = []
    for index, label in enumerate(labels):
        name = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") or "v"
        name = name if name[0].isalpha() else f"v{name}"
        names.append(f"{name}_{index}" if name in (*_STATUS, *names) else name)
    return tuple(names)


def definition(stream: StreamSpec) -> str:
    """Return the definition of the messages of a vector stream, or of the status of an image or voxel stream."""
    lines = ["builtin_interfaces/Time stamp", "uint8 valid", "float32 age_ms"]
    size = f"[{stream.rows}]" if stream.rows else ""
    if stream.rows:
        lines.append(f"float32{size} sample_age_ms")
    if stream.kind == "vector":
        lines += [f"float32{size} {name}" for name in field_names(stream.components)]
    return "\n".join(lines) + "\n"


def message_dtype(values: int) -> np.dtype[Any]:
    """Return the layout of a message as defined by `definition`, given the number of values after `age_ms`."""
    fields = [
        ("encapsulation", "S4"),
        ("sec", "<i4"),
        ("nanosec", "<u4"),
        ("valid", "u1"),
        ("padding", "V3"),
        ("age_ms", "<f4"),
        ("values", "<f4", (values,)),
    ]
    return np.dtype(fields)


def stream_messages(
    stamps_ns: NDArray[np.int64], valid: NDArray[np.uint8], age_ns: NDArray[np.int64], values: NDArray[np.float32]
) -> NDArray[Any]:
    """Return the (T,) messages as defined by `definition`, as NumPy's raw bytes.

    The (T, K) values are in the order of the fields; NaN where there is none, which plots leave out.
    """
    messages = np.zeros(len(valid), message_dtype(values.shape[1]))
    messages["encapsulation"] = LITTLE_ENDIAN
    messages["sec"], messages["nanosec"] = np.divmod(stamps_ns, NS_PER_S)
    messages["valid"] = valid
    messages["age_ms"] = status_columns(valid[:, None], age_ns[:, None], None)[:, 1]
    messages["values"] = values
    return messages


class StreamRows(NamedTuple):
    """What the messages of `values_topic` contain, one per tick."""

    stamps_ns: NDArray[np.int64]  # (T,) 0 where there is no value
    valid: NDArray[np.uint8]  # (T,)
    age_ms: NDArray[np.float32]  # (T,)
    values: NDArray[np.float32]  # (T, K) in the order of the fields; NaN where there is none


def stream_rows(messages: Sequence[bytes | memoryview], values: int) -> StreamRows:
    """Return what messages contain, the inverse of `stream_messages`, given the number of values in each.

    Errors:
        ValueError: a message has another size or byte order.
    """
    kind = message_dtype(values)
    wrong = [row for row, m in enumerate(messages) if len(m) != kind.itemsize or bytes(m[:4]) != LITTLE_ENDIAN]
    if wrong:
        text = f"{len(wrong)} messages have not {kind.itemsize} bytes in little endian, the first is row {wrong[0]}"
        raise ValueError(text)
    rows = np.frombuffer(b"".join(messages), kind)
    stamps = rows["sec"].astype(np.int64) * NS_PER_S + rows["nanosec"]
    return StreamRows(stamps, rows["valid"].copy(), rows["age_ms"], rows["values"])


def text_message(text: str) -> bytes:
    """Return a std_msgs/String."""
    return CdrWriter().text(text).done()


def number_message(number: float) -> bytes:
    """Return a std_msgs/Float32."""
    return CdrWriter().put("f", number).done()


def compressed_message(stamp_ns: int, frame_id: str, encoding: str, data: bytes) -> bytes:
    """Return a sensor_msgs/CompressedImage; the encoding is jpeg or png."""
    return CdrWriter().header(stamp_ns, frame_id).text(encoding).raw(data).done()


def image_message(stamp_ns: int, frame_id: str, image: NDArray[Any]) -> bytes:
    """Return a sensor_msgs/Image of a (C, H, W) array."""
    channels, height, width = image.shape
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0), image.dtype.newbyteorder("<"))
    cdr = CdrWriter().header(stamp_ns, frame_id).put("I", height, width)
    cdr = cdr.text(f"{ENCODINGS[image.dtype.name]}{channels}").put("B", 0)
    return cdr.put("I", width * channels * image.itemsize).raw(pixels.tobytes()).done()


def voxel_message(stamp_ns: int, frame_id: str, voxels: NDArray[Any], grid: VoxelSpec) -> bytes:
    """Return a sensor_msgs/PointCloud2 of the occupied voxels, with the points that the live node publishes."""
    names, points = voxel_points(voxels, grid)
    cdr = CdrWriter().header(stamp_ns, frame_id).put("I", 1, len(points), len(names))
    for index, name in enumerate(names):
        cdr.text(name).put("I", 4 * index).put("B", _FLOAT32).put("I", 1)
    step = 4 * len(names)
    cdr.put("B", 0).put("I", step, step * len(points))
    return cdr.raw(points.astype("<f4", copy=False).tobytes()).put("B", 0).done()


Message = Callable[[int], "bytes | None"]  # tick of an episode -> the message, if there is one


class _McapFormat(WrittenByTasks):
    """A recording per episode."""

    name = "mcap"
    title = "recordings (mcap) of the fused stream, for Foxglove and PlotJuggler"
    entry = PROVENANCE

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the recordings of some episodes each. Memory: the vectors of an episode, and one image."""
        of_row = row_bytes(dataset, dataset.encodings(MCAP.encoding), arrays=True)
        return group_tasks(dataset, of_row, _write_episodes)

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        write_provenance(folder / PROVENANCE, dataset, dataset.encodings(MCAP.encoding))


def _write_episodes(dataset: ExportedDataset, folder: Path, group: range) -> None:
    types, definitions = _types(dataset)
    for episode in map(dataset.episodes.__getitem__, group):
        bag = write_bag(
            folder / episode_folder(episode.index),
            types,
            _episode_messages(dataset, episode),
            compression="storage",
            latched=(TASK, LAYOUT),
            definitions=definitions,
        )
        add_checksums(bag / f"{bag.name}.mcap")


def _types(dataset: ExportedDataset) -> tuple[dict[str, str], dict[str, str]]:
    """Return the message type of each topic, and the definitions of the types that are not those of ROS."""
    types = dict(EPISODE_TYPES)
    definitions: dict[str, str] = {}
    for stream in dataset.spec.streams:
        name = "robocache/msg/" + "".join(part.capitalize() for part in stream.name.split("_"))
        while name in definitions:  # a_1 and a1
            name += "2"
        definitions[name] = definition(stream)
        types[values_topic(stream)] = name
        if stream.kind == "vector":
            continue
        if stream.voxels:
            types[f"{PREFIX}/{stream.name}"] = CLOUD_TYPE
        elif stream.name in dataset.arrays:
            types[f"{PREFIX}/{stream.name}"] = IMAGE_TYPE
        elif MCAP.encoding(stream, dataset.options):
            types[f"{PREFIX}/{stream.name}"] = COMPRESSED_TYPE
    return types, definitions


def _episode_messages(dataset: ExportedDataset, episode: Episode) -> Iterator[tuple[str, int, bytes]]:
    ticks = episode.ticks_ns.tolist()
    yield LAYOUT, ticks[0], text_message(dataset.layout.to_json())
    yield TASK, ticks[0], text_message(episode.task)
    rewards = episode.rewards.tolist()
    topics: dict[str, Message] = {REWARD: lambda tick: number_message(rewards[tick])}
    for stream in dataset.spec.streams:
        topics[values_topic(stream)] = _value_messages(dataset, episode, stream)
        if stream.kind != "vector" and (media := _media(dataset, episode, stream)):
            topics[f"{PREFIX}/{stream.name}"] = media
    for tick, tick_ns in enumerate(ticks):
        for topic, message_of in topics.items():
            message = message_of(tick)
            if message is not None:
                yield topic, tick_ns, message


def _value_messages(dataset: ExportedDataset, episode: Episode, stream: StreamSpec) -> Message:
    """Return the messages of the values and the status of a stream. A value that is missing is NaN, not zero."""
    row = dataset.layout.names.index(stream.name)
    valid = episode.valid[:, row]
    values = np.zeros((episode.length, 0), np.float32)
    if stream.kind == "vector":
        values = np.where(_filled(episode, stream), episode.vector(stream.name), np.float32(np.nan))
    if stream.rows:  # a field for the ages, and then for each component, with all samples of the tick
        by_component = values.transpose(0, 2, 1).reshape(episode.length, -1)
        values = np.concatenate([episode.window_ages_ms(stream.name), by_component], axis=1)
    made = stream_messages(episode.stamps_ns[:, row], valid, episode.age_ns[:, row], values)
    return lambda tick: made[tick].tobytes()


def _filled(episode: Episode, stream: StreamSpec) -> NDArray[np.bool_]:
    """(T, 1), or (T, n, 1) for a window: where there is a value."""
    if stream.rows:
        return (episode.window_ages_ms(stream.name) >= 0)[:, :, None]
    return episode.has(stream.name)[:, None]


def _media(dataset: ExportedDataset, episode: Episode, stream: StreamSpec) -> Message | None:
    """Return the messages of an image or voxel stream, at the ticks with a new one; None if images are not stored."""
    row = dataset.layout.names.index(stream.name)
    stamps, valid = episode.stamps_ns[:, row].tolist(), episode.valid[:, row] > 0
    frame = stream.voxels.frame if stream.voxels and stream.voxels.frame else stream.name
    encoding = MCAP.encoding(stream, dataset.options)
    message_of: Callable[[int], bytes]
    if stream.name in dataset.arrays:
        arrays, grid = episode.arrays(stream.name), stream.voxels
        samples = arrays.samples

        def message_of(tick: int) -> bytes:
            array = arrays.array(tick)
            if grid:
                return voxel_message(stamps[tick], frame, array, grid)
            return image_message(stamps[tick], frame, array)

    elif encoding and stream.name in dataset.pictures:
        images = episode.images(stream.name, encoding)
        samples = images.samples

        def message_of(tick: int) -> bytes:
            return compressed_message(stamps[tick], frame, encoding, images[tick])

    else:
        return None
    new = valid & (np.diff(samples, prepend=-2) != 0)
    return lambda tick: message_of(tick) if new[tick] else None


MCAP = _McapFormat()


_DTYPES = {encoding: np.dtype(dtype).newbyteorder("<") for dtype, encoding in ENCODINGS.items()}


def window_values(values: NDArray[np.float32], rows: int, dim: int) -> NDArray[np.float32]:
    """Return the (T, rows, dim) values of a window, from its ages and the values of each component; 0 for padding."""
    by_sample: NDArray[np.float32] = values[:, rows:].reshape(len(values), dim, rows).transpose(0, 2, 1).copy()
    by_sample[values[:, :rows] < 0] = 0
    return by_sample


def read_image(message: bytes | memoryview) -> NDArray[Any]:
    """Return the (H, W, C) pixels of a sensor_msgs/Image."""
    image = _read(IMAGE_TYPE, message)
    name = image.encoding.rstrip("0123456789")
    dtype, channels = _DTYPES[name], int(image.encoding[len(name) :])
    return np.frombuffer(bytes(image.data), dtype).reshape(image.height, image.width, channels)


def read_voxels(message: bytes | memoryview, stream: StreamSpec) -> NDArray[Any]:
    """Return the grid, (X, Y, Z) or (F, X, Y, Z), whose occupied voxels are a sensor_msgs/PointCloud2.

    Errors:
        ValueError: a point is outside of the grid.
    """
    cloud = _read(CLOUD_TYPE, message)
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
    """The episodes of a dataset in the format mcap: a folder with robocache.json and a folder per episode."""

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
        topics = {stream.name: values_topic(stream) for stream in self._spec.streams}
        with _reading(path) as file:
            stored = {topic.name: topic.type for topic in file.topics if topic.count}
            read = _messages(file, {*topics.values(), TASK, REWARD}, 0, _LAST_NS)
            ticks = np.array([at for at, _ in read[REWARD]], np.int64)
            counts = {len(read[topic]) for topic in topics.values()}
            if not 0 < len(ticks) <= MAX_STEPS or counts - {len(ticks)} or not read[TASK]:
                raise ValueError("its topics do not have a message per tick")
            rows = {
                stream.name: stream_rows([data for _, data in read[topics[stream.name]]], values_of(stream))
                for stream in self._spec.streams
            }
            rewards = np.array([_read(NUMBER_TYPE, data).data for _, data in read[REWARD]], np.float32)
            task = str(_read(STRING_TYPE, read[TASK][0][1]).data)
        marks = self._marks(ticks, rows, where)
        found: dict[str, Any] = {}
        for stream in self._spec.streams:
            topic = f"{PREFIX}/{stream.name}"
            if stream.kind == "vector":
                if stream.role in ("observation", "action"):
                    found[stream.name] = numbers(_values(stream, rows[stream.name]), f"{where}: {stream.name}")
            elif topic in stored:
                is_depth = stored[topic] != COMPRESSED_TYPE
                convert = partial(_array, stream) if is_depth else _picture
                firsts = _first_ticks(ticks, rows[stream.name])
                found[stream.name] = TopicRows(path, topic, firsts, convert, is_depth)
        streams = self.export.episode_streams(ticks, marks, found, rewards, where)
        return SourceEpisode(streams, task, self.name, where)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        with _reading(file_below(self.folder, self._name(index))) as file:
            groups = file.log_times()
            return min(group.first_ns for group in groups), max(group.last_ns for group in groups)

    def _name(self, index: int) -> str:
        return f"{episode_folder(index)}/{episode_folder(index)}.mcap"

    def _marks(self, ticks: NDArray[np.int64], rows: dict[str, StreamRows], where: str) -> Marks:
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
    """The images or voxels of an episode: a message at the first tick of each."""

    path: DatasetFile
    topic: str
    firsts_ns: NDArray[np.int64]  # (T,) the tick whose message a row uses; -1 where there is none
    convert: Callable[[Data, str], NDArray[Any]]
    is_depth: bool

    def __len__(self) -> int:
        return len(self.firsts_ns)

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, ...) images or voxels of rising rows; zeros where there is none."""
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


def _values(stream: StreamSpec, rows: StreamRows) -> NDArray[np.float32]:
    """Return the values of a stream; 0 where its marks say that there is none, so that any other NaN is refused."""
    if stream.rows:
        return window_values(rows.values, stream.rows, stream.dim)
    return np.where(rows.valid[:, None] > 0, rows.values, np.float32(0))


def _first_ticks(ticks: NDArray[np.int64], rows: StreamRows) -> NDArray[np.int64]:
    """(T,) the first tick that uses the sample of each tick, -1 where there is none."""
    _, first, sample = np.unique(rows.stamps_ns + (rows.valid == 0) * -_LAST_NS, return_index=True, return_inverse=True)
    return np.where(rows.valid > 0, ticks[first[sample.reshape(-1)]], -1)


def _picture(data: Data, where: str) -> NDArray[Any]:
    return decode_image(bytes(_read(COMPRESSED_TYPE, data).data), where)


def _array(stream: StreamSpec, data: Data, where: str) -> NDArray[Any]:
    return read_voxels(data, stream) if stream.voxels else read_image(data)


def _check_stream(findings: Findings, where: str, stream: StreamSpec, rows: StreamRows) -> None:
    """Check the messages of a vector stream, or of the status of an image or voxel stream."""
    valid: Any = rows.valid
    values: Any = rows.values
    _none(findings, where, ~np.isin(valid, (0, 1, 2)), "valid is not 0, 1 or 2")
    _none(findings, where, stamps_disagree(rows.stamps_ns, valid), "valid and the stamp disagree")
    _none(findings, where, ~np.isfinite(rows.age_ms), "age_ms is NaN or infinite")
    if stream.kind == "vector":
        has: NDArray[np.bool_] = np.broadcast_to(valid[:, None] > 0, values.shape)
        if stream.rows:  # the ages of the samples, negative for padding, and then the samples by component
            has = np.tile(values[:, : stream.rows] >= 0, (1, len(stream.components)))
            values = values[:, stream.rows :]
        _none(findings, where, (has & ~np.isfinite(values)).any(axis=1), "a value is NaN or infinite")
        _none(findings, where, (~has & ~np.isnan(values)).any(axis=1), "a value that is missing is not NaN")


def _none(findings: Findings, where: str, wrong: NDArray[np.bool_], what: str) -> None:
    """Report in how many rows something is wrong."""
    findings.check(not wrong.any(), where, f"{what} in {int(wrong.sum())} rows, the first is row {wrong.argmax()}")


class _MediaMessages:
    """Checks the messages of an image or voxel stream, which are at the ticks with a new image or grid."""

    def __init__(self, findings: Findings, where: str, stream: StreamSpec, kind: str) -> None:
        self._findings, self._where, self._type = findings, where, kind
        self.accepted = kind in ((CLOUD_TYPE,) if stream.voxels else (COMPRESSED_TYPE, IMAGE_TYPE))
        self._stamps: dict[int, int] = {}  # tick -> stamp of the header
        self._shape: tuple[Any, ...] = ()  # of the first image

    def add(self, log_ns: int, data: Data) -> None:
        where = f"{self._where}, tick {log_ns}"
        with self._findings.reading(where):
            message = read_message(message_type(self._type), data)
            self._stamps[log_ns] = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
            if self._type == CLOUD_TYPE:
                self._check_cloud(where, message)
            else:
                self._check_image(where, message)

    def check(self, ticks: NDArray[np.int64], stamps: NDArray[np.int64], valid: NDArray[np.uint8]) -> None:
        """Check that there is a message, with the stamp of the sample, at each tick with a new one."""
        new = (valid > 0) & (np.diff(np.where(valid > 0, stamps, -1), prepend=-1) != 0)
        wanted = dict(zip(ticks[new].tolist(), stamps[new].tolist(), strict=True))
        missing, other = sorted(wanted.keys() - self._stamps.keys()), sorted(self._stamps.keys() - wanted.keys())
        text = f"{len(missing)} ticks with a new sample have no message, the first is {missing[:1]}"
        self._findings.check(not missing, self._where, text)
        text = f"{len(other)} messages are at ticks without a new sample, the first at {other[:1]}"
        self._findings.check(not other, self._where, text)
        differ = [tick for tick, stamp in wanted.items() if self._stamps.get(tick, stamp) != stamp]
        text = f"{len(differ)} stamps are not those of the status, the first at {differ[:1]}"
        self._findings.check(not differ, self._where, text)

    def _check_image(self, where: str, message: Any) -> None:
        if self._type == COMPRESSED_TYPE:
            shape: tuple[Any, ...] = image_size(message.data.tobytes(), decode=self._findings.decode)
        else:
            shape = (message.height, message.width, message.encoding, message.step)
            size = message.height * message.step
            self._findings.check(len(message.data) == size, where, f"{len(message.data)} bytes of pixels, not {size}")
        self._shape = self._shape or shape
        self._findings.check(shape == self._shape, where, f"is {shape}; the first image is {self._shape}")
        self._findings.counted["images"] += 1

    def _check_cloud(self, where: str, message: Any) -> None:
        names = [field.name for field in message.fields]
        step, size = 4 * len(names), 4 * len(names) * message.width
        right = names[:3] == ["x", "y", "z"] and (message.height, message.point_step) == (1, step)
        self._findings.check(right, where, f"is not a row of points with float32 fields from x, y, z, but {names}")
        if self._findings.check(len(message.data) == size, where, f"{len(message.data)} bytes of points, not {size}"):
            finite = bool(np.isfinite(message.data.view("<f4")).all())
            self._findings.check(finite, where, "NaN or infinite")
        self._findings.counted["clouds"] += 1


class _EpisodeMessages:
    """Checks the recording of one episode against what robocache.json, the `index`, states."""

    def __init__(
        self,
        findings: Findings,
        number: int,
        bag: Bag,
        episode: dict[str, Any],
        index: dict[str, Any],
        exported: ExportedRows,
    ) -> None:
        self._findings, self._bag, self._episode, self._index = findings, bag, episode, index
        self._number, self._name, self._exported = number, episode_folder(number), exported
        self._spec = exported.spec
        self._times: dict[str, list[int]] = defaultdict(list)  # log times by topic
        self._kept: dict[str, list[bytes]] = defaultdict(list)  # messages by topic, but for images and clouds

    def check(self) -> None:
        """Report everything that is wrong."""
        values, media = self._topics()
        readable = self._check_topics(values, media)
        for topic, log_ns, data in self._bag.messages(sorted(readable)):
            self._findings.counted["messages"] += 1
            self._times[topic].append(log_ns)
            if topic in media:
                media[topic].add(log_ns, data)
            else:
                self._kept[topic].append(bytes(data))
        ticks = np.array(self._times[REWARD], np.int64)
        if not self._findings.check(len(ticks) > 0, self._where(REWARD), "has no messages, which show the ticks"):
            return
        before = len(self._findings.found)  # what is wrong with one stream is not repeated for all
        rewards = self._check_episode(ticks)
        found: dict[str, StreamRows] = {}
        for topic, stream in values.items():
            times = np.array(self._times[topic], np.int64)
            if topic in readable and self._check_times(topic, times, ticks):
                with self._findings.reading(self._where(topic)):
                    rows = stream_rows(self._kept[topic], values_of(stream))
                    found[stream.name] = rows
                    _check_stream(self._findings, self._where(topic), stream, rows)
                    if pictures := media.get(f"{PREFIX}/{stream.name}"):
                        pictures.check(ticks, rows.stamps_ns, rows.valid)
        if len(found) == len(self._spec.streams) and len(self._findings.found) == before:
            self._check_rows(ticks, found, rewards)
        for topic, count in read_metadata(self._findings.dataset / self._name).counts.items():
            text = (
                f"metadata.yaml has {count} messages of {printable(topic, 60)}; the file has {len(self._times[topic])}"
            )
            self._findings.check(topic not in readable or count == len(self._times[topic]), self._name, text)
        self._findings.counted["rows"] += len(ticks)

    def _where(self, topic: str) -> str:
        return f"{self._name}, {topic}"

    def _topics(self) -> tuple[dict[str, StreamSpec], dict[str, _MediaMessages]]:
        """Return the stream of each topic with values or status, and the topics of images and clouds."""
        values, media = {}, {}
        for stream in self._spec.streams:
            values[values_topic(stream)] = stream
            if stream.kind == "vector":
                continue
            topic = f"{PREFIX}/{stream.name}"
            found = self._bag.topics.get(topic)
            if found or self._index["images"].get(stream.name, {}).get("stored") != "not stored":
                kind = found.type if found else ""
                media[topic] = _MediaMessages(self._findings, self._where(topic), stream, kind)
        return values, media

    def _check_topics(self, values: dict[str, StreamSpec], media: dict[str, _MediaMessages]) -> set[str]:
        """Check topics, types and definitions; return the topics whose messages can be read."""
        readable = set()
        found = self._bag.topics
        for topic in (*EPISODE_TYPES, *values, *media):
            if not self._findings.check(topic in found, self._name, f"has no topic {topic}"):
                continue
            kind = found[topic].type
            shown = printable(kind, 60)
            if topic in values:
                stated = definition(values[topic])
                declared = message_type(kind, self._bag.definitions).fields
                same = declared == message_type(kind, {kind: stated}).fields
                text = f"the definition of {shown} is not that of the stream {values[topic].name}"
            elif topic in media:
                same, text = media[topic].accepted, f"is {shown}, which is no type of its stream"
            else:
                same, text = kind == EPISODE_TYPES[topic], f"is {shown}, not {EPISODE_TYPES[topic]}"
            if self._findings.check(same, self._where(topic), text):
                readable.add(topic)
        for topic in sorted(set(found) - {*EPISODE_TYPES, *values, *media}):
            self._findings.add(self._name, f"{printable(topic, 60)} is a topic of no stream in {PROVENANCE}")
        return readable

    def _check_times(self, topic: str, times: NDArray[np.int64], ticks: NDArray[np.int64]) -> bool:
        if np.array_equal(times, ticks):
            return True
        without, other = len(np.setdiff1d(ticks, times)), len(np.setdiff1d(times, ticks))
        text = f"{len(times)} messages for {len(ticks)} ticks: {without} ticks have none, {other} are at no tick"
        self._findings.add(self._where(topic), text)
        return False

    def _check_rows(
        self, ticks: NDArray[np.int64], found: Mapping[str, StreamRows], rewards: NDArray[np.float64]
    ) -> None:
        """Compare the streams with each other and with the provenance."""
        exported, order = self._exported, [found[name] for name in self._exported.layout.names]
        stamps, valid, age_ms = (
            np.stack([getattr(messages, name) for messages in order], axis=1)
            for name in ("stamps_ns", "valid", "age_ms")
        )
        latency = np.array([stream.latency_ns for stream in exported.spec.streams], np.int64)
        ages = np.where(valid > 0, ticks[:, None] + latency - stamps, 0)
        for n, name in enumerate(exported.layout.names):
            # Ages are float32 milliseconds, converted from nanoseconds.
            off = ~(np.abs(age_ms[:, n] - ages[:, n] / 1e6) <= 1e-6 * np.abs(ages[:, n] / 1e6) + 1e-6)
            if off.any():
                row = int(off.argmax())
                text = f"age_ms is {age_ms[row, n]:g} in row {row}; tick - stamp is {ages[row, n] / 1e6:g}"
                self._findings.add(self._where(f"{PREFIX}/{name}"), f"{text}, wrong in {int(off.sum())} rows")
        vectors = {stream.name: found[stream.name].values for stream in exported.spec.vectors}
        sizes = {name: exported.spec.stream(name).rows for name in exported.windows}
        windows = {f"sample_age_ms.{name}": found[name].values[:, :size] for name, size in sizes.items()}
        columns = {"tick_ns": ticks, "stamp_ns": stamps, "valid": valid, "age_ns": ages, **windows}
        rows = exported.tick_rows(columns, vectors, missing=np.nan)
        exported.check_episode(self._name, self._number, rows)
        if streams := exported.of_role("reward"):
            of_stream = found[streams[0].name]
            off = rewards != np.where(of_stream.valid > 0, of_stream.values[:, 0], 0)
            text = f"row {off.argmax()} is {rewards[off.argmax()]:g}, not the value of {streams[0].name}"
            self._findings.check(not off.any(), self._where(REWARD), text)
        else:
            exported.check_rewards(self._where(REWARD), self._number, rows, rewards)

    def _check_episode(self, ticks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Check the ticks, the task, the layout and the rewards; return the rewards."""
        wanted = self._episode
        self._findings.check(
            len(ticks) == wanted["frames"],
            self._where(REWARD),
            f"{len(ticks)} ticks; {PROVENANCE} says {wanted['frames']}",
        )
        for end, place in (("first_tick_ns", 0), ("last_tick_ns", -1)):
            same = int(ticks[place]) == wanted[end]
            self._findings.check(same, self._where(REWARD), f"{end} is not {wanted[end]}, as in {PROVENANCE}")
        check_ticks(self._findings, self._where(REWARD), ticks, self._spec.rate_hz)
        first = ticks[:1].tolist()
        for topic, expected in ((TASK, wanted["task"]), (LAYOUT, self._index["layout"])):
            texts = [self._read(topic, data) for data in self._kept[topic]]
            text = "is not one message at the first tick"
            if self._findings.check(self._times[topic] == first, self._where(topic), text):
                with self._findings.reading(self._where(topic)):
                    found = json.loads(texts[0]) if topic == LAYOUT else texts[0]
                    self._findings.check(found == expected, self._where(topic), f"is not that of {PROVENANCE}")
        rewards = [self._read(REWARD, data) for data in self._kept[REWARD]]
        bad = [number for number, reward in enumerate(rewards) if reward is None or not np.isfinite(reward)]
        self._findings.check(
            not bad, self._where(REWARD), f"{len(bad)} are NaN or infinite, the first is row {bad[:1]}"
        )
        return np.array([np.nan if reward is None else reward for reward in rewards], float)

    def _read(self, topic: str, data: bytes) -> Any:
        """Return the `data` of a message; None if it cannot be read."""
        with self._findings.reading(self._where(topic)):
            return read_message(message_type(EPISODE_TYPES[topic]), data).data
        return None


def _check(findings: Findings) -> None:
    """Read every message of every recording, and compare them with each other and with robocache.json."""
    stated = read_json(findings.dataset, PROVENANCE)
    exported = ExportedRows(findings, PROVENANCE, stated)
    episodes = {episode_folder(index): about for index, about in enumerate(stated["episodes"])}
    for folder in _folders(findings.dataset):
        findings.check(folder.name in episodes, folder.name, f"is not in {PROVENANCE}")
    for number, (name, about) in enumerate(episodes.items()):
        recording = stated["recordings"][about["recording"]]
        wanted = {**about, "task": recording["task"] if about["task"] is None else about["task"]}
        with findings.reading(name):
            _check_recording(findings, number, wanted, stated, exported)
            findings.counted["episodes"] += 1


def _folders(dataset: Path) -> list[Path]:
    return [folder for folder in sorted(dataset.glob("episode_*")) if any(folder.glob("episode_*.mcap"))]


def _check_recording(
    findings: Findings, number: int, wanted: dict[str, Any], stated: dict[str, Any], exported: ExportedRows
) -> None:
    name = episode_folder(number)
    folder = findings.dataset / name
    if not folder.is_dir():
        raise RoboCacheError(f"{name}: is missing; it is in {PROVENANCE}")
    for file in files_in(findings.dataset, f"{name}/*"):  # metadata.yaml and recordings, which `Bag` opens
        file_in(findings.dataset, file)
    try:
        bag = Bag(folder)
    except RoboCacheError as error:
        raise RoboCacheError(f"{name}: {str(error).removeprefix(f'{folder}: ')}") from None
    with bag:
        _EpisodeMessages(findings, number, bag, wanted, stated, exported).check()
        for note in bag.notes:  # complete after all messages have been read
            findings.add(name, note.removeprefix(f"{name}: "))
        findings.check(bag.integrity == CHECKED, name, "not every message has a checksum")


MCAP_CHECK = FormatCheck(
    "recordings (mcap) of the fused stream", lambda dataset: dataset.is_dir() and any(_folders(dataset)), _check
)
