"""The mistakes found in a spec: where each is, what is wrong and what to do, a line each and all at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from robocache_ros.errors import SeveralErrors, printable

KeyPath = tuple[object, ...]  # keys and indexes from the root of the spec: ("streams", "front", "image", "size", 0)

LINE_CHARACTERS = 199
LINES = 20
_SUGGEST_FROM = 64  # characters up to which a similar word is searched for; the search is quadratic


@dataclass(frozen=True)
class Problem:
    """One mistake: `text` reads `<what is wrong>; <what to do>`."""

    path: KeyPath
    text: str

    def line(self, place: str = "") -> str:
        """`<place>: <path>: <text>` in at most LINE_CHARACTERS; of long text the middle is left out."""
        return printable(": ".join(filter(None, (place, show_path(self.path), self.text))), LINE_CHARACTERS)


class SpecError(SeveralErrors):
    """The mistakes of a spec. The message has a line for each; `problems` has them one by one."""

    def __init__(self, problems: Iterable[Problem], place: Callable[[KeyPath], str] = lambda _path: "") -> None:
        self.problems = tuple(problems)
        lines = [problem.line(place(problem.path)) for problem in self.problems[:LINES]]
        if len(self.problems) > LINES:
            more = Problem((), f"{len(self.problems) - LINES} more errors; correct the ones above first")
            lines.append(more.line(place(()) or "spec"))
        super().__init__("\n".join(lines))


def refusal(key: str, text: str) -> SpecError:
    """The error of a rule between several keys, reported at one of them; a path such as `voxels.features` is split."""
    return SpecError([Problem(tuple(key.split(".")), text)])


def below(path: KeyPath, error: SpecError) -> list[Problem]:
    """The problems of a nested mapping, with the path of that mapping before each."""
    return [Problem((*path, *problem.path), problem.text) for problem in error.problems]


def show_path(path: KeyPath) -> str:
    """`("streams", "front", "size", 0)` as `streams.front.size[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part, 40)}" for part in path]
    return printable("".join(parts).removeprefix("."), 80) if parts else ""


def show_value(raw: Any) -> str:
    """A refused value, short whatever it is."""
    if raw is None:
        return "nothing"
    if isinstance(raw, Mapping):
        return "a mapping"
    if isinstance(raw, (list, tuple, set)):
        return f"a list of {len(raw)}"
    if isinstance(raw, int) and raw.bit_length() > 64:
        return "an integer of more than 64 bits"
    if isinstance(raw, str) and len(raw) > 100:  # before repr, which takes as long as the text is
        raw = f"{raw[:50]}…{raw[-50:]}"
    return printable(repr(raw), 36)


def suggestion(given: object, known: Iterable[str]) -> str:
    """`did you mean 'align'?` for a word that is close to one of the known ones, else empty."""
    if not isinstance(given, str) or len(given) > _SUGGEST_FROM:
        return ""
    close = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
