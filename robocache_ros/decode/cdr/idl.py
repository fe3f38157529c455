"""Converts OMG IDL, which recordings store for packages that define messages in IDL, to .msg texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from robocache_ros.decode.limits import MAX_DEFINITION_BYTES
from robocache_ros.errors import RoboCacheError, printable

_TOKEN = re.compile(r'"|::|[A-Za-z_]\w*|[-+\d.][\w.+-]*|[^\s\w]')
_ESCAPE = re.compile(r"\\.")
# Neither pattern scans a text more than once from a start that does not match: only the last quote can lack an end.
_NO_TOKENS = re.compile(r'"[^"]*"|//[^\n]*|^[ \t]*(?:#|=|IDL:)[^\n]*', re.MULTILINE)
_NUMBERS = {
    "boolean": "bool", "octet": "byte", "char": "char", "wchar": "wchar", "float": "float32", "double": "float64",
    "short": "int16", "long": "int32", "long long": "int64",
    "unsigned short": "uint16", "unsigned long": "uint32", "unsigned long long": "uint64",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_MOST_TOKENS = 200_000


def msg_of_idl(name: str, text: str) -> str:
    """The .msg text of a type and of the types it needs, from IDL; empty if the IDL cannot be read.

    Args:
        name: the type, `package/msg/Name`.
        text: the IDL files of the type and of the types it needs, one after the other.
    """
    try:
        structs = _Reader(text).structs
        first = structs.pop(_short("::".join(name.split("/"))))
    except (KeyError, ValueError, IndexError, RoboCacheError):
        return ""
    return "\n".join([first, *(f"{'=' * 80}\nMSG: {key}\n{body}" for key, body in structs.items())])


def _short(scoped: str) -> str:
    """`geometry_msgs::msg::Pose` -> `geometry_msgs/Pose`."""
    parts = scoped.split("::")
    return f"{parts[0]}/{parts[-1]}"


def _without_blocks(text: str) -> str:
    """The text without /* comments */."""
    first, *rest = text.split("/*")
    return " ".join([first, *(part.partition("*/")[2] for part in rest)])


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_DEFINITION_BYTES:
            raise RoboCacheError(f"definition: {len(text)} characters; at most {MAX_DEFINITION_BYTES} are allowed")
        self._tokens: list[str] = _TOKEN.findall(_NO_TOKENS.sub(" ", _ESCAPE.sub("_", _without_blocks(text))))
        if len(self._tokens) > _MOST_TOKENS:
            raise RoboCacheError("definition: too long")
        self._at = 0
        self._scope: list[str] = []
        self._aliases: dict[str, tuple[str, str]] = {}  # typedefs: type and array
        self.structs: dict[str, str] = {}
        while self._at < len(self._tokens):
            self._declaration()

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise RoboCacheError(f"definition: expected {token}, got {printable(found, 20)}")

    def _declaration(self) -> None:
        self._annotations()
        word = self._next()
        if word == "module":
            self._scope.append(self._next())
            self._expect("{")
        elif word == "}":
            self._scope.pop()
            self._expect(";")
        elif word == "struct":
            name = self._next()
            self._expect("{")
            lines = list(self._members())
            self._expect(";")
            self.structs[_short("::".join([*self._scope, name]))] = "\n".join(lines)
        elif word == "typedef":
            kind, array = self._type()
            name = self._next()
            self._aliases[name] = kind, self._array(array)
            self._expect(";")
        elif word == "enum":
            self._aliases[self._next()] = "uint32", ""
            self._skip_past("}")
            self._expect(";")
        elif word == "const":
            self._skip_past(";")
        else:
            raise RoboCacheError(f"definition: cannot read {printable(word, 20)}")

    def _members(self) -> Iterator[str]:
        while True:
            self._annotations()
            if self._peek() == "}":
                self._at += 1
                return
            kind, array = self._type()
            while True:
                name = self._next()
                yield f"{kind}{self._array(array)} {name}"
                if self._next() == ";":
                    break

    def _type(self) -> tuple[str, str]:
        """The name of a type in .msg text, and the array in the brackets after it."""
        word = self._next()
        if word == "sequence":
            self._expect("<")
            kind, array = self._type()
            bound = f"<={self._next()}" if self._next() == "," else ""
            if bound:
                self._expect(">")
            if array:
                raise RoboCacheError("definition: a sequence of arrays")
            return kind, f"[{bound}]"
        if word in ("string", "wstring"):
            bound = ""
            if self._peek() == "<":
                self._at += 1
                bound = f"<={self._next()}"
                self._expect(">")
            return f"{word}{bound}", ""
        while word in ("unsigned", "long", "unsigned long") and self._peek() in ("short", "long"):
            word = f"{word} {self._next()}"
        if word in _NUMBERS:
            return _NUMBERS[word], ""
        while self._peek() == "::":
            self._at += 1
            word = f"{word}::{self._next()}"
        alias = self._aliases.get(word.rpartition("::")[2])
        return alias or (_short("::".join([*self._scope[:2], word]) if "::" not in word else word), "")

    def _array(self, array: str) -> str:
        """An array combined with the dimensions after its name."""
        count = 1
        while self._peek() == "[":
            self._at += 1
            count *= int(self._next())
            self._expect("]")
            if array.startswith("[") and not array[1:-1].isdigit():
                raise RoboCacheError("definition: an array of sequences")
        inner = int(array[1:-1]) if array[1:-1].isdigit() else 0
        return array if count == 1 else f"[{count * max(inner, 1)}]"

    def _annotations(self) -> None:
        while self._at < len(self._tokens) and self._peek() == "@":
            self._at += 2
            while self._peek() == "::":
                self._at += 2
            if self._peek() == "(":
                self._skip_past(")")

    def _skip_past(self, token: str) -> None:
        while self._next() != token:
            pass
