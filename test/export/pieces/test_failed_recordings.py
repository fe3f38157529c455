"""A recording that cannot be converted does not take the others with it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import ROBOCACHE, by_share
from test.export.pieces.conftest import contents

ROOT = Path(__file__).parents[3]
SPEC = ROOT / "config" / "panda_lift.yaml"
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


def test_a_new_recording_costs_one_piece_and_a_new_spec_all(
    recordings: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    bad = tmp_path / "bad"
    shutil.copytree(recordings[0], bad)
    seen: list[str] = []

    def failing(name: str, share: float) -> None:
        seen.append(name)
        if name == "bad" and share == 1:
            grow(next(bad.glob("*.mcap")))

    with pytest.raises(RoboCacheError, match="changed while it was read"):
        export([recordings[0], bad], spec, out, NO_MEDIA, progress=by_share(failing))
    seen.clear()
    with pytest.raises(RoboCacheError, match="changed while it was read"):
        export([recordings[0], recordings[1], bad], spec, out, NO_MEDIA, progress=by_share(failing))
    assert seen.count(recordings[0].name) == 0  # its piece is there
    assert seen.count(recordings[1].name) > 1

    export(recordings[:1], spec, out, DatasetOptions(media="none", min_frames=3))
    assert sorted(entry.name for entry in out.iterdir()) == [
        *("SHA256SUMS", "arrays", "data", "meta", "report.html", "report.json")
    ]


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
