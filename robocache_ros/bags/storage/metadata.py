"""The metadata.yaml of a recording: its files, their order, and their expected contents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from robocache_ros.storage.errors import RemoteError
from robocache_ros.storage.paths import AnyPath

MAX_BYTES = 16 << 20
MAX_DEPTH = 32
MAX_CACHED_CHARACTERS = 1 << 16
_SPLIT = re.compile(r"_[0-9]+(?=\.)")  # number of a split file: bag_0.mcap, bag_1.mcap
# Not ._x.mcap, x.mcap.bak or x.mcap.sha256.
_STORED = re.compile(r"[^.].*\.((mcap|db3)(\.zstd)?|bag|bag\.active)", re.IGNORECASE)
_ROS1 = (".bag", ".active")


@dataclass(frozen=True)
class Metadata:
    """Contents of metadata.yaml; empty if it is missing or damaged, because the storage files suffice.

    Attributes:
        files: names of the storage files, in write order; never a path outside of the folder.
        compression: ``, `file` or `message`.
        counts: number of messages by topic.
    """

    files: tuple[str, ...] = ()
    compression: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def read_metadata(folder: AnyPath) -> Metadata:
    """Read the metadata of a folder."""
    file = folder / "metadata.yaml"
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        return Metadata()
    try:
        text = file.read_text(encoding="utf-8")
        return _parsed(text) if len(text) > MAX_CACHED_CHARACTERS else _parsed_once(text)
    except RemoteError:
        raise
    except (OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Metadata()


def _parsed(text: str) -> Metadata:
    found = _load(text)["rosbag2_bagfile_information"]
    mode = str(found.get("compression_mode") or "").lower()
    names = [Path(name).name for name in found.get("relative_file_paths") or () if isinstance(name, str)]
    topics = found.get("topics_with_message_count") or ()
    counts = {t["topic_metadata"]["name"]: t["message_count"] for t in topics}
    good = all(isinstance(name, str) and isinstance(count, int) for name, count in counts.items())
    return Metadata(tuple(dict.fromkeys(names)), "" if mode == "none" else mode, counts if good else {})


_parsed_once = lru_cache(64)(_parsed)  # an export reads it a dozen times


def storage_files(path: AnyPath) -> tuple[AnyPath, ...]:
    """Return the storage files of a recording, in write order.

    The order is that of metadata.yaml; without it, that of the numbers in the names, `bag_2` before `bag_10`. If none
    of the files in metadata.yaml exists, the folder was renamed after the recording. The existing files are then used,
    if there is one file, or if the names differ only in their number.
    """
    if not path.is_dir():
        return (path,)
    listed = tuple(path / name for name in read_metadata(path).files)
    found = _stored(path) if not any(file.exists() for file in listed) else ()
    if listed and (not found or len({_SPLIT.sub("", file.name) for file in found}) > 1):
        return listed
    return found


def is_stored(name: str) -> bool:
    """Whether a file of this name stores messages."""
    return _STORED.fullmatch(name) is not None


def _stored(folder: AnyPath) -> tuple[AnyPath, ...]:
    files = [f for f in folder.iterdir() if is_stored(f.name) and not f.is_dir()]
    files = [f for f in files if f.suffix not in _ROS1] or files  # a ROS 1 bag in the same folder is their source
    numbered = {f: [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", f.name)] for f in files}
    return tuple(sorted(files, key=numbered.__getitem__))


def _load(text: str) -> Any:
    """Parse the document; YAMLError if it is nested deeper than any metadata.yaml, or has merge keys.

    Some recorders write a time once and refer to it with an alias. PyYAML copies merge keys, but not aliases.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader takes a tenth of the time
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        merges = isinstance(event, yaml.ScalarEvent) and event.value == "<<"
        if depth > MAX_DEPTH or merges:
            raise yaml.YAMLError("merged keys or deep nesting")
    return yaml.load(text, loader)
