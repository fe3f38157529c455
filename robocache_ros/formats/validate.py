"""Validate datasets: find the format of a folder, and run its checks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import Findings, file_in, read_json
from robocache_ros.formats.dataset_folder import CHECKSUMS, digests_of, sha256
from robocache_ros.formats.read import MALFORMED
from robocache_ros.formats.registry import Validator, validators
from robocache_ros.storage.paths import as_path
from robocache_ros.untrusted_files import DatasetFile, path_below, read_bytes

PROVENANCE = ("meta/robocache.json", "robocache.json", "*/*/robocache.json")  # of the formats with files for it


def check_recordings(findings: Findings) -> None:
    """Compare the files of the recordings that a dataset was exported from, if they are on this machine."""
    found = [path for pattern in PROVENANCE for path in sorted(findings.dataset.glob(pattern))]
    if not found:
        findings.skip("recordings: the dataset does not name any")
        return
    for path in found:
        name = path.relative_to(findings.dataset).as_posix()
        with findings.reading(name):
            for recording in read_json(findings.dataset, name)["recordings"]:
                _check(findings, Path(recording["bag"]), recording["files"])


def _check(findings: Findings, bag: Path, files: list[dict[str, Any]]) -> None:
    where = printable(bag)
    if not bag.exists():
        findings.skip(f"recording {where}: is not on this machine")
        return
    for stated in files:
        name = Path(stated["name"]).name
        path = bag / name if bag.is_dir() else bag
        if not path.is_file():
            findings.add(where, f"{name}: is missing; the dataset was exported from it")
            continue
        with findings.reading(where):
            same = path.stat().st_size == stated["size"] and sha256(path) == stated["sha256"]
            findings.check(same, where, f"{name}: was changed after the export")
            findings.counted["files of recordings"] += 1


def validate(dataset: str | Path, *, decode: bool = False, recordings: bool = False) -> list[Findings]:
    """Read every file of a dataset and report what is wrong.

    Args:
        dataset: a folder or a file of one of the formats, or a folder with a dataset in each of its subfolders.
        decode: also decode every image.
        recordings: also compare the recordings that the dataset was exported from, if they are on this machine.

    Returns:
        What was found in each dataset.

    Errors:
        RoboCacheError: there is no dataset of a known format.
    """
    path = Path(os.path.abspath(as_path(dataset)))
    where = printable(path)
    if not path.exists():
        raise RoboCacheError(f"{where}: does not exist; give the folder of a dataset")
    known = validators()
    inside = sorted(path.iterdir()) if path.is_dir() else []
    for candidates in ([path], inside):
        found = [(one, validator) for one in candidates for validator in known.values() if validator.recognizes(one)]
        if found:
            known_folders = {one for one, _ in found}
            others = [one for one in candidates if one.is_dir() and one not in known_folders]
            checked = [_validate(one, validator, decode) for one, validator in found]
            for findings in checked if recordings else ():
                check_recordings(findings)
            checked[-1].unchecked += [f"{printable(one.name)}: not a dataset of a known format" for one in others]
            return checked
    names = printable(", ".join(known), 100)
    raise RoboCacheError(f"{where}: not a dataset that can be validated; known are {names}")


def _validate(dataset: Path, validator: Validator, decode: bool) -> Findings:
    findings = Findings(dataset, validator.title, decode=decode)
    try:
        validator.check(findings)
    except RoboCacheError as error:
        where, _, what = str(error).partition(": ")
        findings.add(where, what)
        findings.skip("everything else: the error above stops the validation")
    except MALFORMED as error:
        # A value of a type that no format has, where the checks do not expect it.
        findings.add(dataset.name, f"cannot be read further ({type(error).__name__}: {error})")
        findings.skip("everything else: the error above stops the validation")
    if dataset.is_dir():
        check_checksums(findings)
    return findings


_MAX_BYTES = 256 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def check_checksums(findings: Findings) -> None:
    """Compare the files with SHA256SUMS, if the dataset has it."""
    dataset = findings.dataset
    if not (dataset / CHECKSUMS).exists():
        findings.skip(f"checksums of the files: there is no {CHECKSUMS}")
        return
    with findings.reading(CHECKSUMS):
        listed = _read(file_in(dataset, CHECKSUMS))
        present = [name for name in listed if path_below(dataset, name).exists()]
        for name in sorted(set(listed) - set(present)):
            findings.add(name, f"is missing; it is in {CHECKSUMS}")
        present = [name for name in present if _is_usable(findings, name)]
        for name, digest in digests_of(dataset, present).items():
            findings.check(
                digest == listed[name], name, f"its checksum is not that in {CHECKSUMS}: the file was changed"
            )
        findings.counted["checksums"] += len(present)


def _is_usable(findings: Findings, name: str) -> bool:
    with findings.reading(name):
        return file_in(findings.dataset, name).is_file()
    return False


def _read(path: DatasetFile) -> dict[str, str]:
    if path.stat().st_size > _MAX_BYTES:
        raise RoboCacheError(f"{CHECKSUMS}: is larger than {_MAX_BYTES >> 20} MiB")
    listed: dict[str, str] = {}
    for number, line in enumerate(read_bytes(path).decode().splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None or ".." in Path(match[2]).parts or Path(match[2]).is_absolute():
            raise RoboCacheError(f"{CHECKSUMS}: line {number} is not a checksum and the name of a file in the dataset")
        listed[match[2]] = match[1]
    return listed
