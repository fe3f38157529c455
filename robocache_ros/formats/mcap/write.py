"""The fused stream as a recording (mcap) per episode, which Foxglove and PlotJuggler plot and ROS 2 plays.

episode_000000/episode_000000.mcap   the messages; their log time is the tick
episode_000000/metadata.yaml         as in each rosbag2 recording
robocache.json                       the provenance, written last

/robocache/<vector>                  a message per tick, with a field for each value, and valid, age_ms and stamp
/robocache/<image>                   sensor_msgs/CompressedImage or Image, at the ticks with a new one
/robocache/<voxels>                  sensor_msgs/PointCloud2, at the ticks with a new one
/robocache/<image or voxels>/status  valid, age_ms and stamp of each tick
/robocache/episode/<name>            task, layout: at the first tick; reward: at each tick
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.mcap import add_checksums
from robocache_ros.bags.write import write_bag
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.mcap import schema
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.formats.write import (
    FileTask,
    WrittenByTasks,
    array_or_zeros,
    arrays_bytes,
    group_tasks,
    row_bytes,
    write_provenance,
)
from robocache_ros.spec import StreamSpec

Message = Callable[[int], "bytes | None"]  # tick of an episode -> the message, if there is one


class McapFormat(WrittenByTasks):
    """A recording per episode."""

    name = "mcap"
    title = "recordings (mcap) of the fused stream, for Foxglove and PlotJuggler"
    entry = PROVENANCE

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the recordings of some episodes each. Memory: the vectors of an episode, and one image."""
        of_row = row_bytes(dataset, dataset.encodings(MCAP.encoding)) + arrays_bytes(dataset)
        return group_tasks(dataset, of_row, _write_episodes)

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the provenance."""
        write_provenance(folder / PROVENANCE, dataset, dataset.encodings(MCAP.encoding))


def _write_episodes(dataset: ExportedDataset, folder: Path, group: range) -> None:
    """Write the recordings of some episodes."""
    types, definitions = _types(dataset)
    for episode in map(dataset.episodes.__getitem__, group):
        bag = write_bag(
            folder / schema.episode_folder(episode.index),
            types,
            _messages(dataset, episode),
            compression="storage",
            latched=(schema.TASK, schema.LAYOUT),
            definitions=definitions,
        )
        add_checksums(bag / f"{bag.name}.mcap")


def _types(dataset: ExportedDataset) -> tuple[dict[str, str], dict[str, str]]:
    """Return the message type of each topic, and the definitions of the types that are not those of ROS."""
    types = dict(schema.EPISODE_TYPES)
    definitions: dict[str, str] = {}
    for stream in dataset.spec.streams:
        name = "robocache/msg/" + "".join(part.capitalize() for part in stream.name.split("_"))
        while name in definitions:  # a_1 and a1
            name += "2"
        definitions[name] = schema.definition(stream)
        types[schema.values_topic(stream)] = name
        if stream.kind == "vector":
            continue
        if stream.voxels:
            types[f"{schema.PREFIX}/{stream.name}"] = schema.CLOUD_TYPE
        elif stream.name in dataset.arrays:
            types[f"{schema.PREFIX}/{stream.name}"] = schema.IMAGE_TYPE
        elif MCAP.encoding(stream, dataset.options):
            types[f"{schema.PREFIX}/{stream.name}"] = schema.COMPRESSED_TYPE
    return types, definitions


def _messages(dataset: ExportedDataset, episode: Episode) -> Iterator[tuple[str, int, bytes]]:
    """Yield the messages of an episode, by tick."""
    ticks = episode.ticks_ns.tolist()
    yield schema.LAYOUT, ticks[0], schema.text_message(dataset.layout.to_json())
    yield schema.TASK, ticks[0], schema.text_message(episode.task)
    rewards = episode.rewards.tolist()
    topics: dict[str, Message] = {schema.REWARD: lambda tick: schema.number_message(rewards[tick])}
    for stream in dataset.spec.streams:
        topics[schema.values_topic(stream)] = _values(dataset, episode, stream)
        if stream.kind != "vector" and (media := _media(dataset, episode, stream)):
            topics[f"{schema.PREFIX}/{stream.name}"] = media
    for tick, tick_ns in enumerate(ticks):
        for topic, message_of in topics.items():
            message = message_of(tick)
            if message is not None:
                yield topic, tick_ns, message


def _values(dataset: ExportedDataset, episode: Episode, stream: StreamSpec) -> Message:
    """Return the messages of the values and the status of a stream. A value that is missing is NaN, not zero."""
    row = dataset.layout.names.index(stream.name)
    valid = episode.valid[:, row]
    values = np.zeros((episode.length, 0), np.float32)
    if stream.kind == "vector":
        values = np.where(_filled(episode, stream), episode.vector(stream.name), np.float32(np.nan))
    if stream.rows:  # a field for the ages, and then for each component, with all samples of the tick
        by_component = values.transpose(0, 2, 1).reshape(episode.length, -1)
        values = np.concatenate([episode.window_ages_ms(stream.name), by_component], axis=1)
    made = schema.stream_messages(episode.stamps_ns[:, row], valid, episode.age_ns[:, row], values)
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
            array = array_or_zeros(arrays, tick)
            if grid:
                return schema.voxel_message(stamps[tick], frame, array, grid)
            return schema.image_message(stamps[tick], frame, array)

    elif encoding and stream.name in dataset.pictures:
        images = episode.images(stream.name, encoding)
        samples = images.samples

        def message_of(tick: int) -> bytes:
            return schema.compressed_message(stamps[tick], frame, encoding, images[tick])

    else:
        return None
    new = valid & (np.diff(samples, prepend=-2) != 0)
    return lambda tick: message_of(tick) if new[tick] else None


MCAP = McapFormat()
