"""Workers are forked by one process, which has imported what they need."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_episodes import Counting, Surroundings, order_of
from torch.utils.data import DataLoader

from robocache_ros.datasets import TimelineDataset, TimelineLoader, open_dataset
from robocache_ros.datasets.loader.worker_pool import IMPORTED_ONCE
from test.fuzz.datasets import write_rlds

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


SECONDS = 60  # after which a worker that hangs is an error

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def assert_workers_read(dataset: TimelineDataset) -> None:
    """Compare what forked workers read with what the parent has read before."""
    wanted = [dataset[index] for index in range(len(dataset))]
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS
    )
    found = list(loader)

    assert len(found) == len(wanted)
    for sample, other in zip(found, wanted, strict=True):
        assert sample.keys() == other.keys()
        for key, value in other.items():
            assert torch.equal(sample[key], value) if isinstance(value, torch.Tensor) else sample[key] == value


@pytest.mark.parametrize("name", ["lerobot", "lerobot21", "delta", "robomimic"])
def test_forked_workers_read_what_the_parent_has_read(name: str, exported: Callable[[str], Path]) -> None:
    options: dict[str, Any] = {"obs_modality": "image"} if name == "robomimic" else {}

    assert_workers_read(open_dataset(name, exported("video") / name, **options))


def test_forked_workers_read_a_compressed_file_that_the_parent_has_begun(tmp_path: Path) -> None:
    write_rlds(tmp_path / "d", compressed=True)

    assert_workers_read(open_dataset("rlds", tmp_path / "d"))


def test_workers_forked_by_a_thread_read_videos(exported: Callable[[str], Path]) -> None:
    dataset = open_dataset("lerobot", exported("video") / "lerobot")
    dataset[0]  # in this thread, whose decoder stays
    errors: list[BaseException] = []

    def run() -> None:
        try:
            assert_workers_read(dataset)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert errors == []
