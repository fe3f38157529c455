"""Runs of samples in a random order, mixed in a buffer."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from memory_episodes import Counting, MovingStreams, order_of

from benchmarks.training.order import nearness
from robocache_ros.datasets import LoaderOptions, ShuffledRuns, SourceEpisode, TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader import timeline_loader as runs
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.order import BatchOrder
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.timeline_loader import RunOrder, SamplePool
from robocache_ros.errors import RoboCacheError
from test.datasets.small import same

ENDS = np.cumsum([7, 1, 30, 12])
RUNS = ShuffledRuns(4, buffer=8)
MIXED = {"shuffle": RUNS, "options": LoaderOptions(windows=(2, 1)), "seed": 5}


def order(**changes: object) -> RunOrder:
    return RunOrder(**{"length": 50, "batch_size": 6, "runs": RUNS, "ends": ENDS, **changes})


def test_an_epoch_has_every_sample_once_and_another_order_than_the_next() -> None:
    epochs = [np.concatenate(order().batches(epoch)).tolist() for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]
    reads = [[run.tolist() for run in order().reads(epoch, [np.arange(50)])] for epoch in range(2)]
    assert reads[0] != reads[1]


def test_a_run_is_consecutive_and_stays_in_its_episode() -> None:
    runs = order().reads(0, [np.arange(50)])
    assert sorted(map(len, runs)) == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    for run in runs:
        assert np.array_equal(run, run[0] + np.arange(len(run)))
        assert len(set(np.searchsorted(ENDS, run, "right"))) == 1


def test_a_sample_is_moved_back_by_fewer_places_than_the_buffer() -> None:
    read = {number: place for place, number in enumerate(np.concatenate(order().reads(0, [np.arange(50)])).tolist())}
    given = np.concatenate(order().batches(0)).tolist()
    moved = [place - read[number] for place, number in enumerate(given)]
    assert max(moved) <= RUNS.buffer
    assert min(moved) >= -RUNS.buffer
    assert max(map(abs, moved)) > RUNS.length  # mixed with other runs


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_are_disjoint_and_complete_and_read_other_runs(world_size: int) -> None:
    shares = [order(rank=rank, world_size=world_size) for rank in range(world_size)]
    numbers = [np.concatenate(each.batches(1)).tolist() for each in shares]
    assert sorted(chain(*numbers)) == list(range(50))
    assert len({len(each.batches(1)) for each in shares}) == 1
    assert sum(len(each.reads(1, [np.arange(50)])) for each in shares) <= 14 + world_size - 1


@pytest.mark.parametrize("options", [{"workers": 2}, {"cache": "host"}], ids=str)
def test_workers_and_a_cache_give_the_same_batches(options: dict) -> None:
    separate = list(TimelineLoader(Counting(), 4, **MIXED))
    assert same(list(TimelineLoader(Counting(), 4, **MIXED, **options)), separate)
    assert order_of(separate) != [sorted(batch) for batch in order_of(separate)]


def test_whole_episodes_have_their_values_and_padding() -> None:
    episodes = [batch["proprio"][0] for batch in TimelineLoader(Counting(), 1)]
    for batch in TimelineLoader(Counting(), 4, shuffle=RUNS):
        for row, index in enumerate(batch["index"].tolist()):
            length = int(batch["length"][row])
            assert batch["proprio"][row, :length].equal(episodes[index])
            assert not batch["proprio"][row, length:].any()
            assert (batch["tick_ns"][row, length:] == ABSENT_STAMP_NS).all()
            assert batch["language"][row] == f"task {index}"


def test_samples_that_cannot_be_read_are_left_out_counted_and_named() -> None:
    loader = TimelineLoader(Counting(nan=(4,)), 4, **MIXED, on_error="skip")
    numbers = chain(*order_of(list(loader)))
    assert sorted(numbers) == [number for number in range(len(loader._samples)) if number not in (6, 7, 8, 9)]
    assert loader.skipped == 4


@pytest.mark.parametrize(
    ("runs", "variance", "correlation"),
    [(ShuffledRuns(8, 2330), 1.2, 0.15), (ShuffledRuns(15, 2330), 1.3, 0.25), (ShuffledRuns(8, 8192), 1.1, 0.1)],
)
def test_the_order_of_trainings_is_near_a_full_shuffle(runs: ShuffledRuns, variance: float, correlation: float) -> None:
    """Two cameras of 480x640 with a key frame in 2 or 30 frames, and of 224x224; 180 episodes of 20 s at 30 Hz.

    A full shuffle has a variance of 1 and a correlation of 0, up to the noise of 10,000 batches. Runs of 32 in a buffer
    of 512 have 2.8 and 0.6.
    """
    ends = np.cumsum(np.full(180, 600))
    given = {"length": int(ends[-1]), "batch_size": 32, "shuffle": True, "seed": 1}
    mixed, shuffled = nearness(RunOrder(**given, runs=runs, ends=ends), ends), nearness(BatchOrder(**given), ends)
    assert mixed.once
    assert shuffled.once
    assert mixed.variance < variance
    assert mixed.correlation < correlation
    assert mixed.of_episode < shuffled.of_episode + 0.2


def test_a_buffer_smaller_than_a_run_is_refused() -> None:
    with pytest.raises(RoboCacheError, match="give 1 <= length <= buffer"):
        ShuffledRuns(8, buffer=4)


class OneByOne(TimelineDataset):
    """A dataset that defines its items itself, so that a loader asks for each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index)


