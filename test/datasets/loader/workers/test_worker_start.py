"""Workers are forked by one process, which has imported what they need."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from counting_episodes import Counting, Surroundings, order_of

from robocache_ros.datasets import TimelineLoader
from robocache_ros.datasets.forked_processes import IMPORTED_ONCE

ROOT = Path(__file__).parents[4]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parents[1]}"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_workers_of_all_loaders_are_forked_by_one_process() -> None:
    loaders = [TimelineLoader(Counting(), 3, workers=2) for _ in range(2)]

    parents = {parent_of(pid) for loader in loaders for pid in loader.worker_pids}

    assert len(parents) == 1
    assert os.getpid() not in parents


@pytest.mark.parametrize("module", IMPORTED_ONCE)
def test_a_module_that_is_imported_once_exists(module: str) -> None:
    importlib.import_module(module)  # the process that forks workers ignores one that does not


def test_a_worker_itself_needs_no_torch() -> None:
    python("import robocache_ros.datasets.loader.worker, sys; assert 'torch' not in sys.modules")


def test_workers_have_the_environment_of_their_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("1", "2"):
        monkeypatch.setenv("COUNTED", value)
        found += [batch["environment"] for batch in TimelineLoader(Surroundings(), 13, workers=1)]

    assert found == [["1"] * 13, ["2"] * 13]


def test_workers_have_different_random_numbers() -> None:
    first, second = TimelineLoader(Surroundings(), 7, workers=2)

    assert not set(first["random"].flatten().tolist()) & set(second["random"].flatten().tolist())


def test_a_loader_outlives_the_process_that_forked_its_workers() -> None:
    loader = TimelineLoader(Counting(), 13, workers=1)
    batches = iter(loader)
    forks = parent_of(loader.worker_pids[0])
    descriptor = os.pidfd_open(forks)

    os.kill(forks, signal.SIGKILL)
    select.select([descriptor], [], [], 60)
    os.close(descriptor)

    assert order_of(list(batches)) == order_of(list(TimelineLoader(Counting(), 13, workers=1)))
    loader.close()


@pytest.mark.slow
def test_a_process_that_was_forked_starts_workers_of_its_own() -> None:
    code = """if True:
        import os
        from counting_episodes import Counting, order_of
        from robocache_ros.datasets import TimelineLoader
        here = order_of(list(TimelineLoader(Counting(), 13, workers=1)))
        child = os.fork()
        if not child:
            os._exit(order_of(list(TimelineLoader(Counting(), 13, workers=1))) != here)
        print(os.waitpid(child, 0)[1])
    """

    assert python(code) == "0\n"
