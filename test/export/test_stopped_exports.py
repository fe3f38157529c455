"""Exports that are stopped at any moment, or of which a recording fails, are continued to the same bytes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import ROBOCACHE, ROOT, by_share, contents
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

SPEC = ROOT / "config" / "panda_lift.yaml"
NO_MEDIA = DatasetOptions(media="none")
RUN = """
import json, os, signal, sys
from multiprocessing import active_children
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from robocache_ros.exporter.progress import Advanced
from robocache_ros.formats.lerobot import write
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
) -> tuple[int, str]:
    """Run an export in a process of its own, and in a group of its own; its exit status and what it printed."""
    arguments = {"bags": list(map(str, bags)), "spec": str(SPEC), "out": str(out), "media": media, "jobs": jobs}
    command = [sys.executable, "-c", RUN.format(at_progress=at_progress, prepare=prepare), json.dumps(arguments)]
    # It ends when the processes of the group have closed stderr.
    done = forked.run(
        command, preload=forked.EXPORT, capture_output=True, text=True, start_new_session=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("media", ["none", pytest.param("video", marks=pytest.mark.slow)])
def test_an_export_killed_half_way_is_continued_to_the_same_bytes(recordings, spec, undisturbed, tmp_path, media):
    out = tmp_path / "set"
    # Of 14 calls or more.
    status, errors = started(recordings, out, media, 2, "if len(calls) == 8: os.kill(os.getpid(), KILL)")
    assert status == -signal.SIGKILL, errors
    assert not (out / "meta").exists()
    kept = piece_store(out).count()
    result = export(recordings, spec, out, DatasetOptions(media=media))
    assert contents(out) == undisturbed(media)
    reused = [note for note in result.notes if "converted by an earlier export" in note]
    assert reused == ([f"{kept} of 4 recordings were converted by an earlier export and reused"] if kept else [])


@pytest.mark.slow
def test_an_export_killed_at_many_moments_is_continued_to_the_same_bytes(tmp_path):
    bags = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.6 + 0.1 * seed) for seed in range(6)]
    expected = contents(export(bags, sensor_spec(), tmp_path / "undisturbed" / "set", report=False).out)
    left: list[int] = []
    for step in (37, 53):
        given = {"bags": list(map(str, bags)), "spec": sensor_spec().to_dict(), "out": str(tmp_path / f"set_{step}")}
        command = [sys.executable, Path(__file__).with_name("killed_exports.py"), json.dumps({**given, "step": step})]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        result = json.loads(done.stdout)
        left += result["pieces"]
        assert result["status"] == 0
        assert not result["error"] or "exists" in result["error"]  # killed while it moved the complete dataset
        assert contents(Path(given["out"])) == expected
    assert len(left) >= 20
    assert set(left) >= {0, 6}  # some while they convert, some while they merge
    assert len(set(left)) >= 4


def test_an_export_killed_while_it_merges_keeps_every_piece(recordings, spec, undisturbed, tmp_path):
    out = tmp_path / "set"
    started(recordings, out, "video", 1, prepare="write.join_video = lambda *_: os.kill(os.getpid(), KILL)")
    assert piece_store(out).count() == 4
    result = export(recordings, spec, out, DatasetOptions(media="video"))
    assert result.notes[0] == "4 of 4 recordings were converted by an earlier export and reused"
    assert contents(out) == undisturbed("video")


def test_a_process_that_is_killed_is_one_line_and_the_pieces_stay(recordings, spec, undisturbed, tmp_path):
    out = tmp_path / "set"
    at_progress = "if share == 1 and calls: [os.kill(child.pid, KILL) for child in active_children()]"
    _, errors = started(recordings, out, "none", 2, at_progress)
    last = errors.splitlines()[-1]
    assert "its process was killed, probably out of memory; run the same command again with fewer --jobs" in last
    export(recordings, spec, out, NO_MEDIA)
    assert contents(out) == undisturbed("none")


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, 2), pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_the_pieces_and_says_how_to_go_on(recordings, spec, undisturbed, tmp_path, number, jobs):
    out = tmp_path / "set"
    program = [sys.executable, Path(__file__).with_name("interrupted_export.py"), "Converted", int(number), "export"]
    options = ["--spec", SPEC, "--out", out, "--media", "none", "--jobs", jobs]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment, "start_new_session": True}
    done = forked.run([*program, *recordings, *options], preload=forked.EXPORT, **given)
    assert done.returncode == 128 + number
    kept = piece_store(out).count()
    assert kept
    assert f"{kept} converted recording{'s are' if kept > 1 else ' is'} kept" in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert [entry.name for entry in out.iterdir()] == [OWN_PIECES]
    assert len(list((out / OWN_PIECES).iterdir())) == kept

    export(recordings, spec, out, NO_MEDIA)
    assert contents(out) == undisturbed("none")


