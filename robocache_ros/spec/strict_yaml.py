"""A parser for YAML 1.2 with only the core schema, with limits on time and memory.

PyYAML splits the text into events; this module resolves scalars. In contrast to `yaml.safe_load`, `1e13` is a
number and `1:30`, `2001-12-14`, `yes` and `off` are text. Duplicate keys, merge keys, tags beyond the core schema, and
more nesting, values or aliases than the limits allow are errors with a line and a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import read_text

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000  # nodes of an alias count at each use
MAX_NUMBER = 40  # characters
MAX_KEY = 256  # characters

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")

_CORE = "tag:yaml.org,2002:"
_SCALARS: dict[str, type | tuple[type, ...]] = {
    f"{_CORE}null": type(None),
    f"{_CORE}bool": bool,
    f"{_CORE}int": int,
    f"{_CORE}float": (float, int),
}


class YamlError(RoboCacheError):
    """Text that is not YAML 1.2 within the limits; `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column = line, column


@dataclass
class Node:
    """A value with its position in the file; `children` by key or index."""

    value: Any
    line: int
    column: int
    size: int = 1  # number of nodes in the subtree, including this node
    children: dict[object, Node] = field(default_factory=dict)

    def at(self, path: tuple[object, ...]) -> Node:
        """Return the node at a path, or its nearest existing ancestor."""
        node = self
        for part in path:
            if part not in node.children:
                break
            node = node.children[part]
        return node


def read_file(path: AnyPath, hint: str) -> tuple[Any, Callable[[tuple[object, ...]], str]]:
    """Read a file with one document.

    Args:
        path: of the file.
        hint: what to do if it cannot be read, for errors.

    Returns:
        Its value, and a function that returns the place of the keys and indexes of a value: `<file>:<line>:<column>`.

    Raises:
        RoboCacheError: the file cannot be read, or is not YAML as `load` expects it; the message names the place.
    """
    shown = printable(path, 60)
    try:
        root = load(read_text(path, hint, MAX_BYTES))
    except YamlError as error:
        raise RoboCacheError(printable(f"{shown}:{error.line}:{error.column}: {error}", 199)) from None

    def place(at: tuple[object, ...]) -> str:
        node = root.at(at)
        return f"{shown}:{node.line}:{node.column}"

    return root.value, place


def load(text: str) -> Node:
    """Parse one document.

    Raises:
        YamlError: the text is not YAML 1.2, uses features outside the core schema, or exceeds a limit.
    """
    loader: Any = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        return _Composer().document(_events(loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(filter(None, (error.context, error.problem)))
        raise YamlError(line, column, f"not valid YAML: {printable(what, 90)}; correct the syntax") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        raise YamlError(line, column, f"not valid YAML: character {error.character:#x}; remove it") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, RoboCacheError):
            raise
        mark = loader.get_mark()  # an escape or a number that PyYAML passes to Python unchecked
        raise YamlError(mark.line + 1, mark.column + 1, "not valid YAML: a number out of range; correct it") from None
    finally:
        loader.dispose()


def _events(loader: Any) -> Iterator[Any]:
    while loader.check_event():
        yield loader.get_event()


def _refuse(event: Any, message: str) -> YamlError:
    return YamlError(event.start_mark.line + 1, event.start_mark.column + 1, message)


class _Composer:
    """Builds nodes from events, without recursion."""

    def __init__(self) -> None:
        self.anchors: dict[str, Node] = {}
        self.open: list[tuple[Node, str | None]] = []  # open containers with their anchors
        self.keys: list[str | None] = []  # for each open mapping, the key whose value is pending
        self.nodes = 0
        self.root: Node | None = None

    def document(self, events: Iterator[Any]) -> Node:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
                raise _refuse(event, "a second document begins here; keep one document in a file")
            if isinstance(event, yaml.NodeEvent):
                self.node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.end()
        return self.root or Node(None, 1, 1)

    def node(self, event: Any) -> None:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.AliasEvent):
            known = self.anchors.get(str(event.anchor))  # only closed nodes have anchors, so no value contains itself
            if known is None:
                raise _refuse(event, f"alias *{printable(event.anchor, 40)} has no complete anchor before it; add one")
            self.count(event, known.size)
            self.add(event, Node(known.value, line, column, known.size))
            return
        self.count(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            node = Node(_scalar(event), line, column)
            self.add(event, node)
            if event.anchor is not None:
                self.anchors[event.anchor] = node
            return
        if len(self.open) >= MAX_DEPTH:
            raise _refuse(event, f"nested more than {MAX_DEPTH} deep; write it flatter")
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_CORE}{'map' if mapping else 'seq'}"):
            raise _refuse(event, f"tag {printable(event.tag, 60)} is not part of the core schema; remove it")
        node = Node({} if mapping else [], line, column)
        self.add(event, node)
        self.open.append((node, event.anchor))
        self.keys.append(None)

    def count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _refuse(event, f"more than {MAX_NODES} values, aliases counted in full; write less")

    def add(self, event: Any, node: Node) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1][0]
        if isinstance(parent.value, list):
            parent.children[len(parent.value)] = node
            parent.value.append(node.value)
        elif self.keys[-1] is None:
            self.keys[-1] = _key(event, node, parent)
        else:
            key = parent.children[self.keys[-1]]
            node.line, node.column = key.line, key.column  # errors refer to the position of the key
            parent.children[self.keys[-1]] = node
            parent.value[self.keys[-1]] = node.value
            self.keys[-1] = None

    def end(self) -> None:
        node, anchor = self.open.pop()
        self.keys.pop()
        node.size = 1 + sum(child.size for child in node.children.values())
        if anchor is not None:
            self.anchors[anchor] = node


def _key(event: Any, node: Node, parent: Node) -> str:
    """Check the key of a mapping, and store its position until its value is parsed."""
    if not isinstance(node.value, str):
        raise _refuse(event, "a key is not text; write a plain word, in quotes if it looks like a number")
    if len(node.value) > MAX_KEY:
        raise _refuse(event, f"a key of {len(node.value)} characters; use at most {MAX_KEY}")
    if node.value == "<<":
        raise _refuse(event, "merge key << is not part of YAML 1.2; write the keys out")
    if node.value in parent.children:
        first = parent.children[node.value].line
        raise _refuse(
            event, f"key {printable(node.value, 60)!r} is already given in line {first}; remove one of the two"
        )
    parent.children[node.value] = node
    return node.value


def _scalar(event: Any) -> Any:
    """Return the value of a scalar according to the core schema."""
    tag, text = event.tag, str(event.value)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise _refuse(event, "half a surrogate pair in an escape; write the character itself")
    if tag in ("!", f"{_CORE}str"):
        return text
    if tag is None:
        return _plain(event, text) if event.implicit[0] else text
    wanted = _SCALARS.get(tag)
    if wanted is None:
        raise _refuse(event, f"tag {printable(tag, 60)} is not part of the core schema; remove it")
    value = _plain(event, text)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise _refuse(event, f"{printable(text, 40)!r} is not of the type of its tag; remove the tag !!{tag[18:]}")
    return value


def _plain(event: Any, text: str) -> Any:
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if match := _INFINITE.fullmatch(text):
        return float(f"{match[1]}inf")
    if _NAN.fullmatch(text):
        return float("nan")
    for pattern, convert in (
        (_INT, int),
        (_OCTAL, lambda digits: int(digits[2:], 8)),
        (_HEX, lambda digits: int(digits, 16)),
        (_FLOAT, float),
    ):
        if pattern.fullmatch(text):
            if len(text) > MAX_NUMBER:
                raise _refuse(event, f"a number of {len(text)} characters; use at most {MAX_NUMBER}")
            return convert(text)
    return text
