"""The recordings of a dataset against the checksums in its provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robocache_ros.errors import printable
from robocache_ros.export.validate.checksum_list import sha256
from robocache_ros.export.validate.findings import Findings, read_json

PROVENANCE = ("meta/robocache.json", "robocache.json", "*/*/robocache.json")  # of the formats with files for it


def check_recordings(findings: Findings) -> None:
    """Compare the files of the recordings that a dataset was exported from, if they are on this machine."""
    found = [path for pattern in PROVENANCE for path in sorted(findings.dataset.glob(pattern))]
    if not found:
        findings.skip("recordings: the dataset does not name any")
        return
    for path in found:
        name = path.relative_to(findings.dataset).as_posix()
        with findings.reading(name, KeyError, TypeError, AttributeError):
            for recording in read_json(findings.dataset, name)["recordings"]:
                _check(findings, Path(recording["bag"]), recording["files"])


def _check(findings: Findings, bag: Path, files: list[dict[str, Any]]) -> None:
    where = printable(bag)
    if not bag.exists():
        findings.skip(f"recording {where}: is not on this machine")
        return
    for told in files:
        name = Path(told["name"]).name
        path = bag / name if bag.is_dir() else bag
        if not path.is_file():
            findings.add(where, f"{name}: is missing; the dataset was exported from it")
            continue
        with findings.reading(where):
            same = path.stat().st_size == told["size"] and sha256(path) == told["sha256"]
            findings.check(same, where, f"{name}: was changed after the export")
            findings.counted["files of recordings"] += 1
