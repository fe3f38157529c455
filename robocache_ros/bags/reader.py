"""Read recordings of ROS 1 and ROS 2: topics and messages of all files in the order of their log times."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from robocache_ros.bags.source import RawMessage, Source, joined, window_of
from robocache_ros.bags.storage.codecs import CompressedMessages, decompress_file
from robocache_ros.bags.storage.mcap import MCAP_MAGIC, NOT_ROS, McapFile
from robocache_ros.bags.storage.merge import joined_spans, merged_messages, merged_topics
from robocache_ros.bags.storage.metadata import Metadata, read_metadata
from robocache_ros.bags.storage.metadata import storage_files as storage_files
from robocache_ros.bags.storage.ros1 import ANY_VERSION as ROS1_MAGIC
from robocache_ros.bags.storage.ros1 import AsRos2, Ros1Bag
from robocache_ros.bags.storage.sqlite import HEADER as SQLITE_MAGIC
from robocache_ros.bags.storage.sqlite import SqliteFile
from robocache_ros.decode.cdr import message_end
from robocache_ros.decode.definitions import COMMON, message_type, needed_types
from robocache_ros.decode.payloads import MAX_DEFINITION_BYTES, MAX_TYPES, Buffer, DecodeError
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.spec import TF, TF_STATIC, FusionSpec, StreamSpec
from robocache_ros.storage.downloads import hold
from robocache_ros.storage.errors import NotReadError
from robocache_ros.storage.paths import AnyPath, RemotePath, any_path, is_url

MAX_ENTRIES = 10_000  # of a folder, that are looked into
_NAME = re.compile(r"([A-Za-z]\w*)/msg/([A-Za-z]\w*)", re.ASCII)


def check_msg_path(folders: Sequence[str | Path]) -> None:
    """Refuse places of message definitions that are not folders."""
    if isinstance(folders, (str, Path)):
        raise RoboCacheError(f"msg_path: {printable(folders)} is one path; give a list of folders")
    for folder in folders:
        if not Path(folder).is_dir():
            raise RoboCacheError(
                f"msg_path: {printable(folder)} is not a folder; give one with ROS packages, <package>/msg/<Type>.msg"
            )


def definitions_in(folders: Sequence[str | Path], types: Iterable[str]) -> dict[str, tuple[str, Path]]:
    """Return the definitions of types, and of the types that they need, where the folders have them.

    Types that are built in are left out.

    Args:
        folders: in the order in which they are searched. Each is a package, or contains packages, or repositories with
            packages, or is what `colcon build` installs into.
        types: such as `control_msgs/msg/DynamicJointState`.

    Returns:
        By type: its text, and its file.
    """
    found: dict[str, tuple[str, Path]] = {}
    wanted = list(types) if folders else []
    while wanted and len(found) < MAX_TYPES:
        name = wanted.pop()
        match = _NAME.fullmatch(name)
        if name in found or name in COMMON or not match:
            continue
        places = (place for folder in folders for place in _places(Path(folder), match[1], f"{match[2]}.msg"))
        if file := next((place for place in places if place.is_file()), None):
            found[name] = _text(file), file
            wanted += needed_types(name, found[name][0])
    return found


def _places(folder: Path, package: str, name: str) -> Iterator[Path]:
    """Yield where the file of a type may be."""
    if folder.absolute().name == package:
        yield folder / "msg" / name
    yield folder / package / "msg" / name
    yield folder / "share" / package / "msg" / name  # the installation of ROS, or a merged one
    yield folder / package / "share" / package / "msg" / name  # an installation of colcon
    with os.scandir(folder) as entries:
        inner = sorted(entry.name for entry in islice(entries, MAX_ENTRIES) if entry.is_dir())
    for repository in inner:
        yield folder / repository / package / "msg" / name


def _text(file: Path) -> str:
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DEFINITION_BYTES:
            raise RoboCacheError(f"{printable(file)}: not a message definition; check --msg-path")
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RoboCacheError(f"{printable(file)}: cannot be read ({error.strerror}); check --msg-path") from None


# Message types that differ between releases of their package; the messages themselves show which release it is.

_PADDING = 4  # some middlewares round the size of a message up to a multiple of this

_HEAD = "std_msgs/Header header\nstring[] joint_names\n"


def _points(kind: str, names: Iterable[str], prefix: str = "") -> str:
    return "".join(f"trajectory_msgs/{kind} {prefix}{name}\n" for name in names)


def _controller_state(names: tuple[str, ...]) -> str:
    several = _points("MultiDOFJointTrajectoryPoint", names, "multi_dof_")
    return f"{_HEAD}{_points('JointTrajectoryPoint', names)}string[] multi_dof_joint_names\n{several}"


_NEW = ("reference", "feedback", "error", "output")

# For each type, the .msg text of each release.
RELEASES = {
    "control_msgs/msg/JointTrajectoryControllerState": (
        _HEAD + _points("JointTrajectoryPoint", ("desired", "actual", "error")),
        _controller_state((*_NEW, "desired", "actual")),
        _controller_state(_NEW),
    )
}


def find_release(name: str, messages: Iterable[Buffer]) -> str | None:
    """The .msg text of the release whose layout ends where each of the messages ends; None if there is none."""
    samples = list(messages)
    for text in RELEASES.get(name, ()) if samples else ():
        layout = message_type(name, {name: text})
        try:
            rests = [len(data) - message_end(layout, data) for data in samples]
        except DecodeError:
            continue
        if all(0 <= rest < _PADDING for rest in rests):
            return text
    return None


SUFFIXES = (".mcap", ".db3", ".bag")
STORAGES: dict[type, str] = {McapFile: "mcap", Ros1Bag: "ros1", SqliteFile: "sqlite3"}
# `rosbag record --split` writes name_2024-05-01-12-00-00_0.bag, name_2024-05-01-12-10-00_1.bag
_SPLIT_OF_ROS1 = re.compile(r"([0-9]{4}(-[0-9]{2}){5})?_?[0-9]+(?=\.bag)")


def open_storage(file: AnyPath, *, sampled: bool = False, packed: AnyPath | None = None) -> Source:
    """Open a storage file with the reader for its first bytes, or for its name if the bytes are not recognized.

    Args:
        file: the file.
        sampled: of a remote MCAP file, read only a few chunks.
        packed: the compressed file from which it was unpacked, if it was.

    Errors:
        RoboCacheError: the file cannot be opened or read.
    """
    if isinstance(file, RemotePath) and file.suffix == ".mcap":  # of others, parts are of no use
        return McapFile(file, sampled=sampled)
    try:
        with file.open("rb") as opened:
            head = opened.read(16)
    except OSError as error:
        raise RoboCacheError(f"{file}: cannot be opened: {error.strerror}; check its permissions") from None
    if head.startswith(MCAP_MAGIC):
        return McapFile(file)
    if head.startswith(SQLITE_MAGIC):
        return SqliteFile(file, packed)
    if head.startswith(ROS1_MAGIC) or _is_named_ros1(file):
        return Ros1Bag(file)
    return McapFile(file) if file.suffix == ".mcap" else SqliteFile(file, packed)


def check_files(path: AnyPath) -> None:
    """Refuse a path that is not a recording, by the names and types of its files, without reading messages.

    Errors:
        RoboCacheError: the path does not exist or has another file type, or a storage file is missing or empty.
    """
    if not path.exists():
        raise RoboCacheError(f"{path}: no such recording; give a rosbag2 folder, or a .mcap, .db3 or .bag file")
    if not path.is_dir() and path.suffix not in (*SUFFIXES, ".zstd") and not _is_named_ros1(path):
        raise RoboCacheError(f"{path}: neither a rosbag2 folder nor a .mcap, .db3 or .bag file; give a recording")
    files = storage_files(path)
    if not files:
        folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        inside = next((name for name in folders if storage_files(path / name)), "")
        hint = f"give a folder in it, such as {printable(inside, 40)}" if inside else "give a recording"
        raise RoboCacheError(f"{path}: not a recording, it has no .mcap, .db3 or .bag file; {hint}")
    missing = [printable(file.name) for file in files if not file.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RoboCacheError(f"{path}: its file {printable(missing[0], 60)}{more} is missing; copy the complete folder")
    if len(files) > 1 and len({_SPLIT_OF_ROS1.sub("", file.name) for file in files if _is_named_ros1(file)}) > 1:
        raise RoboCacheError(
            f"{path}: {len(files)} ROS 1 bags that are not splits of one recording; give one, such as "
            f"{printable(max(files, key=lambda file: file.stat().st_size).name, 40)}"
        )
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RoboCacheError(f"{file}: not a regular file; give a recording")
        if not status.st_size:
            raise RoboCacheError(f"{file}: empty; record it again")


def _is_named_ros1(file: AnyPath) -> bool:
    return file.suffix == ".bag" or file.name.endswith(".bag.active")


CHECKED = "every message is covered by a checksum that is verified"
UNCHECKED = "not every message has a checksum: altered contents cannot be detected"
MAX_LINE = 186  # characters of an error
_SHOWN = 5  # maximum number of topics in a note


def _with_bytes(message: RawMessage) -> RawMessage:
    return message if type(message.data) is bytes else message._replace(data=bytes(message.data))


class Bag:
    """An open recording; a context manager.

    Attributes:
        path: the opened folder or file.
        files: the storage files, in the order they were written.
        storage: mcap, sqlite3 or ros1, by the contents of the first file.
        topics: topics by name.
        start_ns, stop_ns: log time of the first message in use, and exclusive end after the last one.
        share, sampled_spans: of the chunks that are read; if it is not 1, first and last log time by topic.

    Args:
        path: a rosbag2 folder, or one .mcap, .db3 or .bag (ROS 1) file; or its URL.
        whole: of a URL: download everything, ahead of what is read; otherwise what is read of an mcap file.
        sampled: of a URL: messages are those of a few chunks of mcap files, which stand for the others.
        msg_path: folders with ROS packages, whose message definitions are used for types that neither the recording nor
            this package defines.

    Errors:
        RoboCacheError: not a recording, or a recording without readable data.
    """

    def __init__(
        self, path: str | AnyPath, *, whole: bool = False, sampled: bool = False, msg_path: Sequence[str | Path] = ()
    ) -> None:
        check_msg_path(msg_path)
        self.path, self._msg_path = any_path(path, "recordings"), tuple(msg_path)
        self._notes: list[str] = []
        self._stack = ExitStack()
        self.share = 1.0
        self.sampled_spans: dict[str, tuple[int, int]] = {}
        self._sources: list[tuple[str, Source]] = []  # (file name, source)
        self.storage = ""
        try:
            metadata = self._check()
            self.files = storage_files(self.path)
            self._stack.enter_context(hold(self.files if whole else ()))
            self._note_other_files(metadata)
            self._open(metadata, sampled)
            sources = [source for _, source in self._sources]
            self.topics = merged_topics(sources)
            if not any(topic.count for topic in self.topics.values()):
                raise RoboCacheError(f"{self.path}: {self._empty()}")
            self._compare_with(metadata)
            groups = joined(group for source in sources for group in source.log_times())
            try:
                window = window_of(groups)
            except RoboCacheError as error:
                raise RoboCacheError(f"{self.path}: {error}; record it again") from None
        except BaseException as error:
            self.close()
            if isinstance(error, NotReadError):
                raise error.error from None
            raise
        self.start_ns, self.stop_ns = window.start_ns, window.stop_ns
        if window.note:
            self._notes.append(f"{printable(self.path.absolute().name)}: {window.note}")

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data, one line each; complete after all messages have been read."""
        return [*self._notes, *(f"{name}: {note}" for name, source in self._sources for note in source.notes)]

    @property
    def integrity(self) -> str:
        """Whether checksums detect altered messages in the recording: CHECKED or UNCHECKED."""
        return CHECKED if all(source.has_checksums for _, source in self._sources) else UNCHECKED

    @cached_property
    def definitions(self) -> dict[str, str]:
        """Message definitions by type: of the recording, inferred from its messages, and in the `msg_path`."""
        held = {topic.type: topic.definition for topic in self.topics.values() if topic.definition}
        for topic in self.topics.values():
            if topic.type in RELEASES and topic.type not in held and topic.count:
                found = find_release(topic.type, (m.data for m in islice(self.messages([topic.name]), 8)))
                if found:
                    held[topic.type] = found
                    self._notes.append(f"{topic.type}: not defined in the recording; read with a known one that fits")
        unknown = dict.fromkeys(topic.type for topic in self.topics.values() if topic.type not in held)
        for kind, (text, file) in definitions_in(self._msg_path, unknown).items():
            held[kind] = text
            if kind in unknown:
                self._notes.append(f"{kind}: not defined in the recording; read with {printable(file, 160)}")
        return held

    def messages(
        self,
        topics: Collection[str] | None = None,
        start_ns: int | None = None,
        stop_ns: int | None = None,
        *,
        views: bool = False,
    ) -> Iterator[RawMessage]:
        """Yield the messages of `topics` (None: all) with start_ns <= log time < stop_ns, in log order.

        Their data is bytes. `views`: the data of large messages may be memoryviews without a copy; they keep the memory
        around them from being reused until they are released.
        """
        wanted = set(self.topics if topics is None else topics)
        low = max(self.start_ns, start_ns if start_ns is not None else 0)
        high = min(self.stop_ns, stop_ns if stop_ns is not None else self.stop_ns)
        try:
            messages = merged_messages([source for _, source in self._sources], wanted, low, high)
            yield from messages if views else map(_with_bytes, messages)
        except NotReadError as error:
            raise error.error from None
        except OSError as error:
            raise RoboCacheError(f"{self.path}: cannot be read: {error.strerror}; check its disk") from None

    def require_storage(self, storage: str) -> None:
        """Raise an error if a storage is given, and the recording has another one."""
        if storage not in ("", self.storage):
            raise RoboCacheError(f"--storage: {storage}, but {self.path} is {self.storage}; leave the option out")

    def require(self, spec: FusionSpec) -> None:
        """Raise an error if topics or types of the spec are not in the recording; it names the first one."""
        feeds = self.feeds(spec)
        missing = list(dict.fromkeys(feed.topic for feed in feeds if feed.topic not in self.topics))
        if missing:
            rest = number_of(len(missing) - 1, "more topic")
            more = f", nor {rest} of the spec" if missing[1:] else ""
            near = difflib.get_close_matches(missing[0], self.topics, n=1, cutoff=0.5)
            hint = f" (did you mean {printable(near[0], 60)}?)" if near else ""
            text = f"{printable(self.path, 50)}: has no topic {printable(missing[0], 60)}{hint}{more}; it has "
            space = MAX_LINE - len(text)  # the names of all topics are cut, never what is missing
            raise RoboCacheError(text + printable(", ".join(self.topics), max(space, 8)))
        for stream in spec.framed if not {TF, TF_STATIC} & set(self.topics) else ():
            raise RoboCacheError(
                f"streams.{stream.name}.voxels.frame: {self.path} has no topic {TF_STATIC}; give voxels.extrinsic"
            )
        for feed in feeds:
            found = self.topics[feed.topic].type
            if found != feed.type:
                key = f"{feed.name}.type" if "/" not in feed.name else feed.name.replace("/", ".")
                raise RoboCacheError(
                    f"streams.{key}: {feed.type}, but {feed.topic} in {self.path} is {found}; change the spec"
                )

    def feeds(self, spec: FusionSpec) -> tuple[StreamSpec, ...]:
        """Return the feeds of a spec to read: all of them, but some only if the recording has their topic.

        They are /tf for moving sensors, and interventions, which recordings without a policy do not have.
        """
        return tuple(
            feed
            for feed in spec.feeds
            if feed.topic in self.topics or not (feed.name == TF or feed.role == "intervention")
        )

    def _check(self) -> Metadata:
        check_files(self.path)
        metadata = read_metadata(self.path) if self.path.is_dir() else Metadata()
        ros1 = all(file.suffix not in (".mcap", ".db3", ".zstd") for file in storage_files(self.path))
        if self.path.is_dir() and not ros1 and not (self.path / "metadata.yaml").exists():
            self._notes.append(
                f"{printable(self.path.absolute().name)}: has no metadata.yaml, as after a crash of the recorder; "
                "its files were read"
            )
        return metadata

    def _note_other_files(self, metadata: Metadata) -> None:
        """Note if files named in metadata.yaml are missing and other files were read."""
        found = [file.name for file in self.files]
        if metadata.files and not set(found) & set(metadata.files):
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            named, read = printable(metadata.files[0], 60), printable(found[0], 60)
            self._notes.append(f"metadata.yaml names {named}, which does not exist; {read}{more} was read instead")

    def _open(self, metadata: Metadata, sampled: bool) -> None:
        for file in self.files:
            name = printable(file.name)
            source = self._unpack(file) if file.suffix == ".zstd" else open_storage(file, sampled=sampled)
            if isinstance(source, McapFile) and source.share < 1:
                self.share = min(self.share, source.share)
                self.sampled_spans = joined_spans(self.sampled_spans, source.spans)
            self._stack.callback(source.close)
            self.storage = self.storage or STORAGES[type(source)]
            if metadata.compression == "message":
                source = CompressedMessages(source)
            if any(topic.encoding == "ros1" for topic in source.topics):
                source = AsRos2(source)
            self._sources.append((name, source))

    def _empty(self) -> str:
        """Describe why there are no messages, and what to do."""
        last = self.notes[-1].partition(": ")[2] if self.notes else ""
        if NOT_ROS in last:
            return f"{last}; give one with ROS messages"
        return f"has no messages{f' ({last})' if last else ''}; record it again"

    def _unpack(self, file: AnyPath) -> Source:
        unpacked = Path(self._stack.enter_context(TemporaryDirectory(prefix="robocache-"))) / file.stem
        wrong = decompress_file(file, unpacked)
        if wrong:
            self._notes.append(f"{printable(file.name)}: {wrong}")
        try:
            return open_storage(unpacked, packed=file)
        except RoboCacheError as error:
            named = str(error).replace(str(unpacked), str(file))
            raise RoboCacheError(f"{file}: {wrong}; copy it again" if wrong else named) from None

    def _compare_with(self, metadata: Metadata) -> None:
        """Note differences between the files and the contents that metadata.yaml lists."""
        wrong = [
            f"{printable(name)} {self.topics[name].count if name in self.topics else 0:,} of {count:,}"
            for name, count in metadata.counts.items()
            if count != (self.topics[name].count if name in self.topics else 0)
        ]
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more topics" if len(wrong) > _SHOWN else ""
            self._notes.append(f"messages found, of those counted in metadata.yaml: {', '.join(wrong[:_SHOWN])}{more}")

    def close(self) -> None:
        """Release the files."""
        self._stack.close()

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_recordings(paths: Iterable[str | AnyPath], spec: FusionSpec) -> None:
    """Refuse recordings that cannot be read or do not match the spec, before the first one is processed."""
    found = [any_path(path, "recordings") for path in paths]
    for path in found:
        check_files(path)
    for path in found:
        # Compressed files are not decompressed here, but once, during the conversion; nor are whole files downloaded.
        if all(file.suffix == ".mcap" if is_url(path) else file.suffix != ".zstd" for file in storage_files(path)):
            with Bag(path) as bag:
                bag.require(spec)