def test_a_signal_before_the_first_piece_leaves_nothing(recordings, tmp_path):
    out = tmp_path / "set"
    status, _ = started(recordings, out, "none", 2, "os.kill(os.getpid(), signal.SIGINT)")
    assert status != 0
    assert not out.exists() or PieceStore(out / OWN_PIECES).count()


# A recording that cannot be converted does not take the others with it.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda file: os.utime(file, ns=(0, 0)), "changed while it was read; export it once it is complete"),
        (lambda file: file.rename(file.with_suffix(".gone")), "vanished while it was read; "),
    ],
)
def test_a_recording_that_changes_fails_on_its_own_and_the_next_export_continues(
    recordings, spec, tmp_path, change, expected
):
    recordings = [Path(shutil.copytree(recording, tmp_path / recording.name)) for recording in recordings]
    (file,) = recordings[1].glob("*.mcap")
    before = os.stat(file)

    def progress(name: str, share: float) -> None:
        if name == recordings[1].name and share == 1:
            change(file)

    out = tmp_path / "set"
    with pytest.raises(RoboCacheError) as error:
        export(recordings, spec, out, NO_MEDIA, progress=by_share(progress))
    for gone in recordings[1].glob("*.gone"):
        gone.rename(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    first, last = str(error.value).splitlines()
    assert f"{file.name}: {expected}" in first
    assert "no dataset, because 1 of 4 recordings failed; the others are kept in it: run the same command" in last
    assert [entry.name for entry in out.iterdir()] == [OWN_PIECES]
    assert piece_store(out).count() == 3

    result = export(recordings, spec, out, NO_MEDIA)
    assert contents(out) == contents(export(recordings, spec, tmp_path / "undisturbed" / "set", NO_MEDIA).out)
    assert result.notes[0] == "3 of 4 recordings were converted by an earlier export and reused"


def test_a_recording_that_vanishes_before_its_turn_fails_on_its_own(bags, spec, tmp_path):
    gone, out = shutil.copytree(bags[0], tmp_path / "gone"), tmp_path / "set"

    def progress(name: str, _share: float) -> None:
        if name == bags[1].name:
            shutil.rmtree(gone, ignore_errors=True)

    with pytest.raises(RoboCacheError) as error:
        export([bags[1], gone], spec, out, NO_MEDIA, progress=by_share(progress))
    assert str(error.value).splitlines()[0] == f"{gone}: No such file or directory; check that it is still there"
    assert piece_store(out).count() == 1


@pytest.fixture
def broken(bags, tmp_path) -> Path:
    """A recording whose head is that of a recording, and whose messages cannot be read."""
    copy = Path(shutil.copytree(bags[0], tmp_path / "bad"))
    (file,) = copy.glob("*.mcap")
    os.truncate(file, 100)
    return copy


def run(out: Path, bags: list[Path], *more: object) -> subprocess.CompletedProcess[str]:
    command = [*ROBOCACHE, "export", *bags, "--spec", SPEC, "--media", "none", "--out", out, *more]
    return forked.run(command, preload=forked.EXPORT, capture_output=True, text=True, cwd=ROOT)


def test_skipped_recordings_are_listed_and_the_dataset_is_that_of_the_others(bags, broken, spec, tmp_path):
    done = run(tmp_path / "set", [bags[0], broken, bags[1]], "--on-error", "skip", "--jobs", "1")
    assert done.returncode == 1, done.stderr
    assert "not in the dataset: " in done.stdout
    reported = json.loads((tmp_path / "set/meta/robocache.json").read_text(encoding="utf-8"))
    assert [Path(entry["bag"]).name for entry in reported["recordings"]] == ["again", "lift"]  # sorted
    (failed,) = reported["failed"]
    assert failed["bag"] == str(broken)
    assert failed["reason"] in (tmp_path / "set/report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    export(sorted(bags), spec, tmp_path / "other" / "set", NO_MEDIA)
    for name in ("data", "arrays", "meta/episodes"):
        assert contents(tmp_path / "set" / name) == contents(tmp_path / "other/set" / name)


def test_nothing_is_skipped_where_no_recording_is_left(broken, tmp_path):
    done = run(tmp_path / "set", [broken], "--on-error", "skip")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_failure_is_a_line_for_each_recording_and_exit_code_2(bags, tmp_path):
    done = run(tmp_path / "set", bags, "--min-frames", "100000", "--jobs", "1")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.count("no 100000 ticks in a row") == 2, done.stderr  # long paths shorten the rest
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_is_one_line_and_the_pieces_stay(bags, tmp_path, small_disk):
    out = tmp_path / "disk" / "set"
    out.parent.mkdir()
    command = [*ROBOCACHE, "export", *map(str, bags), "--spec", str(SPEC), "--out", str(out), "--media", "none"]
    more_space = f"mount -o remount,size=100m none {out.parent} && ls -A {out} && {shlex.join(command)}"
    code, text, errors = small_disk(out.parent, "800k", [*command, "--jobs", "1"], more_space)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "No space left on device; free some space" in errors
    assert text.splitlines()[0] == OWN_PIECES
    assert "recordings were converted by an earlier export and reused" in text
