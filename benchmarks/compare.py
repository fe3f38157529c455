"""Compares two results of a benchmark, figure by figure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError, printable

NOISE = 0.05  # relative difference of two runs of the same code that is usual on a quiet machine
MAX_BYTES = 64 << 20
SHOWN = 5  # names of figures that are not compared
# Figures of which more is better; of all others, which are times, sizes and losses, less is better.
MORE_IS_BETTER = re.compile(
    r"per_s\b|/s\b|rates?\b|mb_s|real_time|psnr|times_(forge|rosbags|faster)|(peer|nested loop) times|speedup"
    r"|utili[sz]ation|received|share|of copy rate|/ first"
)
# What describes a run and does not measure it: whole tables, and figures in them.
DESCRIPTIONS = (
    "machine",
    "options",
    "curves",
    "torch",
    "rounds",
    "size",
    "data_bytes",
    "took_s",
    "parts",
    "budget_s",
    "seconds",
)
SIZES = re.compile(r".*\b(size|bytes|MB|counts?|rows|frames|points|width|goal|floor|seed|batch|processes)|.*wanted")
IDENTITY = ("part", "mode", "what", "policy", "device", "operation", "size", "processes")  # which row of a table it is
FIGURES = ("value", "measured")  # of rows that name its unit
VARYING = ("date", "load", "load_before")  # what differs between any two runs on one machine
TRACE = "_trace"  # of the operations of a profile: not figures


class Difference(NamedTuple):
    """A figure in both results."""

    name: str
    old: float
    new: float
    more_is_better: bool

    @property
    def change(self) -> float:
        """The relative change for the better: 0.1 is a tenth better, -0.1 a tenth worse."""
        ratio = self.new / self.old if self.more_is_better else self.old / self.new
        return ratio - 1


class Comparison(NamedTuple):
    """Figures of two results: the better and the worse ones, the largest change first, and those without a ratio."""

    better: list[Difference]
    worse: list[Difference]
    missing: list[str]  # only the old results have them
    zero: list[str]  # in one of the results, or below
    machines: list[str]  # what is known of the machines and versions, and differs


def compare(old: Path, new: Path, noise: float = NOISE) -> Comparison:
    """Compare the figures of two results files, or of two folders of results.

    Rows of tables are paired by their texts, so that an added row moves no other.

    Args:
        old: a JSON file that a benchmark wrote, or a folder with such files.
        new: the same of another run; files are paired by their names, in whatever folders they are.
        noise: relative difference that means nothing.

    Errors:
        RoboCacheError: a file cannot be read or has no figure, the two have none in common, or the noise is not from 0
            to 1.
    """
    if not 0 <= noise <= 1:
        raise RoboCacheError(f"noise: {noise:g} is not in 0..1; give a relative difference, such as {NOISE:g}")
    olds, news = _results(old), _results(new)
    before, after = _figures(olds), _figures(news)
    for path, found_in in ((old, before), (new, after)):
        if not found_in:
            raise RoboCacheError(f"{printable(path, 60)}: has no figures; give a results file, or a folder of them")
    both = [name for name in before if name in after]
    common = [name for name in both if before[name] > 0 and after[name] > 0]
    if not common:
        raise RoboCacheError(
            f"{printable(new, 60)}: has no figure that {printable(old, 60)} has; compare one benchmark"
        )
    found = [Difference(name, before[name], after[name], bool(MORE_IS_BETTER.search(name))) for name in common]
    better = [each for each in found if each.change > noise]
    worse = [each for each in found if 1 / (1 + each.change) - 1 > noise]
    return Comparison(
        sorted(better, key=lambda each: -each.change),
        sorted(worse, key=lambda each: each.change),
        [name for name in before if name not in after],
        [name for name in both if name not in common and before[name] != after[name]],
        _machines(olds, news),
    )


def figures(path: Path) -> dict[str, float]:
    """Return the figures of a results file, or of the results files in a folder, by their names."""
    return _figures(_results(path))


def _results(path: Path) -> dict[str, Any]:
    """The contents of a file as "", or of those in a folder by their names; with their folders if two are alike."""
    if not path.is_dir():
        return {"": _loaded(path)}
    files = [file for file in sorted(path.rglob("*.json")) if not file.stem.endswith(TRACE)]
    count = Counter(file.stem for file in files)
    return {
        file.stem if count[file.stem] == 1 else file.relative_to(path).with_suffix("").as_posix(): _loaded(file)
        for file in files
    }


def _figures(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{file}: {name}" if file else name: value
        for file, content in results.items()
        for name, value in _numbers(content, ())
    }


def _machines(olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[str]:
    """What two results state of their machines and versions, and does not agree."""
    found = []
    for file in olds:
        old, new = (each.get("machine") if isinstance(each, Mapping) else None for each in (olds[file], news.get(file)))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = [key for key in old if key in new and key not in VARYING and isinstance(old[key], str | int)]
            found += [f"{key} {old[key]} -> {new[key]}" for key in keys if old[key] != new[key]]
    return [printable(text, 80) for text in dict.fromkeys(found)]


def as_text(found: Comparison, noise: float) -> str:
    """Return the differences as text, worse figures first, and what could not be compared."""
    lines = [f"another machine or version: {'; '.join(found.machines)}"] if found.machines else []
    lines += [f"{'change':>8}  {'old':>12}  {'new':>12}  figure"] if found.better or found.worse else []
    differences = (*found.worse, *found.better)
    lines += [f"{each.change:>+8.1%}  {each.old:>12.5g}  {each.new:>12.5g}  {each.name}" for each in differences]
    lines += _listed("not in the new results", found.missing) + _listed("from or to 0, so without a ratio", found.zero)
    count = f"{len(found.worse)} figures are worse and {len(found.better)} better by more than {noise:.0%}"
    return "\n".join([*lines, count])


def _listed(why: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{why}: {'; '.join(names[:SHOWN])}{more}"] if names else []


def _loaded(file: Path) -> Any:
    if not file.exists():
        raise RoboCacheError(f"{printable(file, 60)}: does not exist; give a results file, or a folder of them")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise RoboCacheError(f"{printable(file, 60)}: is larger than {MAX_BYTES >> 20} MiB; give a results file")
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RoboCacheError(f"{printable(file, 60)}: {printable(error, 80)}; give a results file") from None


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        unit = value.get("unit")
        for key, each in value.items():
            if path or key not in DESCRIPTIONS:
                name = unit if key in FIGURES and isinstance(unit, str) else str(key)
                yield from _numbers(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, (*path, _label(each, index)))
    elif isinstance(value, int | float) and not isinstance(value, bool) and not SIZES.fullmatch(path[-1]):
        with suppress(OverflowError):  # an integer of hundreds of digits
            if math.isfinite(value):
                yield " ".join(path), float(value)


def _label(row: Any, index: int) -> str:
    """Name a row of a table by what it is about, else by its first text."""
    if not isinstance(row, Mapping):
        return str(index)
    about = [str(row[key]) for key in IDENTITY if key in row]
    texts = [each for each in row.values() if isinstance(each, str)]
    return ", ".join(about) or (texts[0] if texts else str(index))
