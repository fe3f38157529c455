"""Runs of samples in a random order, mixed in a buffer."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from counting_episodes import Counting, order_of, same

from robocache_ros.datasets import LoaderOptions, ShuffledRuns, TimelineLoader
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS
from robocache_ros.datasets.loader.runs import RunOrder
from robocache_ros.errors import RoboCacheError

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
    alone = list(TimelineLoader(Counting(), 4, **MIXED))

    assert same(list(TimelineLoader(Counting(), 4, **MIXED, **options)), alone)
    assert order_of(alone) != [sorted(batch) for batch in order_of(alone)]


def test_whole_episodes_have_their_values_and_padding() -> None:
    episodes = [batch["proprio"][0] for batch in TimelineLoader(Counting(), 1)]

    for batch in TimelineLoader(Counting(), 4, shuffle=RUNS):
        for row, index in enumerate(batch["index"].tolist()):
            length = int(batch["length"][row])
            assert batch["proprio"][row, :length].equal(episodes[index])
            assert not batch["proprio"][row, length:].any()
            assert (batch["tick_ns"][row, length:] == ABSENT_STAMP_NS).all()
            assert batch["language"][row] == f"task {index}"


@pytest.mark.parametrize("seen", [0, 1, 4])
def test_a_resumed_loader_continues_with_the_very_next_sample(seen: int) -> None:
    whole = list(TimelineLoader(Counting(), 4, **MIXED))
    first, second = (TimelineLoader(Counting(), 4, **MIXED) for _ in range(2))
    iterator = iter(first)
    for _ in range(seen):
        next(iterator)

    second.load_state_dict(first.state_dict())

    assert same(list(second), whole[seen:])


def test_a_state_of_other_runs_is_refused() -> None:
    state = TimelineLoader(Counting(), 4, **MIXED).state_dict()

    with pytest.raises(RoboCacheError, match=r"state: runs is \[4, 8\], here None"):
        TimelineLoader(Counting(), 4, **{**MIXED, "shuffle": True}).load_state_dict(state)


def test_samples_that_cannot_be_read_are_left_out_counted_and_named() -> None:
    loader = TimelineLoader(Counting(nan=(4,)), 4, **MIXED, on_error="skip")
    numbers = chain(*order_of(list(loader)))

    assert sorted(numbers) == [number for number in range(len(loader._samples)) if number not in (6, 7, 8, 9)]
    assert loader.skipped == 4


def test_a_buffer_smaller_than_a_run_is_refused() -> None:
    with pytest.raises(RoboCacheError, match="give 1 <= length <= buffer"):
        ShuffledRuns(8, buffer=4)
