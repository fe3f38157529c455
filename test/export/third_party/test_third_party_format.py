"""A dataset format of another package, found through its entry point."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.registry import known_formats
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.readers.engine_rows import engine_rows

ROOT = Path(__file__).parents[3]
ENTRY_POINT = "[robocache_ros.formats]\ncsv = csv_format:CSV\n"
METADATA = "Metadata-Version: 2.1\nName: csv-format\nVersion: 1.0\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package as pip installs it: the module, and what it declares."""
    folder = tmp_path / "site"
    declared = folder / "csv_format-1.0.dist-info"
    declared.mkdir(parents=True)
    (declared / "METADATA").write_text(METADATA)
    (declared / "entry_points.txt").write_text(ENTRY_POINT)
    shutil.copy(Path(__file__).with_name("csv_format.py"), folder)
    return folder


def robocache(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robocache_ros", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return forked.run(command, preload=forked.EXPORT, capture_output=True, text=True, env=environment, cwd=ROOT)


def test_the_command_line_writes_it(site: Path, bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    config = ROOT / "config" / "panda_lift.yaml"
    out = tmp_path / "out"
    done = robocache(site, "export", *bags, "--spec", config, "--format", "csv", "--out", out, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader((out / "episodes" / "episode_000000.csv").read_text().splitlines()))
    engine = engine_rows(bags[0], spec)
    stored = np.array([row[1:] for row in rows[1:]], np.float64).astype(np.float32)
    places = np.searchsorted(engine["tick_ns"], [int(row[0]) for row in rows[1:]])
    streams = [s.name for role in ("observation", "action") for s in spec.vectors if s.role == role]
    assert np.array_equal(stored, np.concatenate([engine[name][places] for name in streams], axis=1))


def test_its_own_refusals_come_before_a_recording_is_read(
    site: Path, tmp_path: Path, spec: FusionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(site)
    assert known_formats()[-1] == "csv"
    cameras = replace(spec, actions="none", streams=tuple(stream for stream in spec.streams if stream.kind == "image"))
    with pytest.raises(RoboCacheError, match="csv stores vectors"):
        export([tmp_path / "no_recording"], cameras, tmp_path / "out", DatasetOptions(formats=("csv",)))


def test_without_the_package_the_error_lists_the_formats(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match=r"'csv' is not one of lerobot, .*diffusion_policy"):
        export(bags, spec, tmp_path / "out", DatasetOptions(formats=("csv",)))
