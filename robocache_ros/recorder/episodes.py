"""Episodes: the files of a recordings folder, and the thread that writes one."""

from __future__ import annotations

import json
import logging
import os
import platform
import queue
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.recorder.mcap import McapWriter, read_metadata
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import check_line
from robocache_ros.storage.errors import file_errors
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_MS

log = logging.getLogger(__name__)

CHUNK_NS = 500 * NS_PER_MS  # a message waits for at most this time until it is written
MAX_QUEUED_BYTES = 256 << 20  # of messages that wait for the disk; more are lost, and counted
MAX_QUEUED = 100_000  # messages that wait for the disk
TRASH = "trash"  # folder of discarded episodes, in the folder of recordings
EPISODE, EPISODE_END = "robocache_episode", "robocache_episode_end"  # names of the metadata of a file
OUTCOMES = ("success", "failure", "discarded", "error", "unknown")
UNFINISHED = ".part"  # end of the name of a file that is being written
_NAME = re.compile(r"episode_([0-9]{6,12})\.mcap(\.part)?")
_GIT_S = 5.0


@dataclass(frozen=True)
class RecordedTopic:
    """A topic of an episode.

    Attributes:
        name, type: such as `/joint_states` and `sensor_msgs/msg/JointState`.
        definition: of the type and those that it needs, see `recorder.mcap.definition_text`.
        latched: whether its publishers keep messages for late subscribers.
    """

    name: str
    type: str
    definition: str = ""
    latched: bool = False
    encoding: str = "cdr"  # of the messages


class Message(NamedTuple):
    """A message of an episode, as it arrived."""

    topic: RecordedTopic
    log_ns: int  # receive time
    publish_ns: int  # source time
    data: bytes | memoryview  # CDR


@dataclass(frozen=True)
class EpisodeLabels:
    """What a person says about an episode before it starts; all are lines of text."""

    task: str = ""
    operator: str = ""
    robot: str = ""

    def __post_init__(self) -> None:
        for name in ("task", "operator", "robot"):
            if value := getattr(self, name):
                check_line(name, value)


def describe_session(
    spec: FusionSpec, versions: Mapping[str, str] | None = None, folder: Path | None = None
) -> dict[str, str]:
    """Return the metadata of all episodes of a session: the spec, and what records it.

    Args:
        spec: of the robot.
        versions: of more software, such as that of ROS.
        folder: whose git commit is recorded, if it is in a repository.
    """
    from robocache_ros import __version__

    found = {"robocache_ros": __version__, "python": platform.python_version(), "host": platform.node()}
    return {**found, **(versions or {}), **_git(folder or Path()), "spec": json.dumps(spec.to_dict())}


