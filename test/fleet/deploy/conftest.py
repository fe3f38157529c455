"""The commands of the files in deploy/, run on this machine: with folders of a test in place of those of the files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.exporter.recordings import find_recordings
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.fleet.bucket.conftest import Contents, contents
from test.fleet.s3_server import Bucket

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SPEC = ROOT / "config" / "panda_lift.yaml"
TASK, BUCKET = "lift the cube", "s3://robot-data"  # of all these files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two short recordings in raw/lift, and the spec robot.yaml."""
    with Bag(ROOT / "test" / "data" / "panda_lift") as whole:
        types = {name: topic.type for name, topic in whole.topics.items()}
        for name, length_ns in (("first", 800_000_000), ("second", 700_000_000)):
            messages = list(whole.messages(None, whole.start_ns, whole.start_ns + length_ns))
            write_bag(tmp_path / "raw" / "lift" / name, types, messages)
    shutil.copy(SPEC, tmp_path / "robot.yaml")
    return tmp_path


@pytest.fixture
def bucket(s3: Bucket, data: Path) -> Bucket:
    """A bucket with the contents of `data`."""
    for file in data.rglob("*"):
        if file.is_file():
            s3.put(str(file.relative_to(data)), file)
    return s3


@pytest.fixture
def undivided(data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Path], Contents]:
    """Exports a folder, which may be relative to `data`, or a URL, in one process."""

    def make(folder: str | Path) -> Contents:
        monkeypatch.chdir(data)
        recordings = find_recordings([folder])
        return contents(export(recordings, load_spec(SPEC), data / "fresh" / "lift", DatasetOptions(task=TASK)).out)

    return make


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command with `robocache` of this checkout, as a container or a cluster would."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "robocache"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m robocache_ros "$@"\n')
    program.chmod(0o755)

    def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        return subprocess.run(
            command, cwd=tmp_path, env=os.environ | path | environment, capture_output=True, text=True, check=False
        )

    return run
