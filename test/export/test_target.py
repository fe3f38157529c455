"""What a target folder holds before, during and after an export, however the export ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.target import new_dataset, piece_store
from robocache_ros.formats.dataset_folder import LISTING
from robocache_ros.formats.pieces import CONTENTS
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import written
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


def contents(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


def export_new(out: Path, **options: Any) -> list[str]:
    """Write the new dataset; return the notes."""
    with new_dataset(out, **options) as new:
        written(new.folder, "new")
    return new.notes


NEW = {"meta/info.json": "new", "data/rows": "new"}
OLD = {"meta/info.json": "old", "data/rows": "old"}


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

    is_disk = isinstance(error, OSError)
    with pytest.raises(
        RoboCacheError if is_disk else type(error), match=f"out: {error.strerror}; " if is_disk else None
    ):
        write_half()
    assert (out.exists(), contents(tmp_path / "out")) == (exists, before)


@pytest.mark.parametrize(
    ("names", "overwrite", "message"),
    [
        (
            ("out/meta/info.json", "out/data/rows"),
            False,
            "exists; choose another folder, or replace it with --overwrite",
        ),
        (("out/thesis.tex",), True, "not a dataset"),
        (("out",), True, "is a file"),
    ],
)
def test_what_must_not_be_replaced_is_refused(tmp_path, names, overwrite, message):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(RoboCacheError, match=message):
        export_new(tmp_path / "out", overwrite=overwrite)
    assert contents(tmp_path) == dict.fromkeys(names, "mine")


def test_a_mount_point_may_be_filled(tmp_path, small_disk):
    code = WRITE.format(prepare="", inside="pass")
    show = f"cat {tmp_path}/meta/info.json {tmp_path}/data/rows"
    assert small_disk(tmp_path, "1m", [sys.executable, "-c", code, str(tmp_path)], show) == (0, "newnew", "")


def test_overwrite_replaces_a_dataset_and_keeps_other_files(tmp_path):
    out = written(tmp_path / "out", "old")
    (out / "videos" / "front").mkdir(parents=True)
    (out / "videos" / "front" / "a.mp4").touch()  # of the dataset, and not of the new one
    (out / "README.md").write_text("mine")
    with new_dataset(out, overwrite=True) as new:
        written(new.folder, "new")
        assert (out / "meta" / "info.json").read_text() == "old"  # readable until the new one is complete
    assert contents(out) == {**NEW, "README.md": "mine"}


def test_a_format_may_write_files_of_any_name(tmp_path):
    out = written(tmp_path / "set", "old")
    (out / "episode_0.npz").write_text("old")
    with new_dataset(out, overwrite=True) as new:
        written(new.folder, "new")
        (new.folder / "episode_0.npz").write_text("new")
    assert contents(out) == {**NEW, "episode_0.npz": "new", LISTING: '["data", "episode_0.npz", "meta"]'}
    export_new(out, overwrite=True)
    assert contents(out) == NEW


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


def killed(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> None:
    """An export that is killed where it kills itself."""
    running = process(out, *more, prepare=prepare, inside=inside)
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