def _git(folder: Path) -> dict[str, str]:
    def run(*words: str) -> str:
        command = ["git", "-C", os.fspath(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
        return done.stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        return {
            "git_commit": run("rev-parse", "HEAD"),
            "git_changed": str(bool(run("status", "--porcelain", "-uno"))).lower(),
        }
    return {}


class EpisodeWriter:
    """Writes the messages of an episode in a thread; `put` never waits for the disk.

    Args:
        path: of the new file, which ends in `.part`.
        metadata: of the session and of the episode, by name.
        topics: that are declared before the first message; others are when their first message comes.
        limit_bytes: of the messages that wait for the disk.
        kind: name of the metadata, EPISODE or that of another kind of file.

    Attributes:
        received: number of messages by topic.
        error: why nothing more is written; empty: it is.

    Errors:
        RoboCacheError, OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, str],
        topics: Iterable[RecordedTopic] = (),
        *,
        limit_bytes: int = MAX_QUEUED_BYTES,
        kind: str = EPISODE,
    ) -> None:
        self.path = path
        self._kind = kind
        self.error = ""
        self.received: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()  # lost messages, by the thread that counts them
        self._failed: Counter[str] = Counter()
        self._limit_bytes = limit_bytes
        self._put_bytes = self._taken_bytes = 0  # each is written by one thread
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._file = McapWriter(path, {kind: metadata})
        self._channels: dict[str, int] = {}
        self._unwritten: Counter[str] = Counter()  # messages of the open chunk
        try:
            for topic in topics:
                self._channel(topic)
        except BaseException:
            self._file.abandon()
            raise
        self._thread = threading.Thread(target=self._run, name="robocache-episode", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> Counter[str]:
        """Number of messages by topic that are not in the file, and do not wait for it."""
        return self._refused + self._failed

    def put(self, message: Message) -> bool:
        """Queue a message; returns False if it is lost because the disk is too slow or has failed. For one thread."""
        self.received[message.topic.name] += 1
        waiting = self._put_bytes - self._taken_bytes
        if self.error or waiting >= self._limit_bytes or self._queue.qsize() >= MAX_QUEUED:
            self._refused[message.topic.name] += 1
            return False
        self._put_bytes += len(message.data)
        self._queue.put(message)
        return True

    def end(self, outcome: str, reason: str = "") -> str:
        """Write what waits and the summary, and close the file; returns the outcome, `error` if the disk has failed.

        Args:
            outcome: one of OUTCOMES.
            reason: of the outcome, for the metadata.
        """
        self._queue.put(None)
        self._thread.join()
        if self.error:
            outcome, reason = "error", self.error
        with suppress(OSError):
            self._file.add_metadata(f"{self._kind}_end", self._ending(outcome, reason))
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)
        return "error" if self.error else outcome

    def _ending(self, outcome: str, reason: str) -> dict[str, str]:
        return {
            "outcome": outcome,
            "reason": reason,
            "end_ns": str(time.time_ns()),
            "messages": json.dumps(self.received - self.lost),  # number by topic
            "lost": json.dumps(self.lost),
        }

    def _run(self) -> None:
        flush_ns = 0
        while True:
            try:
                wait_s = (flush_ns - time.monotonic_ns()) / 1e9 if self._unwritten else None
                message = self._queue.get(timeout=None if wait_s is None else max(wait_s, 0.0))
                if message is None:
                    self._flush()
                    return
                self._taken_bytes += len(message.data)
                if not self._unwritten:
                    flush_ns = time.monotonic_ns() + CHUNK_NS
                self._write(message)
            except queue.Empty:
                self._flush()
            if self._unwritten and time.monotonic_ns() >= flush_ns:
                self._flush()

    def _write(self, message: Message) -> None:
        self._unwritten[message.topic.name] += 1
        if self.error:
            self._count_lost()
            return
        try:
            self._file.write(
                self._channel(message.topic), max(message.log_ns, 0), max(message.publish_ns, 0), message.data
            )
            if not self._file.pending:
                self._unwritten.clear()
        except Exception as error:  # a message must not end the thread
            self._fail(error)

    def _flush(self) -> None:
        try:
            self._file.flush()
            self._unwritten.clear()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        self.error = (
            f"{printable(self.path, 60)}: cannot be written ({printable(text, 60)}); free space or check the disk"
        )
        log.error("%s", self.error)
        self._count_lost()

    def _count_lost(self) -> None:
        self._failed.update(self._unwritten)
        self._unwritten.clear()

    def _channel(self, topic: RecordedTopic) -> int:
        key = self._channels.get(topic.name)
        if key is None:
            key = self._file.add_channel(
                topic.name, topic.type, topic.definition, encoding=topic.encoding, latched=topic.latched
            )
            self._channels[topic.name] = key
        return key


class RecordingsFolder:
    """A folder of episodes: `episode_000001.mcap` and following ones; discarded ones in `trash/`.

    Files that a killed recorder left are completed; their outcome is unknown. One without messages goes to the trash.

    Args:
        path: of the folder, which is made if it does not exist.

    Attributes:
        recovered: the files that were completed.

    Errors:
        RoboCacheError: it is not a folder, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recovered: list[Path] = []
        with file_errors(path):
            self.path.mkdir(parents=True, exist_ok=True)
            for part in sorted(self.path.glob(f"episode_*.mcap{UNFINISHED}")):
                self._recover(part)

    def start(self, metadata: Mapping[str, str], topics: Iterable[RecordedTopic] = ()) -> EpisodeWriter:
        """Start the next episode.

        Errors:
            RoboCacheError: its file cannot be written.
        """
        names = [*os.listdir(self.path), *(os.listdir(self.path / TRASH) if (self.path / TRASH).is_dir() else ())]
        numbers = (int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        path = self.path / f"episode_{max(numbers, default=0) + 1:06d}.mcap{UNFINISHED}"
        with file_errors(path):
            try:
                return EpisodeWriter(path, {**metadata, "start_ns": str(time.time_ns())}, topics)
            except OSError:
                path.unlink(missing_ok=True)
                raise

    def end(self, episode: EpisodeWriter, outcome: str, reason: str = "") -> tuple[Path, str]:
        """End an episode; returns its file, in the trash if it is discarded, and its outcome; `error`: see its reason.

        Errors:
            RoboCacheError: the file cannot be moved.
        """
        found = episode.end(outcome, reason)
        return self._move(episode.path, self.path / TRASH if outcome == "discarded" else self.path), found

    def discard(self, file: Path) -> Path:
        """Move an ended episode to the trash; returns its file there.

        Errors:
            RoboCacheError: it cannot be moved.
        """
        return self._move(file, self.path / TRASH)

    def _move(self, file: Path, folder: Path) -> Path:
        target = folder / file.name.removesuffix(UNFINISHED)
        with file_errors(folder):
            folder.mkdir(exist_ok=True)
            file.rename(target)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return target

    def _recover(self, part: Path) -> None:
        try:
            file = McapWriter.reopen(part)
        except RoboCacheError as error:  # empty, or of a recorder that runs
            log.warning("%s", error)
            return
        ending = {"outcome": "unknown", "reason": "the recorder was killed", "end_ns": str(time.time_ns())}
        if EPISODE_END not in file.metadata_names:
            file.add_metadata(EPISODE_END, ending)
        file.close()
        # An export would refuse an episode without messages.
        self.recovered.append(self._move(part, self.path if file.messages else self.path / TRASH))
        count = number_of(file.messages, "message")
        log.warning("%s: completed after its recorder was killed, with %s", printable(self.recovered[-1], 60), count)


@dataclass(frozen=True)
class RecordedEpisode:
    """What the metadata of an episode say.

    Attributes:
        labels: task, operator and robot.
        outcome: one of OUTCOMES; `unknown` if its recorder was killed.
        lost: number of messages by topic that were not recorded.
        session: all of its metadata by name, with the spec and the versions of the software.
    """

    labels: EpisodeLabels
    outcome: str
    lost: dict[str, int] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)

    @property
    def success(self) -> bool | None:
        """Whether the robot succeeded; None: unknown."""
        return {"success": True, "failure": False}.get(self.outcome)


def is_episode_name(name: str) -> bool:
    """Whether a file has the name of a complete episode."""
    match = _NAME.fullmatch(name)
    return bool(match and not match[2])


def read_episode(path: AnyPath) -> RecordedEpisode | None:
    """Return what the metadata of a file say; None if it is not an episode of this recorder.

    Errors:
        RoboCacheError: it cannot be opened, or its labels are not lines of text.
    """
    found = read_metadata(path)
    session, ending = found.get(EPISODE), found.get(EPISODE_END, {})
    if session is None:
        return None
    try:
        labels = EpisodeLabels(*(session.get(name, "") for name in ("task", "operator", "robot")))
    except RoboCacheError as error:
        raise RoboCacheError(f"{printable(path, 60)}: {error}; correct it in its metadata") from None
    outcome = ending.get("outcome", "unknown")
    lost: dict[str, int] = {}
    with suppress(ValueError, AttributeError, RecursionError):
        lost = {str(name): int(count) for name, count in json.loads(ending.get("lost", "{}")).items()}
    return RecordedEpisode(labels, outcome if outcome in OUTCOMES else "unknown", lost, session)
