"""What users of torch.utils.data expect of a dataset and of a loader, for every format."""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_episodes import Counting, order_of, same
from torch.utils.data import DataLoader

from robocache_ros.datasets import TimelineLoader
from test import forked
from test.fuzz.datasets import EPISODES, FORMATS

ROOT = Path(__file__).parents[4]


def opened(name: str, folder: Path) -> Any:
    write, opener, _ = FORMATS[name]
    write(folder / "d")
    return opener(folder / "d")


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_is_collated_by_torch(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)

    batches = list(DataLoader(dataset))

    assert len(dataset) == len(batches) == EPISODES
    assert dataset[0].keys() == batches[0].keys()
    for key, value in dataset[0].items():
        given = batches[0][key]
        assert given == [value] if isinstance(value, str) else torch.equal(given[0], torch.as_tensor(value)), key


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_is_pickled_before_and_after_its_use(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)
    before = pickle.loads(pickle.dumps(dataset))
    fused = dataset[0]["fused"]
    after = pickle.loads(pickle.dumps(dataset))

    assert before[0]["fused"].equal(fused)
    assert after[0]["fused"].equal(fused)
    assert pickle.dumps(before.source) == pickle.dumps(after.source)  # statistics are found by it


READS = """
import hashlib, pickle, sys
for dataset in pickle.load(open(sys.argv[1], "rb")):
    print(hashlib.sha256(dataset[0]["fused"].numpy().tobytes()).hexdigest())
"""


def test_datasets_of_all_formats_are_read_in_another_process(tmp_path: Path) -> None:
    datasets = [opened(name, tmp_path / str(index)) for index, name in enumerate(FORMATS)]
    wanted = [hashlib.sha256(dataset[0]["fused"].numpy().tobytes()).hexdigest() for dataset in datasets]
    (tmp_path / "datasets").write_bytes(pickle.dumps(datasets))

    command = [sys.executable, "-c", READS, str(tmp_path / "datasets")]
    found = forked.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    assert found.split() == wanted


def test_a_loader_has_as_many_batches_as_its_length_says(counting: Counting) -> None:
    loader = TimelineLoader(counting, 4, drop_last=True)

    assert len(loader) == sum(1 for _ in loader) == 3
    assert repr(loader).startswith("TimelineLoader(")
    assert "3 batches" in repr(loader)


def test_set_epoch_gives_the_order_of_an_epoch(counting: Counting) -> None:
    loader = TimelineLoader(counting, 4, shuffle=True)
    orders = [order_of(list(loader)) for _ in range(3)]

    loader.set_epoch(1)

    assert order_of(list(loader)) == orders[1]
    assert orders[0] != orders[1] != orders[2]


def test_an_iterator_that_is_not_used_leaves_no_epoch(counting: Counting) -> None:
    plain, loader = (TimelineLoader(counting, 4, shuffle=True) for _ in range(2))
    wanted = list(plain)
    state = {**loader.state_dict(), "position": 2}
    loader.load_state_dict(state)

    iter(loader)

    assert same(list(loader), wanted[2:])
