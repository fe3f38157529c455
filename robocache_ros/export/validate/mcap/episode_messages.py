"""The messages of one recording of the fused stream, against its layout and against robocache.json."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage.metadata import read_metadata
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import read_message
from robocache_ros.errors import printable
from robocache_ros.export.formats.mcap import plot_messages as messages
from robocache_ros.export.formats.mcap.fused_recordings import LAYOUT, PREFIX, REWARD, TASK
from robocache_ros.export.validate.array_values import check_ticks
from robocache_ros.export.validate.exported_rows import ExportedRows, TickRows
from robocache_ros.export.validate.findings import Findings
from robocache_ros.export.validate.mcap.media_messages import MediaMessages
from robocache_ros.export.validate.mcap.stream_messages import StreamMessages, check_stream
from robocache_ros.spec import StreamSpec

INDEX = "robocache.json"
_EPISODE_TYPES = {TASK: messages.STRING_TYPE, LAYOUT: messages.STRING_TYPE, REWARD: messages.NUMBER_TYPE}


def episode_folder(number: int) -> str:
    """Return the name of the folder of a recording."""
    return f"episode_{number:06d}"


class EpisodeMessages:
    """Checks the recording of one episode.

    Args:
        findings: collects what is wrong.
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
        self._number, self._name, self._exported = number, episode_folder(number), exported
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
        ticks = np.array(self._times[REWARD], np.int64)
        if not self._findings.check(len(ticks) > 0, self._where(REWARD), "has no messages, which show the ticks"):
            return
        before = len(self._findings.found)  # what is wrong with one stream is not repeated for all
        rewards = self._check_episode(ticks)
        found: dict[str, StreamMessages] = {}
        for topic, stream in values.items():
            times = np.array(self._times[topic], np.int64)
            if topic in readable and self._check_times(topic, times, ticks):
                messages = check_stream(self._findings, self._where(topic), stream, self._kept[topic])
                pictures = media.get(f"{PREFIX}/{stream.name}")
                if messages is not None:
                    found[stream.name] = messages
                    if pictures:
                        pictures.check(ticks, messages.stamps_ns, messages.valid)
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
            topic = f"{PREFIX}/{stream.name}"
            if stream.kind == "vector":
                values[topic] = stream
                continue
            values[f"{topic}/status"] = stream
            found = self._bag.topics.get(topic)
            if found or self._index["images"].get(stream.name, {}).get("stored") != "not stored":
                kind = found.type if found else ""
                media[topic] = MediaMessages(self._findings, self._where(topic), stream, kind)
        return values, media

    def _check_topics(self, values: dict[str, StreamSpec], media: dict[str, MediaMessages]) -> set[str]:
        """Check topics, types and definitions; return the topics whose messages can be read."""
        readable = set()
        found = self._bag.topics
        for topic in (*_EPISODE_TYPES, *values, *media):
            if not self._findings.check(topic in found, self._name, f"has no topic {topic}"):
                continue
            kind = found[topic].type
            shown = printable(kind, 60)
            if topic in values:
                definition = messages.definition(values[topic])
                declared = message_type(kind, self._bag.definitions).fields
                same = declared == message_type(kind, {kind: definition}).fields
                text = f"the definition of {shown} is not that of the stream {values[topic].name}"
            elif topic in media:
                same, text = media[topic].accepted, f"is {shown}, which is no type of its stream"
            else:
                same, text = kind == _EPISODE_TYPES[topic], f"is {shown}, not {_EPISODE_TYPES[topic]}"
            if self._findings.check(same, self._where(topic), text):
                readable.add(topic)
        for topic in sorted(set(found) - {*_EPISODE_TYPES, *values, *media}):
            self._findings.add(self._name, f"{printable(topic, 60)} is a topic of no stream in {INDEX}")
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
        self, ticks: NDArray[np.int64], found: Mapping[str, StreamMessages], rewards: NDArray[np.float64]
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
        vectors = {s.name: found[s.name].values for s in exported.spec.vectors if not s.rows}
        rows = TickRows(ticks, stamps, valid, ages, vectors, missing=np.nan)
        exported.check_episode(self._name, self._number, rows)
        for stream in exported.spec.vectors:
            if stream.rows:
                exported.check_window(self._name, rows, stream, found[stream.name].values[:, : stream.rows])
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
            len(ticks) == wanted["frames"], self._where(REWARD), f"{len(ticks)} ticks; {INDEX} says {wanted['frames']}"
        )
        for end, place in (("first_tick_ns", 0), ("last_tick_ns", -1)):
            same = int(ticks[place]) == wanted[end]
            self._findings.check(same, self._where(REWARD), f"{end} is not {wanted[end]}, as in {INDEX}")
        check_ticks(self._findings, self._where(REWARD), ticks, self._spec.rate_hz)
        first = ticks[:1].tolist()
        for topic, expected in ((TASK, wanted["task"]), (LAYOUT, self._index["layout"])):
            texts = [self._read(topic, data) for data in self._kept[topic]]
            text = "is not one message at the first tick"
            if self._findings.check(self._times[topic] == first, self._where(topic), text):
                with self._findings.reading(self._where(topic), ValueError, RecursionError, TypeError):
                    found = json.loads(texts[0]) if topic == LAYOUT else texts[0]
                    self._findings.check(found == expected, self._where(topic), f"is not that of {INDEX}")
        rewards = [self._read(REWARD, data) for data in self._kept[REWARD]]
        bad = [number for number, reward in enumerate(rewards) if reward is None or not np.isfinite(reward)]
        self._findings.check(
            not bad, self._where(REWARD), f"{len(bad)} are NaN or infinite, the first is row {bad[:1]}"
        )
        return np.array([np.nan if reward is None else reward for reward in rewards], float)

    def _read(self, topic: str, data: bytes) -> Any:
        """Return the `data` of a message; None if it cannot be read."""
        with self._findings.reading(self._where(topic)):
            return read_message(message_type(_EPISODE_TYPES[topic]), data).data
        return None
