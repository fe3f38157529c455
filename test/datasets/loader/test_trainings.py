"""Trainings that are killed or distributed, and what users of torch.utils.data expect."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_episodes import Counting
from torch.utils.data import DataLoader

from robocache_ros.datasets import LoaderOptions, TimelineLoader
from robocache_ros.errors import RoboCacheError
from test import forked
from test.datasets.loader.killed_trainer import EPOCHS, open_loader, reported
from test.datasets.small import EPISODES, episode, same, write_tfds
from test.fuzz.datasets import FORMATS

# kill -9 of the training: the sequence of samples, and every value, are those of an undisturbed one.

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_training_that_is_killed_continues_with_the_next_sample_with_any_number_of_workers(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", [episode(2 + k % 3, 10.0 * k) for k in range(8)], shards=3)
    loader = open_loader(str(folder), workers=0)
    undisturbed = [reported(batch) for _ in range(EPOCHS) for batch in loader]
    assert len(undisturbed) == 16
    command = [sys.executable, Path(__file__).with_name("killed_trainer.py"), folder, tmp_path / "state.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = []
    for workers, steps in ((2, 4), (0, 6), (1, 6)):  # the second one goes on into the second epoch
        # It ends when the output does: no worker has it open any more.
        done = forked.run([*command, workers, steps], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL
        found += done.stdout.splitlines()
    assert found == undisturbed


# Ranks of torch.distributed, here of one process; test/training has trainings of several.


def initialise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)


def test_a_loader_has_the_rank_of_torch_distributed(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    initialise(monkeypatch)
    loader, given = (
        TimelineLoader(counting, 4, shuffle=True, options=options)
        for options in (LoaderOptions(), LoaderOptions(rank=1, world_size=2))
    )
    assert "rank 1 of 2" in repr(loader)
    assert same(list(loader), list(given))


def test_a_loader_that_was_created_before_the_ranks_is_refused(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = TimelineLoader(counting, 4)
    separate = TimelineLoader(counting, 4, options=LoaderOptions(rank=0, world_size=1))
    initialise(monkeypatch)
    with pytest.raises(RoboCacheError, match="initialised after the loader was created; create it afterwards"):
        next(iter(before))
    assert len(list(separate)) == 4


# What users of torch.utils.data expect of a dataset and of a loader, for every format.


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


READS = """
import hashlib, pickle, sys
for dataset in pickle.load(open(sys.argv[1], "rb")):
    print(hashlib.sha256(dataset[0]["fused"].numpy().tobytes()).hexdigest())
"""


def test_datasets_pickled_before_and_after_their_use_are_read_in_another_process(tmp_path: Path) -> None:
    datasets = [opened(name, tmp_path / str(index)) for index, name in enumerate(FORMATS)]
    sources, before = [pickle.dumps(dataset.source) for dataset in datasets], pickle.dumps(datasets)
    wanted = [hashlib.sha256(dataset[0]["fused"].numpy().tobytes()).hexdigest() for dataset in datasets]
    assert [pickle.dumps(dataset.source) for dataset in datasets] == sources  # statistics are found by it
    (tmp_path / "datasets").write_bytes(pickle.dumps([*pickle.loads(before), *datasets]))
    command = [sys.executable, "-c", READS, str(tmp_path / "datasets")]
    found = forked.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert found.split() == wanted * 2


def test_an_iterator_that_is_not_used_leaves_no_epoch(counting: Counting) -> None:
    plain, loader = (TimelineLoader(counting, 4, shuffle=True) for _ in range(2))
    loader.load_state_dict({**loader.state_dict(), "position": 2})
    iter(loader)
    assert same(list(loader), list(plain)[2:])
