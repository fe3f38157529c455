"""What a target folder holds before, during and after an export, and how one that was stopped is continued."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.target import OWN_PIECES, new_dataset, piece_store
from robocache_ros.formats.dataset_folder import LISTING
from robocache_ros.formats.pieces import CONTENTS
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import NO_MEDIA, ROBOCACHE, ROOT, SPEC, by_share, contents, written
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

WRITE = """
import os, signal, sys, time
from pathlib import Path
from robocache_ros.exporter.target import new_dataset

{prepare}
with new_dataset(Path(sys.argv[1]), overwrite=len(sys.argv) > 2) as new:
    (new.folder / "meta").mkdir()
    (new.folder / "meta" / "info.json").write_text("new")
    (new.folder / "data").mkdir()
    (new.folder / "data" / "rows").write_text("new")
    {inside}
"""


def export_new(out: Path, **options: Any) -> list[str]:
    """Write the new dataset; return the notes."""
    with new_dataset(out, **options) as new:
        written(new.folder, "new")
    return new.notes


NEW = {"meta/info.json": b"new", "data/rows": b"new"}
OLD = {"meta/info.json": b"old", "data/rows": b"old"}


def test_no_reader_finds_a_dataset_before_it_is_complete(tmp_path):
    out = tmp_path / "new" / "dataset"
    with new_dataset(out) as new:
        written(new.folder, "new")
        assert not (out / "meta").exists()
        assert new.folder.is_relative_to(out)  # the same file system, also where `out` is a mount point
    assert contents(out) == NEW


def test_a_folder_with_the_entries_of_a_file_system_a_link_and_a_long_name_may_be_filled(tmp_path):
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk")
    for name in ("link", "x" * 250):  # as long as the file system allows
        export_new(tmp_path / name)
        assert contents(tmp_path / name) == NEW
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    "error",
    [ValueError(), KeyboardInterrupt(), OSError(28, "No space left on device"), OSError(30, "Read-only file system")],
)
def test_nothing_is_left_after_an_exception_and_a_disk_error_is_one_line(tmp_path, exists, error):
    out = tmp_path / "out"
    before = contents(written(out, "old")) if exists else {}

    def write_half() -> None:
        with new_dataset(out, overwrite=True) as new:
            (new.folder / "a").write_text("x")
            raise error

    raised, match = (RoboCacheError, f"out: {error.strerror}; ") if isinstance(error, OSError) else (type(error), None)
    with pytest.raises(raised, match=match):
        write_half()
    assert (out.exists(), contents(tmp_path / "out")) == (exists, before)


TAKEN = "exists; choose another folder, or replace it with --overwrite"


@pytest.mark.parametrize(
    ("names", "overwrite", "message"),
    [
        (("out/meta/info.json", "out/data/rows"), False, TAKEN),
        (("out/thesis.tex",), True, "not a dataset"),
        (("out",), True, "is a file"),
    ],
)
def test_what_must_not_be_replaced_is_refused(tmp_path, names, overwrite, message):
    written(tmp_path, "mine", *names)
    with pytest.raises(RoboCacheError, match=message):
        export_new(tmp_path / "out", overwrite=overwrite)
    assert contents(tmp_path) == dict.fromkeys(names, b"mine")


def test_a_mount_point_may_be_filled(tmp_path, small_disk):
    code = WRITE.format(prepare="", inside="pass")
    show = f"cat {tmp_path}/meta/info.json {tmp_path}/data/rows"
    assert small_disk(tmp_path, "1m", [sys.executable, "-c", code, str(tmp_path)], show) == (0, "newnew", "")


def test_overwrite_replaces_the_files_of_a_dataset_of_any_name_and_keeps_others(tmp_path):
    out = written(tmp_path / "out", "old")
    written(out, "old", "videos/front/a.mp4", "episode_0.npz")  # of the dataset, and the first not of the new one
    written(out, "mine", "README.md")
    with new_dataset(out, overwrite=True) as new:
        written(new.folder, "new")
        written(new.folder, "new", "episode_0.npz")
        assert (out / "meta" / "info.json").read_text() == "old"  # readable until the new one is complete
    own = {"README.md": b"mine"}
    assert contents(out) == {**NEW, **own, "episode_0.npz": b"new", LISTING: b'["data", "episode_0.npz", "meta"]'}
    export_new(out, overwrite=True)
    assert contents(out) == {**NEW, **own}


def test_an_error_between_the_moves_brings_the_old_dataset_back(tmp_path, monkeypatch):
    out = written(tmp_path / "out", "old")
    rename = Path.rename

    def fails_once(self: Path, target: Path) -> Path:
        if self.name == "data" and self.parent.name == "dataset":
            monkeypatch.undo()
            raise OSError(5, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(RoboCacheError, match="Input/output error"):
        export_new(out, overwrite=True)
    assert contents(out) == OLD


@pytest.mark.parametrize("out", ["/proc/x", "/proc/sys/x/y", "/dev/null/x", f"/tmp/{'x' * 300}"])
def test_a_target_that_cannot_be_made_is_one_short_line(out):
    with pytest.raises(RoboCacheError) as error:
        export_new(Path(out))
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_the_dataset_is_flushed_to_disk_and_its_pieces_are_not(bags, spec, tmp_path, monkeypatch):
    flushed: list[str] = []
    flush = os.fsync

    def watched(handle: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        flush(handle)

    monkeypatch.setattr(os, "fsync", watched)
    export(bags[1:], spec, tmp_path / "set", DatasetOptions(media="none"))
    assert {"info.json", "report.html"} <= set(flushed)
    assert CONTENTS not in flushed


# An export that is killed, or that meets another one: the next export completes or replaces the dataset.


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def process(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> subprocess.Popen[str]:
    """An export in a process of its own."""
    command = [sys.executable, "-c", WRITE.format(prepare=prepare, inside=inside), str(out), *more]
    return forked.Popen(command, preload=forked.EXPORT, stdout=subprocess.PIPE, text=True)


def killed(out: Path, *more: str, **code: str) -> None:
    """An export that is killed where it kills itself."""
    running = process(out, *more, **code)
    running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL


# Kills the process at its n-th move of an entry.
KILL_AT_MOVE = """
moves, rename = [], Path.rename
def counted(self, target):
    if self.name in ("meta", "data"):
        moves.append(self)
        if len(moves) == {number}:
            os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = counted
