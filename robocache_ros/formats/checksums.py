"""SHA256SUMS of a dataset, in the format of `sha256sum`, which also checks it: `sha256sum --check SHA256SUMS`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.check import Findings, file_in
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import DatasetFile, given_file, open_file, path_below, read_bytes

FILE = "SHA256SUMS"
THREADS = 2
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_BLOCK_BYTES = 1 << 20
_MAX_BYTES = 256 << 20


def files_of(dataset: Path) -> list[str]:
    """Return the names of all files of a dataset, relative to it, in the order of SHA256SUMS and without it."""
    files = sorted(file.relative_to(dataset).as_posix() for file in dataset.rglob("*") if file.is_file())
    return [name for name in files if name != FILE]


def write_checksums(dataset: Path, digests: Mapping[str, str]) -> None:
    """Write SHA256SUMS of files of a dataset, given their SHA-256 by their names relative to it, into it."""
    lines = [f"{digests[name]}  {name}\n" for name in sorted(digests)]
    (dataset / FILE).write_text("".join(lines), encoding="utf-8")


def update_checksum(dataset: Path, name: str) -> None:
    """Replace the checksum of a file of a dataset that has SHA256SUMS and is changed on purpose."""
    path = dataset / FILE
    if path.is_file():
        lines = [line for line in read_bytes(given_file(path)).decode().splitlines() if line[66:] != name]
        lines.append(f"{digests_of(dataset, [name])[name]}  {name}")
        path.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line[66:])), encoding="utf-8")


def check_checksums(findings: Findings) -> None:
    """Compare the files with SHA256SUMS, if the dataset has it."""
    dataset = findings.dataset
    if not (dataset / FILE).exists():
        findings.skip(f"checksums of the files: there is no {FILE}")
        return
    with findings.reading(FILE):
        listed = _read(file_in(dataset, FILE))
        present = [name for name in listed if path_below(dataset, name).exists()]
        for name in sorted(set(listed) - set(present)):
            findings.add(name, f"is missing; it is in {FILE}")
        present = [name for name in present if _is_usable(findings, name)]
        for name, digest in digests_of(dataset, present).items():
            findings.check(digest == listed[name], name, f"its checksum is not that in {FILE}: the file was changed")
        findings.counted["checksums"] += len(present)


def _is_usable(findings: Findings, name: str) -> bool:
    with findings.reading(name):
        return file_in(findings.dataset, name).is_file()
    return False


def _read(path: DatasetFile) -> dict[str, str]:
    """Return the checksum of each file."""
    if path.stat().st_size > _MAX_BYTES:
        raise RoboCacheError(f"{FILE}: is larger than {_MAX_BYTES >> 20} MiB")
    listed: dict[str, str] = {}
    for number, line in enumerate(read_bytes(path).decode().splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None or ".." in Path(match[2]).parts or Path(match[2]).is_absolute():
            raise RoboCacheError(f"{FILE}: line {number} is not a checksum and the name of a file in the dataset")
        listed[match[2]] = match[1]
    return listed


def digests_of(dataset: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a dataset, in hexadecimal digits. Hard links of one file are read once."""
    identities = [(dataset / name).stat() for name in names]
    distinct = {(found.st_dev, found.st_ino): name for name, found in zip(names, identities, strict=True)}
    with ThreadPoolExecutor(THREADS) as pool:
        digests = dict(zip(distinct, pool.map(sha256, [dataset / name for name in distinct.values()]), strict=True))
    return {name: digests[found.st_dev, found.st_ino] for name, found in zip(names, identities, strict=True)}


def sha256(path: AnyPath) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(given_file(path)) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
