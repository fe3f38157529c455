"""The plan of an export: an immutable list of recordings, and what decides the bytes of their pieces."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.export.dataset_writer import ExportOptions
from robocache_ros.spec import FusionSpec

_OF_THE_DATASET = ("task", "robot_type")  # options that are in no piece
# Libraries that compute or encode what is in a piece.
_LIBRARIES = ("numpy", "torch", "pyarrow", "av", "pillow")


@dataclass(frozen=True)
class Plan:
    """What an export makes.

    Attributes:
        recordings: in the order that was given, which is that of the episodes; one may be there several times.
        spec: resolved: what the options change in it is changed.
        options: how the recordings become a dataset.
    """

    recordings: tuple[Path, ...]
    spec: FusionSpec
    options: ExportOptions

    @property
    def tasks(self) -> tuple[Path, ...]:
        """Each recording once."""
        return tuple(dict.fromkeys(self.recordings))

    def key(self, recording: Path, files: Sequence[dict[str, Any]]) -> str:
        """The name of a recording's piece: a hash of all that decides its bytes.

        Args:
            recording: its name is in notes, and its metadata.yaml tells how its files are read.
            files: name, size and SHA-256 of its storage files.
        """
        metadata = recording / "metadata.yaml"
        options = {name: value for name, value in asdict(self.options).items() if name not in _OF_THE_DATASET}
        decides = {
            "engine": _engine(),
            "spec": self.spec.to_dict(),
            "options": options,
            "recording": recording.name,
            "files": list(files),
            "metadata": hashlib.sha256(metadata.read_bytes()).hexdigest() if metadata.is_file() else "",
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


@cache
def _engine() -> dict[str, str]:
    """The versions of what makes a piece. The sources count too: a checkout changes between two versions."""
    package = Path(robocache_ros.__file__).parent
    sources = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        sources.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    libraries = {name: _version(name) for name in _LIBRARIES}
    return {
        "robocache_ros": robocache_ros.__version__,
        "sources": sources.hexdigest(),
        "python": sys.version,
    } | libraries


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
