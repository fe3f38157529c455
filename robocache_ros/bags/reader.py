"""Read rosbag2 recordings (mcap or sqlite3, compressed or not) with no ROS installed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from robocache_ros.bags.mcap import McapFile
from robocache_ros.bags.source import RawMessage, Source, Topic
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.spec import TF_STATIC, FusionSpec

SUFFIXES = (".mcap", ".db3")


class _Rosbags:
    """sqlite3, and folders of compressed files or messages: what the rosbags library reads."""

    def __init__(self, path: Path) -> None:
        self._reader = need("rosbags.rosbag2", "bags").Reader(path)
        self._reader.open()
        self.start_ns: int = self._reader.start_time
        self.stop_ns: int = self._reader.end_time
        self.topics = tuple(
            Topic(
                *(c.topic, c.msgtype, c.msgcount, c.msgdef.data if c.msgdef.format.name == "MSG" else ""),
                any(qos.durability.name == "TRANSIENT_LOCAL" for qos in c.ext.offered_qos_profiles),
            )
            for c in self._reader.connections
            if isinstance(c.topic, str) and isinstance(c.msgtype, str)  # a damaged table may hold anything
        )

    def messages(self, topics: Collection[str], start_ns: int | None, stop_ns: int | None) -> Iterator[RawMessage]:
        wanted = [c for c in self._reader.connections if c.topic in topics]
        if wanted:
            for connection, log_ns, data in self._reader.messages(wanted, start_ns, stop_ns):
                yield RawMessage(connection.topic, log_ns, data)

    def close(self) -> None:
        self._reader.close()


class Bag:
    """An open recording; a context manager.

    Attributes:
        path: what was opened, a folder or a file.
        topics: its topics by name.
        start_ns, stop_ns: log time of the first message, and past that of the last one.
        notes: what a user should know, such as a recording that was cut short.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._stack = ExitStack()
        self._sources = self._open()
        for source in self._sources:
            self._stack.callback(source.close)
        self.start_ns = min(source.start_ns for source in self._sources)
        self.stop_ns = max(source.stop_ns for source in self._sources)
        self.topics = _merge(self._sources)
        if not any(topic.count for topic in self.topics.values()):
            self.close()
            raise RoboCacheError(f"{self.path}: holds no messages; record it again")

    @property
    def files(self) -> tuple[Path, ...]:
        """The storage files, in order."""
        return storage_files(self.path)

    @property
    def definitions(self) -> dict[str, str]:
        """Message definitions by type, as far as the recording holds them."""
        return {topic.type: topic.definition for topic in self.topics.values() if topic.definition}

    def messages(
        self, topics: Collection[str] | None = None, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[RawMessage]:
        """The messages of some topics (None: all) with start_ns <= log time < stop_ns, in log order."""
        wanted = set(self.topics if topics is None else topics)
        try:
            for source in self._sources:
                yield from source.messages(wanted, start_ns, stop_ns)
        except _damage() as error:
            raise RoboCacheError(f"{self.path}: damaged inside, its messages end early: {_said(error)}") from error

    def require(self, spec: FusionSpec) -> None:
        """Refuse a spec whose topics or types this recording does not have, naming each and what is near."""
        missing = [f"{feed.topic}{self._near(feed.topic)}" for feed in spec.feeds if feed.topic not in self.topics]
        if missing:
            raise RoboCacheError(
                f"{self.path}: does not hold {', '.join(dict.fromkeys(missing))}; it holds {', '.join(self.topics)}"
            )
        for stream in spec.framed if TF_STATIC not in self.topics else ():
            raise RoboCacheError(
                f"streams.{stream.name}.voxels.frame: {self.path} does not hold {TF_STATIC}; give voxels.extrinsic"
            )
        for feed in spec.feeds:
            found = self.topics[feed.topic].type
            if found != feed.type:
                key = f"{feed.name}.type" if "/" not in feed.name else feed.name.replace("/", ".")
                raise RoboCacheError(
                    f"streams.{key}: {feed.type}, but {feed.topic} in {self.path} is {found}; change the spec"
                )

    def _near(self, topic: str) -> str:
        near = difflib.get_close_matches(topic, self.topics, n=1, cutoff=0.5)
        return f" (is it {near[0]}?)" if near else ""

    def _open(self) -> list[Source]:
        if not self.path.exists():
            raise RoboCacheError(f"{self.path}: no such recording; give a rosbag2 folder or its .mcap or .db3 file")
        if self.path.is_file() and self.path.suffix not in SUFFIXES:
            raise RoboCacheError(f"{self.path}: is neither a rosbag2 folder nor a .mcap or .db3 file")
        if self.path.is_dir() and (self.path / "metadata.yaml").exists():
            metadata = _metadata(self.path / "metadata.yaml")
            missing = [name for name in metadata.get("relative_file_paths", ()) if not (self.path / name).exists()]
            if missing:
                raise RoboCacheError(f"{self.path}: its files {', '.join(missing)} are missing; copy the whole folder")
            if metadata.get("compression_mode"):  # only the metadata tells that messages or files are compressed
                return [self._open_compressed()]
        if not self.files:
            raise RoboCacheError(f"{self.path}: is no rosbag2 recording: there is no .mcap and no .db3 in it")
        if self.path.is_dir() and not (self.path / "metadata.yaml").exists():
            self.notes.append(
                f"{self.path}: has no metadata.yaml, as after a crash of the recorder; its files were read"
            )
        return [self._open_file(file) for file in self.files]

    def _open_compressed(self) -> Source:
        try:
            return _Rosbags(self.path)
        except _damage() as error:
            raise RoboCacheError(f"{self.path}: cannot be read: {_said(error)}") from error

    def _open_file(self, file: Path) -> Source:
        if not file.stat().st_size:
            raise RoboCacheError(f"{file}: is empty; record it again")
        if file.suffix == ".mcap":
            mcap = McapFile(file)
            if mcap.note:
                self.notes.append(f"{file}: {mcap.note}")
            return mcap
        _check_length(file)
        try:
            return _Rosbags(file)
        except _damage() as error:
            raise RoboCacheError(f"{file}: cannot be read, it is damaged or cut short: {_said(error)}") from error

    def close(self) -> None:
        """Release the files."""
        self._stack.close()

    def __enter__(self) -> Bag:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _metadata(file: Path) -> dict[str, Any]:
    """What metadata.yaml says; nothing where it is damaged, for the files say the rest themselves."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C takes a tenth of the time
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), loader)["rosbag2_bagfile_information"]
        mode = str(found.get("compression_mode") or "").lower()
        names = [Path(str(name)).name for name in found.get("relative_file_paths") or ()]
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, AttributeError):
        return {}
    return {"relative_file_paths": names, "compression_mode": "" if mode == "none" else mode}


def _check_length(file: Path) -> None:
    """Refuse an SQLite file that has fewer pages than its header says: SQLite reads some of those as empty tables."""
    with file.open("rb") as opened:
        head = opened.read(100)
    page = int.from_bytes(head[16:18], "big")  # https://www.sqlite.org/fileformat2.html, the database header
    length = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
    current = head[24:28] == head[92:96]  # else an old SQLite wrote last, which does not keep the count
    if head.startswith(b"SQLite format 3\0") and current and file.stat().st_size < length:
        raise RoboCacheError(
            f"{file}: is cut short, {file.stat().st_size:,} of {length:,} bytes are there; copy it again, "
            f"or recover what is left: sqlite3 {file.name} .recover | sqlite3 whole.db3"
        )


def storage_files(path: Path) -> tuple[Path, ...]:
    """The storage files of a recording, in the order they were written: `bag_2` before `bag_10`."""
    if not path.is_dir():
        return (path,)
    files = [f for f in path.iterdir() if any(suffix in SUFFIXES for suffix in f.suffixes)]  # also .mcap.zstd
    numbered = {f: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", f.name)] for f in files}
    return tuple(sorted(files, key=numbered.__getitem__))


def _merge(sources: list[Source]) -> dict[str, Topic]:
    """Topics over all files of a recording, by name."""
    counts: Counter[str] = Counter()
    found: dict[str, Topic] = {}
    for topic in sorted((t for source in sources for t in source.topics), key=lambda t: t.name):
        counts[topic.name] += topic.count
        known = found.setdefault(topic.name, topic)
        if topic.latched:
            found[topic.name] = replace(known, latched=True)
        if known.type != topic.type:
            raise RoboCacheError(
                f"{topic.name}: is {known.type} and {topic.type} in one recording; it cannot be decoded"
            )
    return {name: replace(topic, count=counts[name]) for name, topic in found.items()}


def _damage() -> tuple[type[BaseException], ...]:
    """What the storage libraries raise on damaged files."""
    import struct
    from importlib import import_module

    kinds: list[Any] = [need("rosbags.rosbag2", "bags").ReaderError, struct.error, OSError, EOFError]
    kinds += [ValueError, TypeError, KeyError, AssertionError, OverflowError, MemoryError, RuntimeError]
    for module, name in (("apsw", "Error"), ("backports.zstd", "ZstdError"), ("compression.zstd", "ZstdError")):
        with suppress(ImportError):
            kinds.append(getattr(import_module(module), name))
    return tuple(kinds)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
