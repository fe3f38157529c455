"""The errors in a spec, reported together. Each line gives the position, what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from robocache_ros.errors import SeveralErrors, printable

KeyPath = tuple[object, ...]  # keys and indexes from the root of the spec: ("streams", "front", "image", "size", 0)

LINE_CHARACTERS = 199
LINES = 20
_SUGGEST_FROM = 64  # maximum number of characters for the similarity search, which is quadratic


@dataclass(frozen=True)
class Problem:
    """One error: `text` has the form `<what is wrong>; <what to do>`."""

    path: KeyPath
    text: str

    def line(self, place: str = "") -> str:
        """`<place>: <path>: <text>` in at most LINE_CHARACTERS; the middle of long text is omitted."""
        return printable(": ".join(filter(None, (place, show_path(self.path), self.text))), LINE_CHARACTERS)


class SpecError(SeveralErrors):
    """The errors in a spec. The message has one line per error; `problems` is the list of errors."""

    def __init__(self, problems: Iterable[Problem], place: Callable[[KeyPath], str] = lambda _path: "") -> None:
        self.problems = tuple(problems)
        lines = [problem.line(place(problem.path)) for problem in self.problems[:LINES]]
        if len(self.problems) > LINES:
            more = Problem((), f"{len(self.problems) - LINES} more errors; correct the ones above first")
            lines.append(more.line(place(()) or "spec"))
        super().__init__("\n".join(lines))


def refusal(key: str, text: str) -> SpecError:
    """Return the error of a rule for several keys, reported at `key`. Paths such as `voxels.features` are split."""
    return SpecError([Problem(tuple(key.split(".")), text)])


def below(path: KeyPath, error: SpecError) -> list[Problem]:
    """Return the problems of a nested mapping, each prefixed with the path of that mapping."""
    return [Problem((*path, *problem.path), problem.text) for problem in error.problems]


def show_path(path: KeyPath) -> str:
    """Format `("streams", "front", "size", 0)` as `streams.front.size[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part, 40)}" for part in path]
    return printable("".join(parts).removeprefix("."), 80) if parts else ""


def show_value(raw: Any) -> str:
    """Format a refused value with bounded length."""
    if raw is None:
        return "nothing"
    if isinstance(raw, Mapping):
        return "a mapping"
    if isinstance(raw, (list, tuple, set)):
        return f"a list of {len(raw)}"
    if isinstance(raw, int) and raw.bit_length() > 64:
        return "an integer of more than 64 bits"
    if isinstance(raw, str) and len(raw) > 100:  # before repr, whose time grows with the length of the text
        raw = f"{raw[:50]}…{raw[-50:]}"
    return printable(repr(raw), 36)


def suggestion(given: object, known: Iterable[str]) -> str:
    """Return `did you mean 'align'?` for a word similar to a known one, else an empty string."""
    if not isinstance(given, str) or len(given) > _SUGGEST_FROM:
        return ""
    close = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