class Unreadable(MovingStreams):
    """Episodes of which one cannot be read, and another has a number that is not finite."""

    def read(self, index: int) -> SourceEpisode:
        if index == 1:
            raise OSError("shard-1: damaged")
        episode = super().read(index)
        if index == 3:
            values = episode.streams["joints"].values
            assert isinstance(values, np.ndarray)
            values[-1, 1] = np.nan
        return episode


def wanted(count: int, first: int = 0) -> list[list[int]]:
    return [[number, number, 0, 0] for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("images", "marks", "window"),
    [
        ("", True, Window()),
        ("jpeg", True, Window()),
        ("arrays", False, Window(3, 4)),
        ("jpeg", True, Window(2, 5, -3)),
        ("", True, Window(1, 1, 40)),
    ],
)
def test_batches_are_those_of_windows_read_one_by_one(images: str, window: Window, marks: bool) -> None:
    source = MovingStreams(images=images, marks=marks)
    datasets = (kind(source, target_hz=100, window=window) for kind in (TimelineDataset, OneByOne))
    loaders = [TimelineLoader(each, 6, shuffle=ShuffledRuns(4, 8)) for each in datasets]
    found, expected = map(list, loaders)
    assert same(found, expected)
    assert list(found[0]) == list(expected[0])


def test_windows_of_one_episode_are_read_together_and_others_are_not() -> None:
    reader = BatchReader(TimelineDataset(MovingStreams(), target_hz=100, window=Window(2, 3)))
    within = int(reader.dataset.window_ends()[0])  # type: ignore[attr-defined]
    assert reader.load(wanted(within)).together is not None
    assert reader.load(wanted(2, within - 1)).together is None
    assert reader.load(wanted(1)).together is None


def test_windows_of_an_episode_that_cannot_be_read_are_skipped_and_named() -> None:
    source = Unreadable(images="")
    dataset = TimelineDataset(source, target_hz=100, window=Window(2, 3))
    ends = dataset.window_ends()
    loader = TimelineLoader(dataset, 6, shuffle=ShuffledRuns(4, 8), on_error="skip")
    read = sorted(number for batch in loader for number in batch["index"].tolist())
    assert not set(read) & set(range(ends[0], ends[1]))
    assert set(range(ends[0])) <= set(read)
    assert all("shard-1: damaged" in loader.skipped_samples[number] for number in range(ends[0], ends[1]))
    assert any("not finite" in reason for reason in loader.skipped_samples.values())
    assert sorted([*read, *loader.skipped_samples]) == list(range(ends[-1]))


def test_a_window_that_cannot_be_read_is_an_error_that_names_it() -> None:
    dataset = TimelineDataset(Unreadable(images=""), target_hz=100, window=Window(2, 3))
    first = dataset.window_ends()[0]
    with pytest.raises(RoboCacheError, match=f"sample {first}: shard-1: damaged"):
        BatchReader(dataset).load(wanted(3, first))


def test_runs_of_other_lengths_are_mixed_with_those_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = [TimelineLoader(Counting(), 4, shuffle=ShuffledRuns(2, buffer=4), seed=3) for _ in range(2)]
    expected = list(loaders[0])
    pools = []

    class Refusing(SamplePool):
        def add(self, batch: Batch) -> list[int] | None:
            pools.append(self)
            return super().add(batch) if len(pools) % 2 else None

    monkeypatch.setattr(runs, "SamplePool", Refusing)
    found = list(loaders[1])
    assert len(pools) > 2
    assert same(found, expected)
