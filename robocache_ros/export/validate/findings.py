"""What a validation finds, and what it could not check."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.untrusted_files import DatasetError, DatasetFile, file_below, read_bytes

MAX_FINDINGS = 500  # further findings are counted
JSON_BYTES = 512 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    where: str  # a file of the dataset, and the part of it
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Findings:
    """Collects what a validator finds in one dataset.

    Attributes:
        dataset: its folder, or its file.
        title: the format.
        decode: whether to decode every image, which takes as long as reading the dataset once.
        found: what is wrong; at most MAX_FINDINGS.
        unchecked: what could not be checked, with the reason.
        counted: what was checked, as numbers of things.
    """

    dataset: Path
    title: str
    decode: bool = False
    found: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    more: int = 0  # findings beyond MAX_FINDINGS

    def add(self, where: str, what: str) -> None:
        """Report something that is wrong."""
        if len(self.found) < MAX_FINDINGS:
            self.found.append(Finding(printable(where, 120), printable(what, 160)))
        else:
            self.more += 1

    def skip(self, what: str) -> None:
        """Report something that cannot be checked."""
        text = printable(what, 180)
        if text not in self.unchecked:
            self.unchecked.append(text)

    def check(self, correct: bool, where: str, what: str) -> bool:
        """Report `what` unless `correct`; return `correct`."""
        if not correct:
            self.add(where, what)
        return correct

    @contextmanager
    def reading(self, where: str, *errors: type[Exception]) -> Iterator[None]:
        """Turn an error of reading a file into a finding."""
        expected: tuple[type[Exception], ...] = (OSError, RoboCacheError, *errors)
        try:
            yield
        except expected as error:
            text = str(error).removeprefix(f"{where}: ")
            self.add(where, text if isinstance(error, RoboCacheError) else f"cannot be read ({printable(error, 100)})")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "dataset": str(self.dataset),
            "format": self.title,
            "findings": [{"where": finding.where, "what": finding.what} for finding in self.found],
            "more_findings": self.more,
            "not_checked": self.unchecked,
            "checked": dict(self.counted),
        }


def file_in(dataset: Path, name: str | Path) -> DatasetFile:
    """Return the path of a file that the dataset names; see `file_below`.

    Args:
        dataset: its folder; or its file, which has no other name than its own.
        name: of the file.

    Errors:
        RoboCacheError: the file is missing, not in the dataset, or not a regular file.
    """
    where = printable(name, 120)
    try:
        return file_below(dataset, name)
    except DatasetError as error:
        text = str(error).partition(": ")[2]
        if text.startswith("not there"):
            text = "is missing"
        elif text.startswith("not in the folder"):
            text = "is outside the dataset; correct the path"
        raise RoboCacheError(f"{where}: {text}") from None


def files_in(dataset: Path, pattern: str) -> list[str]:
    """Return the names of the files of a dataset that match a pattern, sorted, for `file_in`."""
    return [path.relative_to(dataset).as_posix() for path in sorted(dataset.glob(pattern))]


def read_json(dataset: Path, name: str) -> Any:
    """Return the value of a JSON file.

    Errors:
        RoboCacheError: it is missing, too large or not JSON.
    """
    path = file_in(dataset, name)
    if path.stat().st_size > JSON_BYTES:
        raise RoboCacheError(f"{name}: is larger than {JSON_BYTES >> 20} MiB")
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise RoboCacheError(f"{name}: is not JSON ({printable(error)})") from None


def read_lines(dataset: Path, name: str) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line.

    Errors:
        RoboCacheError: it is missing, too large, or a line is not an object.
    """
    path = file_in(dataset, name)
    if path.stat().st_size > JSON_BYTES:
        raise RoboCacheError(f"{name}: is larger than {JSON_BYTES >> 20} MiB")
    values = []
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RoboCacheError(f"{name}: line {number} is not JSON ({printable(error)})") from None
        if not isinstance(value, dict):
            raise RoboCacheError(f"{name}: line {number} is not an object")
        values.append(value)
    return values
