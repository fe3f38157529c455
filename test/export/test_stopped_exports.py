"""Exports that are stopped at any moment, or of which a recording fails, are continued to the same bytes."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import ROBOCACHE, Contents, by_share, contents
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

# An export that is stopped at any moment is continued by the next one, to the same bytes.

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "config" / "panda_lift.yaml"
RUN = """
import json, os, signal, sys
from multiprocessing import active_children
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
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
        process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert not out.exists() or PieceStore(out / OWN_PIECES).count()


# A recording that cannot be converted does not take the others with it.

NO_MEDIA = DatasetOptions(media="none")


def grow(file: Path) -> None:
    os.utime(file, ns=(0, os.stat(file).st_mtime_ns + 1))


def vanish(file: Path) -> None:
    file.rename(file.with_suffix(".gone"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [(grow, "changed while it was read; export it once it is complete"), (vanish, "vanished while it was read; ")],
)
def test_a_recording_that_changes_fails_on_its_own_and_the_next_export_continues(
    recordings: list[Path],
    spec: FusionSpec,
    tmp_path: Path,
    change: Callable[[Path], None],
    expected: str,
) -> None:
    recordings = [Path(shutil.copytree(recording, tmp_path / recording.name)) for recording in recordings]
    (file,) = recordings[1].glob("*.mcap")
    before = os.stat(file)

    def progress(name: str, share: float) -> None:
        if name == recordings[1].name and share == 1:
            change(file)

    out = tmp_path / "set"
    with pytest.raises(RoboCacheError) as error:
        export(recordings, spec, out, NO_MEDIA, progress=by_share(progress))
    gone = file.with_suffix(".gone")
    if gone.exists():
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


def test_a_recording_that_vanishes_before_its_turn_fails_on_its_own(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    shutil.copytree(bags[0], gone)

    def progress(name: str, _share: float) -> None:
        if name == bags[1].name:
            shutil.rmtree(gone, ignore_errors=True)

    out = tmp_path / "set"
    with pytest.raises(RoboCacheError) as error:
        export([bags[1], gone], spec, out, NO_MEDIA, progress=by_share(progress))
    assert str(error.value).splitlines()[0] == f"{gone}: No such file or directory; check that it is still there"
    assert piece_store(out).count() == 1


def broken(folder: Path, source: Path) -> Path:
    """A recording whose head is that of a recording, and whose messages cannot be read."""
    copy = shutil.copytree(source, folder)
    (file,) = copy.glob("*.mcap")
    file.write_bytes(file.read_bytes()[:100])
    return copy


def run(out: Path, bags: list[Path], *more: str) -> subprocess.CompletedProcess[str]:
    command = [*ROBOCACHE, "export", *map(str, bags), "--spec", str(SPEC), "--media", "none"]
    command += ["--out", str(out), *more]
    return forked.run(command, preload=forked.EXPORT, capture_output=True, text=True, cwd=ROOT)


def test_skipped_recordings_are_listed_and_the_dataset_is_that_of_the_others(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    bad = broken(tmp_path / "bad", bags[0])
    done = run(tmp_path / "set", [bags[0], bad, bags[1]], "--on-error", "skip", "--jobs", "1")
    assert done.returncode == 1, done.stderr
    assert "not in the dataset: " in done.stdout
    reported = json.loads((tmp_path / "set/meta/robocache.json").read_text(encoding="utf-8"))
    assert [Path(entry["bag"]).name for entry in reported["recordings"]] == ["again", "lift"]  # sorted
    (failed,) = reported["failed"]
    assert failed["bag"] == str(bad)
    assert failed["reason"] in (tmp_path / "set/report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    export(sorted(bags), spec, tmp_path / "other" / "set", NO_MEDIA)
    for name in ("data", "arrays", "meta/episodes"):
        assert contents(tmp_path / "set" / name) == contents(tmp_path / "other/set" / name)


def test_a_failure_is_a_line_for_each_recording_and_exit_code_2(bags: list[Path], tmp_path: Path) -> None:
    short = ["--min-frames", "100000"]
    done = run(tmp_path / "set", bags, *short, "--jobs", "1")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.count("no 100000 ticks in a row") == 2, done.stderr  # long paths shorten the rest
    assert not (tmp_path / "set").exists()


def test_nothing_is_skipped_where_no_recording_is_left(bags: list[Path], tmp_path: Path) -> None:
    done = run(tmp_path / "set", [broken(tmp_path / "bad", bags[0])], "--on-error", "skip")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_disk_that_is_full_is_one_line_and_the_pieces_stay(
    bags: list[Path], tmp_path: Path, small_disk: Callable[..., tuple[int, str, str]]
) -> None:
    out = tmp_path / "disk" / "set"
    out.parent.mkdir()
    command = [*ROBOCACHE, "export", *map(str, bags), "--spec", str(SPEC), "--out", str(out)]
    more_space = f"mount -o remount,size=100m none {out.parent} && ls -A {out} && {shlex.join(command)} --media none"
    code, text, errors = small_disk(out.parent, "800k", [*command, "--media", "none", "--jobs", "1"], more_space)
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert "No space left on device; free some space" in errors
    assert text.splitlines()[0] == OWN_PIECES
    assert "recordings were converted by an earlier export and reused" in text
