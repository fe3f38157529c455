"""One export of each kind, made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter import preview
from robocache_ros.exporter.job import ExportRequest, ExportResult, export, outputs_of, run_export
from robocache_ros.exporter.preview import DryRun
from robocache_ros.exporter.progress import Advanced, Event, Progress
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.shared import once

ROOT = Path(__file__).parents[2]
FIRST_S, CUT_S = 3.5, 1.5  # the cut around the 150 ms gap at 4.05 s

# `robocache` without its lines of progress, which an export prints if it takes half a minute, as on a busy machine.
ROBOCACHE = (
    sys.executable, "-c", """if True:
        import math, sys
        from robocache_ros.cli import progress as progress_display
        from robocache_ros.programs import robocache
        progress_display.EVERY_S = math.inf
        sys.exit(robocache())""",
)  # fmt: skip


@pytest.fixture(scope="session")
def spec() -> FusionSpec:
    return load_spec(ROOT / "config" / "panda_lift.yaml")


@pytest.fixture(scope="session")
def bags(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short recordings: a cut of panda_lift with its gap in it, and a shorter one."""

    def make(folder: Path) -> list[Path]:
        with Bag(ROOT / "test" / "data" / "panda_lift") as complete:
            types = {name: topic.type for name, topic in complete.topics.items()}
            start = complete.start_ns + int(FIRST_S * 1e9)
            return [
                write_bag(folder / name, types, list(complete.messages(None, start, start + int(length * 1e9))))
                for name, length in (("lift", CUT_S), ("again", 1.3))
            ]

    return once(tmp_path_factory, "panda_cuts", make)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, bags: list[Path], spec: FusionSpec) -> Callable[[str], ExportResult]:
    """The two recordings as a dataset, by how its images are stored."""

    def make(folder: Path) -> ExportResult:
        options = DatasetOptions(task="lift the cube", robot_type="panda", media=folder.name.rpartition("_")[2])
        return export(bags, spec, folder / "out", options)

    return lambda media: once(tmp_path_factory, f"panda_cuts_as_{media}", make)


@pytest.fixture
def small_disk() -> Callable[..., tuple[int, str, str]]:
    """Runs a command, and then a line of shell, where a folder is a small file system; exit status, stdout, stderr."""
    space = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"])]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace, which this system does not allow")

    def run(folder: Path, size: str, command: list[str], after: str = "true") -> tuple[int, str, str]:
        line = f'mount -t tmpfs -o size={size} none "$0" || exit 99; "$@"; status=$?; {after}; exit $status'
        shell = [*space, "sh", "-c", line, str(folder), *command]
        done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=ROOT)
        return done.returncode, done.stdout, done.stderr

    return run


def export_shard(bags: Any, outputs: Any, out: str | Path, shard: str, **given: Any) -> ShardResult:
    """Convert a shard, such as `0/3`, in this process."""
    progress = given.pop("progress", None)
    request = ExportRequest.of(bags, outputs, out, {"jobs": 1, "shard": shard, **given})
    result = run_export(request, progress=progress)
    assert isinstance(result, ShardResult)
    return result


def dry_run(
    bags: Any, spec: FusionSpec, out: str | Path, options: DatasetOptions | None = None, **given: Any
) -> DryRun:
    """What an export of one dataset would make."""
    (run,) = preview.dry_run(ExportRequest.of(bags, outputs_of([("", spec)], (), options), out, given))
    return run


def by_share(tell: Callable[[str, float], object]) -> Progress:
    """Progress that receives the name of a recording and its completed share."""

    def progress(event: Event) -> None:
        if isinstance(event, Advanced):
            tell(event.recording.path.name, event.share)

    return progress


def named(seen: list[str]) -> Progress:
    """Progress that notes the name of each recording that advances."""
    return by_share(lambda name, _share: seen.append(name))
