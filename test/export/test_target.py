"""What a target folder holds before, during and after an export, however the export ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.target import new_dataset, piece_store
from robocache_ros.formats.dataset_folder import LISTING
from test import forked

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


def dataset(folder: Path, content: str = "old") -> Path:
    for name in ("meta/info.json", "data/rows"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


NEW = {"meta/info.json": "new", "data/rows": "new"}
OLD = {"meta/info.json": "old", "data/rows": "old"}


def test_no_reader_finds_a_dataset_before_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "new" / "dataset"
    with new_dataset(out) as new:
        dataset(new.folder, "new")
        assert not (out / "meta").exists()
        assert new.folder.is_relative_to(out)  # the same file system, also where `out` is a mount point
    assert contents(out) == NEW


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception(tmp_path: Path, error: type[BaseException]) -> None:
    def write_half() -> None:
        with new_dataset(tmp_path / "out") as new:
            (new.folder / "a").write_text("x")
            raise error

    with pytest.raises(error):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_unchanged_without_overwrite(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    with pytest.raises(RoboCacheError, match=r"exists; choose another folder, or replace it with --overwrite"):
        new_dataset(out).__enter__()
    assert contents(out) == OLD


def test_an_empty_file_system_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out" / "lost+found").mkdir(parents=True)
    with new_dataset(tmp_path / "out") as new:
        dataset(new.folder, "new")
    assert contents(tmp_path / "out") == NEW


def test_a_mount_point_may_be_filled(tmp_path: Path, small_disk: Callable[..., tuple[int, str, str]]) -> None:
    code = WRITE.format(prepare="", inside="pass")
    show = f"cat {tmp_path}/meta/info.json {tmp_path}/data/rows"
    assert small_disk(tmp_path, "1m", [sys.executable, "-c", code, str(tmp_path)], show) == (0, "newnew", "")


@pytest.mark.parametrize("error", [28, 30])  # a full disk and a read-only one
def test_a_disk_error_is_one_line_and_leaves_nothing(tmp_path: Path, error: int) -> None:
    def write_half() -> None:
        with new_dataset(tmp_path / "out") as new:
            (new.folder / "a").write_text("x")
            raise OSError(error, os.strerror(error))

    with pytest.raises(RoboCacheError, match=f"out: {os.strerror(error)}; "):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    with new_dataset(tmp_path / "out") as new:
        dataset(new.folder, "new")
    assert (tmp_path / "out").is_symlink()
    assert contents(tmp_path / "disk") == NEW


def test_overwrite_replaces_a_dataset_and_keeps_other_files(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    (out / "videos" / "front").mkdir(parents=True)
    (out / "videos" / "front" / "a.mp4").touch()  # of the dataset, and not of the new one
    (out / "README.md").write_text("mine")
    with new_dataset(out, overwrite=True) as new:
        dataset(new.folder, "new")
        assert (out / "meta" / "info.json").read_text() == "old"  # readable until the new one is complete
    assert contents(out) == {**NEW, "README.md": "mine"}


def test_a_format_may_write_files_of_any_name(tmp_path: Path) -> None:
    dataset(tmp_path / "set")
    (tmp_path / "set" / "episode_0.npz").write_text("old")
    with new_dataset(tmp_path / "set", overwrite=True) as new:
        dataset(new.folder, "new")
        (new.folder / "episode_0.npz").write_text("new")
    found = contents(tmp_path / "set")
    assert found.pop(LISTING) == '["data", "episode_0.npz", "meta"]'
    assert found == {"meta/info.json": "new", "data/rows": "new", "episode_0.npz": "new"}
    with new_dataset(tmp_path / "set", overwrite=True) as new:
        dataset(new.folder, "new")
    assert contents(tmp_path / "set") == NEW


def test_a_failed_overwrite_keeps_the_old_dataset(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    with pytest.raises(ValueError, match="stop"), new_dataset(out, overwrite=True):
        raise ValueError("stop")
    assert contents(out) == OLD


def test_an_error_between_the_moves_brings_the_old_dataset_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = dataset(tmp_path / "out")
    rename = Path.rename

    def fails_once(self: Path, target: Path) -> Path:
        if self.name == "data" and self.parent.name == "dataset":
            monkeypatch.undo()
            raise OSError(5, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(RoboCacheError, match="Input/output error"), new_dataset(out, overwrite=True) as new:
        dataset(new.folder, "new")
    assert contents(out) == OLD


def test_overwrite_refuses_what_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with pytest.raises(RoboCacheError, match="not a dataset"):
        new_dataset(tmp_path / "home", overwrite=True).__enter__()
    assert [f.name for f in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(RoboCacheError, match="is a file"):
        new_dataset(tmp_path / "out", overwrite=True).__enter__()


@pytest.mark.parametrize("out", ["/proc/x", "/proc/sys/x/y", "/dev/null/x", f"/tmp/{'x' * 300}"])
def test_a_target_that_cannot_be_made_is_one_short_line(out: str) -> None:
    with pytest.raises(RoboCacheError) as error:
        new_dataset(Path(out)).__enter__()
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_a_name_as_long_as_the_file_system_allows_is_accepted(tmp_path: Path) -> None:
    with new_dataset(tmp_path / ("x" * 250)) as new:
        dataset(new.folder, "new")
    assert contents(tmp_path / ("x" * 250)) == NEW


# An export that is killed, or that meets another one: the next export completes or replaces the dataset.


def process(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> subprocess.Popen[str]:
    """An export in a process of its own."""
    command = [sys.executable, "-c", WRITE.format(prepare=prepare, inside=inside), str(out), *more]
    return forked.Popen(command, preload=forked.EXPORT, stdout=subprocess.PIPE, text=True)


def killed(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> None:
    """An export that is killed where it kills itself."""
    running = process(out, *more, prepare=prepare, inside=inside)
    running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL


@contextmanager
def live(out: Path) -> Iterator[None]:
    """An export that is at work in `out`."""
    running = process(out, inside="print('in', flush=True); time.sleep(60)")
    assert running.stdout
    try:
        assert running.stdout.readline() == "in\n"
        yield
    finally:
        running.kill()
        running.communicate()


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


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


def test_a_killed_export_is_repeated_and_its_rest_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed(out, inside=KILL)
    assert not (out / "meta").exists()
    (left,) = out.glob(".robocache-partial-*")
    with new_dataset(out) as new:
        assert left.name in new.notes[0]
        dataset(new.folder, "new")
    assert contents(out) == NEW


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_replacement_that_was_killed_is_completed_by_the_next_export(tmp_path: Path, number: int) -> None:
    out = dataset(tmp_path / "out")
    killed(out, "overwrite", prepare=KILL_AT_MOVE.format(number=number))
    assert number == 1 or not (out / "meta" / "info.json").exists()  # half a dataset is none
    with pytest.raises(RoboCacheError, match="exists"):
        new_dataset(out).__enter__()
    assert contents(out) == NEW


PIECE = """
    with new.pieces.drafts.new() as draft:
        (draft / "contents.json").write_text("{}")
        new.pieces.commit(draft, "0" * 64)
"""


def test_pieces_stay_after_a_kill_and_go_when_the_dataset_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed(out, inside=f"{PIECE}    {KILL}")
    assert piece_store(out).count() == 1
    with new_dataset(out) as new:
        assert new.pieces.find("0" * 64)
        dataset(new.folder, "new")
    assert contents(out) == NEW


@pytest.mark.parametrize("number", [1, 2])
def test_an_export_killed_while_it_moves_is_completed_without_its_pieces(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    killed(out, prepare=KILL_AT_MOVE.format(number=number), inside=PIECE)
    assert piece_store(out).count() == 1
    with pytest.raises(RoboCacheError, match="exists"):
        new_dataset(out).__enter__()
    assert contents(out) == NEW


def test_a_second_export_to_the_same_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with live(tmp_path / "out"), pytest.raises(RoboCacheError, match="another export is writing to it"):
        new_dataset(tmp_path / "out").__enter__()
    with new_dataset(tmp_path / "out") as new:  # the first one is dead by now
        dataset(new.folder, "new")
    assert contents(tmp_path / "out") == NEW
