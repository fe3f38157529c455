"""Trainings that are killed or distributed, and what users of torch.utils.data expect.

As a program, this is a training that is killed after some steps. Its arguments are the dataset, the file of the state,
the number of workers, and that of the steps; it stores the state and prints a line after each step.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from robocache_ros.datasets import Augmentation, RTXDataset, TimelineLoader, Window
from robocache_ros.errors import RoboCacheError
from test import forked
from test.datasets.small import EPISODES, episode, loader_of, same, write_tfds
from test.fuzz.datasets import FORMATS

# kill -9 of the training: the sequence of samples, and every value, are those of an undisturbed one.

ROOT = Path(__file__).parents[3]
EPOCHS = 2


def open_loader(folder: str, workers: int) -> TimelineLoader:
    dataset = RTXDataset(folder, target_hz=10, window=Window(n_obs=2, horizon=3, action_offset=1))
    changes = Augmentation(noise={"proprio": 0.1}, crop=(6, 5), brightness=0.3)
    return TimelineLoader(dataset, 5, shuffle=True, seed=11, workers=workers, augmentation=changes)


def reported(batch: dict[str, Any]) -> str:
    """The samples of a batch, and a digest of all of its values."""
    digest = hashlib.sha256()
    for key, value in sorted(batch.items()):
        digest.update(repr((key, value)).encode() if isinstance(value, list) else value.numpy().tobytes())
    return f"{batch['index'].tolist()} {digest.hexdigest()}"


def train_and_die(folder: str, state: Path, workers: int, steps: int) -> None:
    loader = open_loader(folder, workers)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    for batch in islice(chain(*[loader] * EPOCHS), steps):
        print(reported(batch), flush=True)  # noqa: T201
        state.write_text(json.dumps(loader.state_dict()))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_training_that_is_killed_continues_with_the_next_sample_with_any_number_of_workers(tmp_path):
    folder = write_tfds(tmp_path / "d", [episode(2 + k % 3, 10.0 * k) for k in range(8)], shards=3)
    loader = open_loader(str(folder), workers=0)
    undisturbed = [reported(batch) for _ in range(EPOCHS) for batch in loader]
    assert len(undisturbed) == 16
    command = [sys.executable, __file__, folder, tmp_path / "state.json"]
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


def test_a_loader_has_the_rank_of_torch_distributed(counting, monkeypatch):
    initialise(monkeypatch)
    loader, given = (loader_of(counting, shuffle=True, **rank) for rank in ({}, {"rank": 1, "world_size": 2}))
    assert "rank 1 of 2" in repr(loader)
    assert same(list(loader), list(given))


def test_a_loader_that_was_created_before_the_ranks_is_refused(counting, monkeypatch):
    before = TimelineLoader(counting, 4)
    separate = loader_of(counting, rank=0, world_size=1)
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
def test_a_dataset_is_collated_by_torch(name, tmp_path):
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


def test_datasets_pickled_before_and_after_their_use_are_read_in_another_process(tmp_path):
    datasets = [opened(name, tmp_path / str(index)) for index, name in enumerate(FORMATS)]
    sources, before = [pickle.dumps(dataset.source) for dataset in datasets], pickle.dumps(datasets)
    wanted = [hashlib.sha256(dataset[0]["fused"].numpy().tobytes()).hexdigest() for dataset in datasets]
    assert [pickle.dumps(dataset.source) for dataset in datasets] == sources  # statistics are found by it
    (tmp_path / "datasets").write_bytes(pickle.dumps([*pickle.loads(before), *datasets]))
    command = [sys.executable, "-c", READS, str(tmp_path / "datasets")]
    found = forked.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert found.split() == wanted * 2


def test_an_iterator_that_is_not_used_leaves_no_epoch(counting):
    plain, loader = (TimelineLoader(counting, 4, shuffle=True) for _ in range(2))
    loader.load_state_dict({**loader.state_dict(), "position": 2})
    iter(loader)
    assert same(list(loader), list(plain)[2:])


if __name__ == "__main__":
    train_and_die(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