"""


def test_a_killed_export_is_repeated_and_its_rest_removed(tmp_path):
    out = tmp_path / "out"
    killed(out, inside=KILL)
    assert not (out / "meta").exists()
    (left,) = out.glob(".robocache-partial-*")
    assert left.name in export_new(out)[0]
    assert contents(out) == NEW


PIECE = """
    with new.pieces.drafts.new() as draft:
        (draft / "contents.json").write_text("{}")
        new.pieces.commit(draft, "0" * 64)
"""


@pytest.mark.parametrize(("number", "replaces"), [(1, True), (2, True), (3, True), (4, True), (1, False), (2, False)])
def test_an_export_that_was_killed_while_it_moves_is_completed_by_the_next_one(tmp_path, number, replaces):
    out = written(tmp_path / "out", "old") if replaces else tmp_path / "out"
    killed(out, *["overwrite"] * replaces, prepare=KILL_AT_MOVE.format(number=number), inside=PIECE)
    assert piece_store(out).count() == 1
    assert (out / "meta" / "info.json").exists() == (replaces and number == 1)  # half a dataset is none
    with pytest.raises(RoboCacheError, match="exists"):
        export_new(out)
    assert contents(out) == NEW


def test_a_second_export_to_the_same_folder_is_refused_while_the_first_runs(tmp_path):
    first = process(tmp_path / "out", inside="print('in', flush=True); time.sleep(60)")
    assert first.stdout.readline() == "in\n"
    with pytest.raises(RoboCacheError, match="another export is writing to it"):
        export_new(tmp_path / "out")
    first.kill()
    first.communicate()
    export_new(tmp_path / "out")
    assert contents(tmp_path / "out") == NEW


# Exports that are stopped at any moment, or of which a recording fails, are continued to the same bytes.

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
    if isinstance(event, Advanced):
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
    bags: Any, out: Path, media: str, jobs: int, at_progress: str = "pass", prepare: str = ""
) -> tuple[int, str]:
    """Run an export in a process of its own, and in a group of its own; its exit status and what it printed."""
    arguments = {"bags": list(map(str, bags)), "spec": str(SPEC), "out": str(out), "media": media, "jobs": jobs}
    command = [sys.executable, "-c", RUN.format(at_progress=at_progress, prepare=prepare), json.dumps(arguments)]
    # It ends when the processes of the group have closed stderr.
    given = {"capture_output": True, "text": True, "start_new_session": True, "timeout": 120}
    done = forked.run(command, preload=forked.EXPORT, **given)
    return done.returncode, done.stderr


def test_an_export_killed_half_way_is_continued_to_the_same_bytes(recordings, spec, undisturbed, tmp_path):
    out = tmp_path / "set"
    # Of 14 calls or more.
    status, errors = started(recordings, out, "none", 2, "if len(calls) == 8: os.kill(os.getpid(), KILL)")
    assert status == -signal.SIGKILL, errors
    assert not (out / "meta").exists()
    kept = piece_store(out).count()
    result = export(recordings, spec, out, NO_MEDIA)
    assert contents(out) == undisturbed("none")
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
    given = {"capture_output": True, "text": True, "cwd": ROOT, "start_new_session": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forked.run([*program, *recordings, *options], preload=forked.EXPORT, env=environment, **given)
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


# A recording that cannot be converted does not take the others with it.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda file: os.utime(file, ns=(0, 0)), "changed while it was read; export it once it is complete"),
        (lambda file: file.rename(file.with_suffix(".gone")), "vanished while it was read; "),
    ],
)
def test_a_changed_recording_fails_on_its_own_and_exports_continue(recordings, spec, tmp_path, change, expected):
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


def test_failures_are_a_line_for_each_recording_and_exit_code_2_also_where_all_are_skipped(bags, broken, tmp_path):
    done = run(tmp_path / "set", [broken], "--on-error", "skip")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    done = run(tmp_path / "set", bags, "--min-frames", "100000", "--jobs", "1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
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
