"""Copies of exported datasets, to be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import ExportResult
from robocache_ros.formats.check import Findings
from robocache_ros.formats.dataset_folder import CHECKSUMS
from robocache_ros.formats.validate import validate


@pytest.fixture
def copy(made: Callable[[str], ExportResult], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a dataset, by how its images are stored."""
    return lambda media: without_checksums(made(media).out, tmp_path / media)


def without_checksums(dataset: Path, copy: Path) -> Path:
    """A copy of a dataset without its checksums, which would show every change of a file."""
    shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns(CHECKSUMS))
    return copy


def found(dataset: Path, *, decode: bool = False) -> list[str]:
    """What the validation of one dataset finds."""
    findings: list[Findings] = validate(dataset, decode=decode)
    assert len(findings) == 1
    return [str(finding) for finding in findings[0].found]
