"""Workers that are forked after their parent has read the dataset, as those of torch's DataLoader are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from robocache_ros.datasets import TimelineDataset, open_dataset
from test.fuzz.datasets import write_rlds

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


def test_forked_workers_read_a_compressed_file_that_the_parent_has_started(tmp_path: Path) -> None:
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
