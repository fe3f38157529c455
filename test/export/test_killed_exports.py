"""An export that is killed, or that meets another one: the next export completes or replaces the dataset."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.target import new_dataset, piece_store
from test import forked
from test.export.test_target import NEW, WRITE, contents, dataset


def process(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> subprocess.Popen[str]:
    """An export in a process of its own."""
    command = [sys.executable, "-c", WRITE.format(prepare=prepare, inside=inside), str(out), *more]
    return forked.Popen(command, preload=forked.EXPORT, stdout=subprocess.PIPE, text=True)


def killed(out: Path, *more: str, prepare: str = "", inside: str = "pass") -> None:
    """An export that is killed where it kills itself."""
    running = process(out, *more, prepare=prepare, inside=inside)
    running.communicate(timeout=60)
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
    with new.pieces.draft() as draft:
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
