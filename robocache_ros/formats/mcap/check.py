"""Check exported MCAP recordings of fused episodes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.bags.source import Data
from robocache_ros.bags.storage.metadata import read_metadata
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import (
    ExportedRows,
    Findings,
    TickRows,
    check_ticks,
    file_in,
    files_in,
    image_size,
    read_json,
    stamps_disagree,
)
from robocache_ros.formats.mcap import schema
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_S


def _check_stream(findings: Findings, where: str, stream: StreamSpec, rows: schema.StreamRows) -> None:
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


class MediaMessages:
    """Checks the messages of an image or voxel stream, which are at the ticks with a new image or grid.

    Args:
        where: the recording and the topic.
        stream: the stream.
        kind: the type of the messages.

    Attributes:
        accepted: whether the stream may have messages of this type.
    """

    def __init__(self, findings: Findings, where: str, stream: StreamSpec, kind: str) -> None:
        self._findings, self._where, self._type = findings, where, kind
        self.accepted = kind in ((schema.CLOUD_TYPE,) if stream.voxels else (schema.COMPRESSED_TYPE, schema.IMAGE_TYPE))
        self._stamps: dict[int, int] = {}  # tick -> stamp of the header
        self._shape: tuple[Any, ...] = ()  # of the first image

    def add(self, log_ns: int, data: Data) -> None:
        """Check the contents of a message."""
        where = f"{self._where}, tick {log_ns}"
        with self._findings.reading(where):
            message = read_message(message_type(self._type), data)
            self._stamps[log_ns] = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
            if self._type == schema.CLOUD_TYPE:
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
        if self._type == schema.COMPRESSED_TYPE:
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


class EpisodeMessages:
    """Checks the recording of one episode.

    Args:
        number: of the episode.
        bag: the recording.
        episode: its `frames`, `first_tick_ns`, `last_tick_ns` and `task`.
        index: robocache.json.
        exported: what it states.
    """

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
        self._number, self._name, self._exported = number, schema.episode_folder(number), exported
        self._spec = exported.spec
        self._times: dict[str, list[int]] = defaultdict(list)  # log times by topic
        self._kept: dict[str, list[bytes]] = defaultdict(list)  # messages by topic, but for images and clouds

    def check(self) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: the recording cannot be read.
        """
        values, media = self._topics()
        readable = self._check_topics(values, media)
        for topic, log_ns, data in self._bag.messages(sorted(readable)):
            self._findings.counted["messages"] += 1
            self._times[topic].append(log_ns)
            if topic in media:
                media[topic].add(log_ns, data)
            else:
                self._kept[topic].append(bytes(data))
        ticks = np.array(self._times[schema.REWARD], np.int64)
        if not self._findings.check(
            len(ticks) > 0, self._where(schema.REWARD), "has no messages, which show the ticks"
        ):
            return
        before = len(self._findings.found)  # what is wrong with one stream is not repeated for all
        rewards = self._check_episode(ticks)
        found: dict[str, schema.StreamRows] = {}
        for topic, stream in values.items():
            times = np.array(self._times[topic], np.int64)
            if topic in readable and self._check_times(topic, times, ticks):
                with self._findings.reading(self._where(topic)):
                    rows = schema.stream_rows(self._kept[topic], schema.values_of(stream))
                    found[stream.name] = rows
                    _check_stream(self._findings, self._where(topic), stream, rows)
                    if pictures := media.get(f"{schema.PREFIX}/{stream.name}"):
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

    def _topics(self) -> tuple[dict[str, StreamSpec], dict[str, MediaMessages]]:
        """Return the stream of each topic with values or status, and the topics of images and clouds."""
        values, media = {}, {}
        for stream in self._spec.streams:
            values[schema.values_topic(stream)] = stream
            if stream.kind == "vector":
                continue
            topic = f"{schema.PREFIX}/{stream.name}"
            found = self._bag.topics.get(topic)
            if found or self._index["images"].get(stream.name, {}).get("stored") != "not stored":
                kind = found.type if found else ""
                media[topic] = MediaMessages(self._findings, self._where(topic), stream, kind)
        return values, media

    def _check_topics(self, values: dict[str, StreamSpec], media: dict[str, MediaMessages]) -> set[str]:
        """Check topics, types and definitions; return the topics whose messages can be read."""
        readable = set()
        found = self._bag.topics
        for topic in (*schema.EPISODE_TYPES, *values, *media):
            if not self._findings.check(topic in found, self._name, f"has no topic {topic}"):
                continue
            kind = found[topic].type
            shown = printable(kind, 60)
            if topic in values:
                definition = schema.definition(values[topic])
                declared = message_type(kind, self._bag.definitions).fields
                same = declared == message_type(kind, {kind: definition}).fields
                text = f"the definition of {shown} is not that of the stream {values[topic].name}"
            elif topic in media:
                same, text = media[topic].accepted, f"is {shown}, which is no type of its stream"
            else:
                same, text = kind == schema.EPISODE_TYPES[topic], f"is {shown}, not {schema.EPISODE_TYPES[topic]}"
            if self._findings.check(same, self._where(topic), text):
                readable.add(topic)
        for topic in sorted(set(found) - {*schema.EPISODE_TYPES, *values, *media}):
            self._findings.add(self._name, f"{printable(topic, 60)} is a topic of no stream in {PROVENANCE}")
        return readable

    def _check_times(self, topic: str, times: NDArray[np.int64], ticks: NDArray[np.int64]) -> bool:
        """Check that a topic has a message at each tick."""
        if np.array_equal(times, ticks):
            return True
        without, other = len(np.setdiff1d(ticks, times)), len(np.setdiff1d(times, ticks))
        text = f"{len(times)} messages for {len(ticks)} ticks: {without} ticks have none, {other} are at no tick"
        self._findings.add(self._where(topic), text)
        return False

    def _check_rows(
        self, ticks: NDArray[np.int64], found: Mapping[str, schema.StreamRows], rewards: NDArray[np.float64]
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
                self._findings.add(self._where(f"{schema.PREFIX}/{name}"), f"{text}, wrong in {int(off.sum())} rows")
        vectors = {s.name: found[s.name].values for s in exported.spec.vectors if not s.rows}
        windows = {name: found[name].values[:, : exported.spec.stream(name).rows] for name in exported.windows}
        rows = TickRows(ticks, stamps, valid, ages, vectors, missing=np.nan, ages_ms=windows)
        exported.check_episode(self._name, self._number, rows)
        if streams := exported.of_role("reward"):
            of_stream = found[streams[0].name]
            off = rewards != np.where(of_stream.valid > 0, of_stream.values[:, 0], 0)
            text = f"row {off.argmax()} is {rewards[off.argmax()]:g}, not the value of {streams[0].name}"
            self._findings.check(not off.any(), self._where(schema.REWARD), text)
        else:
            exported.check_rewards(self._where(schema.REWARD), self._number, rows, rewards)

    def _check_episode(self, ticks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Check the ticks, the task, the layout and the rewards; return the rewards."""
        wanted = self._episode
        self._findings.check(
            len(ticks) == wanted["frames"],
            self._where(schema.REWARD),
            f"{len(ticks)} ticks; {PROVENANCE} says {wanted['frames']}",
        )
        for end, place in (("first_tick_ns", 0), ("last_tick_ns", -1)):
            same = int(ticks[place]) == wanted[end]
            self._findings.check(same, self._where(schema.REWARD), f"{end} is not {wanted[end]}, as in {PROVENANCE}")
        check_ticks(self._findings, self._where(schema.REWARD), ticks, self._spec.rate_hz)
        first = ticks[:1].tolist()
        for topic, expected in ((schema.TASK, wanted["task"]), (schema.LAYOUT, self._index["layout"])):
            texts = [self._read(topic, data) for data in self._kept[topic]]
            text = "is not one message at the first tick"
            if self._findings.check(self._times[topic] == first, self._where(topic), text):
                with self._findings.reading(self._where(topic)):
                    found = json.loads(texts[0]) if topic == schema.LAYOUT else texts[0]
                    self._findings.check(found == expected, self._where(topic), f"is not that of {PROVENANCE}")
        rewards = [self._read(schema.REWARD, data) for data in self._kept[schema.REWARD]]
        bad = [number for number, reward in enumerate(rewards) if reward is None or not np.isfinite(reward)]
        self._findings.check(
            not bad, self._where(schema.REWARD), f"{len(bad)} are NaN or infinite, the first is row {bad[:1]}"
        )
        return np.array([np.nan if reward is None else reward for reward in rewards], float)

    def _read(self, topic: str, data: bytes) -> Any:
        """Return the `data` of a message; None if it cannot be read."""
        with self._findings.reading(self._where(topic)):
            return read_message(message_type(schema.EPISODE_TYPES[topic]), data).data
        return None


class FusedRecordingsCheck:
    """Reads every message of every recording, and compares them with each other and with robocache.json."""

    title = "recordings (mcap) of the fused stream"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder has recordings of episodes."""
        return dataset.is_dir() and any(_folders(dataset))

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: robocache.json cannot be used.
        """
        stated = read_json(findings.dataset, PROVENANCE)
        exported = ExportedRows(findings, PROVENANCE, stated)
        episodes = {schema.episode_folder(index): about for index, about in enumerate(stated["episodes"])}
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
    name = schema.episode_folder(number)
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
        EpisodeMessages(findings, number, bag, wanted, stated, exported).check()
        for note in bag.notes:  # complete after all messages have been read
            findings.add(name, note.removeprefix(f"{name}: "))
        findings.check(bag.integrity == CHECKED, name, "not every message has a checksum")


FUSED_RECORDINGS_CHECK = FusedRecordingsCheck()
