"""An export that is stopped at any moment is continued by the next one, to the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.pieces.conftest import Contents, contents
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

ROOT = Path(__file__).parents[3]
SPEC = ROOT / "config" / "panda_lift.yaml"
RUN = """
import json, os, signal, sys
from multiprocessing import active_children
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.exporter.job import export
from robocache_ros.exporter.progress import Advanced
from robocache_ros.formats.video import JoinedVideo
from robocache_ros.spec import load_spec

KILL = signal.SIGKILL
arguments = json.loads(sys.argv[1])
calls = []
def progress(event):
    if not isinstance(event, Advanced):
        return
    share = event.share
    calls.append(event.recording.path.name)
    {at_progress}
{prepare}
if __name__ == "__main__":
    export(
        arguments["bags"], load_spec(arguments["spec"]), arguments["out"], DatasetOptions(media=arguments["media"]),
        jobs=arguments["jobs"], progress=progress,
    )
"""


def started(
    bags: list[Path], out: Path, media: str, jobs: int, at_progress: str = "pass", prepare: str = ""
) -> subprocess.Popen[str]:
    """An export in a process of its own, and in a group of its own."""
    arguments = {"bags": list(map(str, bags)), "spec": str(SPEC), "out": str(out), "media": media, "jobs": jobs}
    code = RUN.format(at_progress=at_progress, prepare=prepare)
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    return forked.Popen(
        command,
        preload=forked.EXPORT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("media", ["none", pytest.param("video", marks=pytest.mark.slow)])
def test_an_export_killed_half_way_is_continued_to_the_same_bytes(
    recordings: list[Path],
    spec: FusionSpec,
    undisturbed: Callable[[str], Contents],
    tmp_path: Path,
    media: str,
) -> None:
    out = tmp_path / "set"
    # Of 14 calls or more.
    with started(recordings, out, media, 2, "if len(calls) == 8: os.kill(os.getpid(), KILL)") as killed:
        _, errors = killed.communicate(timeout=120)  # which ends when the processes of the group have closed stderr
    assert killed.returncode == -signal.SIGKILL, errors
    assert not (out / "meta").exists()
    kept = piece_store(out).count()

    result = export(recordings, spec, out, DatasetOptions(media=media))

    assert contents(out) == undisturbed(media)
    reused = [note for note in result.notes if "converted by an earlier export" in note]
    assert reused == ([f"{kept} of 4 recordings were converted by an earlier export and reused"] if kept else [])


@pytest.mark.slow
def test_an_export_killed_at_twenty_moments_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    bags = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.6 + 0.1 * seed) for seed in range(6)]
    spec = sensor_spec()
    (tmp_path / "spec.yaml").write_text(json.dumps(spec.to_dict()))
    random_ = random.Random(0)
    shares = [(number + random_.random()) / 20 for number in range(20)]  # of an export, over its whole length
    plan = {str(tmp_path / f"set_{number}"): shares[number::4] for number in range(4)}
    reported = {"bags": list(map(str, bags)), "spec": str(tmp_path / "spec.yaml"), "media": "video", "jobs": 2}

    program = Path(__file__).with_name("killed_exports.py")
    command = [sys.executable, str(program), json.dumps({**reported, "shares": plan})]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})

    results = json.loads(done.stdout.splitlines()[-1])
    killed = [each for result in results.values() for each in result["killed"]]
    assert [each["status"] for each in killed] == [-signal.SIGKILL] * 20  # each one before the end
    pieces = {each["pieces"] for each in killed}
    assert pieces >= {0, 6}  # some while they convert, some while they merge
    assert len(pieces) >= 4
    expected = contents(export(bags, spec, tmp_path / "undisturbed" / "set", report=False).out)
    for out, result in results.items():
        assert result["status"] == 0
        assert not result["error"] or "exists" in result["error"]  # killed while it moved the complete dataset
        assert contents(Path(out)) == expected


def test_an_export_killed_while_it_merges_keeps_every_piece(
    recordings: list[Path], spec: FusionSpec, undisturbed: Callable[[str], Contents], tmp_path: Path
) -> None:
    out = tmp_path / "set"
    prepare = "JoinedVideo.append = lambda *_: os.kill(os.getpid(), KILL)"
    with started(recordings, out, "video", 1, prepare=prepare) as killed:
        killed.communicate(timeout=120)
    assert piece_store(out).count() == 4

    result = export(recordings, spec, out, DatasetOptions(media="video"))

    assert result.notes[0] == "4 of 4 recordings were converted by an earlier export and reused"
    assert contents(out) == undisturbed("video")


def test_a_process_that_is_killed_is_one_line_and_the_pieces_stay(
    recordings: list[Path], spec: FusionSpec, undisturbed: Callable[[str], Contents], tmp_path: Path
) -> None:
    out = tmp_path / "set"
    at_progress = "if share == 1 and calls: [os.kill(child.pid, KILL) for child in active_children()]"
    with started(recordings, out, "none", 2, at_progress) as failed:
        _, errors = failed.communicate(timeout=120)
    last = errors.splitlines()[-1]
    assert "its process was killed, probably out of memory; run the same command again with fewer --jobs" in last
    export(recordings, spec, out, DatasetOptions(media="none"))
    assert contents(out) == undisturbed("none")


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, 2), pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_the_pieces_and_says_how_to_go_on(
    recordings: list[Path], spec: FusionSpec, undisturbed: Callable[[str], Contents], tmp_path: Path, number: int,
    jobs: int,
) -> None:  # fmt: skip
    out = tmp_path / "set"
    program = [sys.executable, str(Path(__file__).with_name("interrupted_export.py")), "Converted", str(int(number))]
    command = [*program, "export", *map(str, recordings), "--spec", str(SPEC), "--out", str(out)]
    done = forked.run(
        [*command, "--media", "none", "--jobs", str(jobs)],
        preload=forked.EXPORT,
        capture_output=True,
        cwd=ROOT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    errors = done.stderr
    assert done.returncode == 128 + number
    kept = piece_store(out).count()
    assert kept
    assert f"{kept} converted recording{'s are' if kept > 1 else ' is'} kept" in errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert [entry.name for entry in out.iterdir()] == [OWN_PIECES]
    assert len(list((out / OWN_PIECES).iterdir())) == kept

    export(recordings, spec, out, DatasetOptions(media="none"))

    assert contents(out) == undisturbed("none")


def test_a_signal_before_the_first_piece_leaves_nothing(recordings: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "set"
    with started(recordings, out, "none", 2, "os.kill(os.getpid(), signal.SIGINT)") as process:
        process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert not out.exists() or PieceStore(out / OWN_PIECES).count()
