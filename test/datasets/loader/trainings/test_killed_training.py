"""kill -9 of workers and of the training: the sequence of samples, and every value, are those of an undisturbed one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from test import forked
from test.datasets.conftest import STEPS, episode, write_tfds
from test.datasets.loader.trainings.obedient_trainer import EPOCHS, open_loader, reported

ROOT = Path(__file__).parents[4]
BATCHES = 16  # of the epochs


class Training:
    """A training in a process of its own, which takes a step when it is told to."""

    def __init__(self, folder: Path, state: Path, workers: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("obedient_trainer.py")), folder, state, str(workers)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = forked.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        self.workers: list[int] = json.loads(self.line())

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def step(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def steps(self, count: int) -> list[str]:
        """The next batches; the training waits after the last one."""
        found = []
        for number in range(count):
            if number:
                self.step()
            found.append(self.line())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [episode(2 + k % 3, 10.0 * k) for k in range(8)]
    return write_tfds(tmp_path_factory.mktemp("killed") / "d", STEPS, episodes, shards=3)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[str]:
    loader = open_loader(str(folder), workers=0)
    found = [reported(batch) for _ in range(EPOCHS) for batch in loader]
    assert len(found) == BATCHES
    return found


@pytest.fixture
def training(folder: Path, tmp_path: Path) -> Iterator[Callable[[int], Training]]:
    started = []

    def begin(workers: int) -> Training:
        started.append(Training(folder, tmp_path / "state.json", workers))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


@pytest.mark.slow
def test_workers_that_are_killed_change_nothing(training: Callable[[int], Training], undisturbed: list[str]) -> None:
    running = training(2)

    found = running.steps(3)
    for pid in running.workers:
        os.kill(pid, signal.SIGKILL)
    running.step()
    found += running.steps(BATCHES - 3)
    running.step()

    assert found == undisturbed
    assert running.line() == "replaced 2"


@pytest.mark.slow
def test_a_training_that_is_killed_continues_with_the_next_sample_with_any_number_of_workers(
    training: Callable[[int], Training], undisturbed: list[str]
) -> None:
    first = training(2)
    descriptors = [os.pidfd_open(pid) for pid in first.workers]
    found = first.steps(4)
    first.kill()
    second = training(0)
    found += second.steps(6)  # into the second epoch
    second.kill()
    third = training(1)
    found += third.steps(BATCHES - 10)

    assert found == undisturbed
    assert [ended(descriptor) for descriptor in descriptors] == [True, True]  # workers do not outlive the training


def ended(descriptor: int) -> bool:
    """Wait for the end of a process."""
    ready, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    return bool(ready)
