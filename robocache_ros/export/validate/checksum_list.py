"""SHA256SUMS of a dataset, in the format of `sha256sum`, which also checks it: `sha256sum --check SHA256SUMS`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.validate.findings import Findings

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_BLOCK_BYTES = 1 << 20
_MAX_BYTES = 256 << 20


def files_of(dataset: Path) -> list[str]:
    """Return the files of a dataset except hidden ones and the list itself, relative to it, in sorted order."""
    names = (file.relative_to(dataset).as_posix() for file in dataset.rglob("*") if file.is_file())
    return sorted(name for name in names if name != FILE and not any(p.startswith(".") for p in name.split("/")))


def write_checksums(dataset: Path) -> None:
    """Write SHA256SUMS of all files of a dataset into it."""
    lines = [f"{sha256(dataset / name)}  {name}\n" for name in files_of(dataset)]
    (dataset / FILE).write_text("".join(lines), encoding="utf-8")


def check_checksums(findings: Findings) -> None:
    """Compare every file with SHA256SUMS, if the dataset has it."""
    path = findings.dataset / FILE
    if not path.is_file():
        findings.skip(f"checksums of the files: there is no {FILE}")
        return
    with findings.reading(FILE, ValueError):
        if path.stat().st_size > _MAX_BYTES:
            raise RoboCacheError(f"{FILE}: is larger than {_MAX_BYTES >> 20} MiB")
        listed: dict[str, str] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if (match := _LINE.fullmatch(line)) is None:
                raise RoboCacheError(f"{FILE}: line {number} is not a checksum and a name")
            listed[match[2]] = match[1]
        present = set(files_of(findings.dataset))
        for name in sorted(set(listed) - present):
            findings.add(name, f"is missing; it is in {FILE}")
        for name in sorted(present - set(listed)):
            findings.add(name, f"is not in {FILE}")
        for name in sorted(present & set(listed)):
            with findings.reading(name):
                same = sha256(findings.dataset / name) == listed[name]
                findings.check(same, name, f"its checksum is not that in {FILE}: the file was changed")
                findings.counted["checksums"] += 1


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
