"""Finds recordings below URLs: folders that are searched, and globs, by one listing of all files in them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import cast

from robocache_ros.bags.reader import check_files
from robocache_ros.bags.storage.metadata import is_stored
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.any_path import any_path
from robocache_ros.remote.remote_path import RemotePath

METADATA = "metadata.yaml"
_MAGIC = {"*": "[^/]*", "?": "[^/]"}
_CLASS = re.compile(r"\[[^]]+\]")


def find_remote(url: str, is_one: Callable[[Path, Sequence[str]], bool], but: str) -> Iterator[RemotePath]:
    """Yield the recordings that a URL names: one recording, those in a folder, or those that a glob matches.

    Args:
        url: `*`, `?`, `[…]` and `**` are those of a glob, except over http.
        is_one: whether the storage files of a folder without metadata.yaml are one recording.
        but: URL of a folder that is left out; empty: none.

    Errors:
        RoboCacheError: it names no recording, or cannot be listed.
    """
    base, pattern = _split(url)
    root = cast(RemotePath, any_path(base, "recordings"))
    if not pattern and is_stored(root.name):
        check_files(cast(Path, root))
        yield root
        return
    tree = _Tree(root, is_one, but)
    if not pattern and not tree.files:
        check_files(cast(Path, root))  # says that it is not there
    found = list(tree.matches(pattern) if pattern else tree.recordings(""))
    if not found:
        what = "matches no recording; correct the pattern" if pattern else "no recordings in it; give another folder"
        raise RoboCacheError(f"{printable(url)}: {what}")
    yield from (root / name if name else root for name in found)


class _Tree:
    """The files below a folder; names are relative to it, and that of the folder itself is empty."""

    def __init__(self, root: RemotePath, is_one: Callable[[Path, Sequence[str]], bool], but: str) -> None:
        self._root, self._is_one = root, is_one
        start = len(root.url) + 1
        shown = (file.url for file in root.find() if not but or not file.url.startswith(f"{but}/"))
        self.files = [name for url in shown if not _is_hidden(name := url[start:])]
        self._folders: defaultdict[str, set[str]] = defaultdict(set)
        self._names: defaultdict[str, list[str]] = defaultdict(list)
        for file in self.files:
            folder, _, name = file.rpartition("/")
            self._names[folder].append(name)
            while folder and folder not in self._folders[_parent(folder)]:
                self._folders[_parent(folder)].add(folder)
                folder = _parent(folder)

    def recordings(self, folder: str) -> Iterator[str]:
        """Yield the recordings in a folder and below it."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            names, below = self._names[folder], self._folders[folder]
            stored = [name for name in names if is_stored(name)]
            whole = self._root / folder if folder else self._root
            if METADATA in names or (not below and self._is_one(cast(Path, whole), stored)):
                yield folder
                continue
            yield from (f"{folder}/{name}" if folder else name for name in stored)
            waiting += below

    def matches(self, pattern: str) -> Iterator[str]:
        """Yield the recordings that a glob matches, some of them several times."""
        matches = re.compile(_regex(pattern)).fullmatch
        for folder in [*self._names, *self._folders]:
            if matches(folder):
                yield from self.recordings(folder)
        for file in self.files:
            if is_stored(file) and matches(file):
                yield _parent(file) if METADATA in self._names[_parent(file)] else file


def _split(url: str) -> tuple[str, str]:
    """Split a URL before its first part that is a pattern."""
    protocol, mark, rest = url.partition("://")
    parts = rest.rstrip("/").split("/")
    first = next((n for n, part in enumerate(parts) if has_magic(part)), len(parts))
    if protocol.startswith("http") or first == len(parts):
        return url.rstrip("/"), ""
    return f"{protocol}{mark}{'/'.join(parts[:first])}", "/".join(parts[first:])


def _regex(pattern: str) -> str:
    text, parts = "", pattern.split("/")
    for number, part in enumerate(parts):
        if part == "**":
            text += "(?:[^/]+/)*" if number + 1 < len(parts) else ".*"
        else:
            text += _part(part) + ("/" if number + 1 < len(parts) else "")
    return f"{text[:-3]}(?:/.*)?" if text.endswith("/.*") else text  # a/** is also a


def _part(part: str) -> str:
    text = ""
    while part:
        if found := _CLASS.match(part):
            text += found[0].replace("[!", "[^", 1).replace("\\", "\\\\")
            part = part[found.end() :]
        else:
            text += _MAGIC.get(part[0]) or re.escape(part[0])
            part = part[1:]
    return text


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name
