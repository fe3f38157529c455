"""Workers read the first batches of the next epoch while the last ones of an epoch are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_episodes import Counting, order_of

from robocache_ros.datasets import Augmentation, ShuffledRuns, TimelineLoader
from robocache_ros.datasets.loader import prefetch as batch_prefetch
from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.worker_pool import Slot
from robocache_ros.errors import RoboCacheError
from test.datasets.small import loader_of, same

# A pool of workers by which tests see what is requested.


class FastPool:
    """A `WorkerPool` whose workers are in this process, and so fast that a batch is read as soon as it is requested."""

    replaced = 0

    def __init__(self, reader: BatchReader, workers: int, slots: Sequence[Slot]) -> None:
        self.requested: list[tuple[int, list[int]]] = []  # the epoch and the samples of each batch
        self._reader, self.free = reader, deque(slots)
        self.done: dict[int, tuple[Description, Slot] | RoboCacheError] = {}

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        self.requested.append((epoch, [sample[0] for sample in samples]))
        slot = self.free.popleft()
        try:
            loaded = self._reader.load(samples, epoch)
            if loaded.description.nbytes > slot.nbytes:
                slot.grow(loaded.description.nbytes)
            self.done[number] = self._reader.write(loaded, slot.memory.numpy()), slot
        except RoboCacheError as error:
            self.done[number] = error
            self.release(slot)

    def result(self, number: int) -> tuple[Description, Slot]:
        outcome = self.done.pop(number)
        if isinstance(outcome, RoboCacheError):
            raise outcome
        return outcome

    def discard(self, number: int) -> None:
        with suppress(RoboCacheError):
            self.release(self.result(number)[1])

    def release(self, slot: Slot) -> None:
        self.free.append(slot)

    def close(self) -> None:
        self.done.clear()


def pool_of(loader: TimelineLoader) -> FastPool:
    pool = loader._prefetcher.pool
    assert isinstance(pool, FastPool)
    return pool


AHEAD = 4  # batches: two for each of two workers
BATCHES = 5  # of an epoch
WHOLE = BATCHES + AHEAD  # requests of an epoch, with what is read ahead of the next one
ORDER = {"batch_size": 3, "shuffle": True, "seed": 7}


class EveryEpoch(Counting):
    """Other items in each epoch. From epoch 1 on, some cannot be read."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = Counting(broken=self.broken if self.epoch else ())[index]
        return {**item, "proprio": item["proprio"] + np.float32(100 * self.epoch)}


@pytest.fixture(autouse=True, scope="module")
def _fast_pool() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_prefetch, "WorkerPool", FastPool)
        yield


def requests_of(*epochs: int) -> list[tuple[int, list[int]]]:
    loader, found = loader_of(Counting(), **ORDER), []
    for epoch in epochs:
        loader.set_epoch(epoch)
        found += [(epoch, numbers) for numbers in order_of(list(loader))]
    return found


def test_the_next_epoch_is_read_ahead_and_used(counting):
    loader = loader_of(counting, workers=2, **ORDER)
    first = order_of(list(islice(loader, BATCHES)))
    assert pool_of(loader).requested == requests_of(0, 1)[: WHOLE - 1]  # with the last batch of the epoch
    loader.set_epoch(1)
    orders = [first, *(order_of(list(loader)) for _ in range(2))]
    assert [batch for order in orders for batch in order] == [numbers for _, numbers in requests_of(0, 1, 2)]
    assert pool_of(loader).requested == requests_of(0, 1, 2, 3)[: 3 * BATCHES + AHEAD]


def test_runs_of_the_next_epoch_are_read_ahead(counting):
    loader = loader_of(counting, 3, shuffle=ShuffledRuns(2, buffer=4), workers=2)
    list(loader)
    before = len(pool_of(loader).requested)
    list(loader)
    assert [epoch for epoch, _ in pool_of(loader).requested[before - AHEAD + 1 : before]] == [1] * (AHEAD - 1)
    assert sorted(chain(*(run for epoch, run in pool_of(loader).requested if epoch == 1))) == list(range(13))


@pytest.mark.parametrize(
    ("between", "requested"),
    [
        (lambda loader: list(loader) and loader.set_epoch(5), [(0, 0, WHOLE), (5, 0, WHOLE)]),
        (
            lambda loader: list(loader) and loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 2}),
            [(0, 0, WHOLE), (0, 2, WHOLE)],
        ),
        (lambda loader: next(iter(loader)), [(0, 0, AHEAD), (1, 0, WHOLE)]),  # an epoch that is left
    ],
    ids=["set_epoch", "resumed", "left"],
)
def test_what_was_read_ahead_is_discarded_where_another_place_comes_next(between, requested, counting):
    loader = loader_of(counting, workers=2, **ORDER)
    between(loader)
    list(loader)
    expected = [each for epoch, first, stop in requested for each in requests_of(epoch, epoch + 1)[first:stop]]
    assert pool_of(loader).requested == expected


def test_an_unreadable_sample_of_the_next_epoch_raises_in_that_epoch():
    loader = loader_of(EveryEpoch(broken=(5,)), workers=2, **ORDER)
    assert len(list(loader)) == BATCHES
    with pytest.raises(RoboCacheError, match="sample 5: shard-5"):
        list(loader)


def test_without_workers_nothing_is_read_ahead(counting):
    loader = loader_of(counting, **ORDER)
    list(loader)
    counting.broken = tuple(range(13))
    with pytest.raises(RoboCacheError, match="is damaged"):
        next(iter(loader))


def test_a_cache_reads_nothing_ahead(counting):
    loader = loader_of(counting, workers=2, cache="host", **ORDER)
    list(loader)
    list(loader)
    assert [numbers for _, numbers in pool_of(loader).requested] == [list(range(13))]


def test_a_dataset_with_fewer_samples_than_a_batch_has_no_epochs_to_read(counting):
    loader = loader_of(counting, 14, drop_last=True, workers=2)
    assert list(loader) == list(loader) == []
    assert pool_of(loader).requested == []


ACTIONS = st.lists(
    st.one_of(
        st.just(("epoch", 0)),
        st.tuples(st.just("leave"), st.integers(1, BATCHES)),
        st.tuples(st.just("set_epoch"), st.integers(0, 3)),
        st.tuples(st.just("resume"), st.integers(0, BATCHES)),
    ),
    max_size=8,
)


def run(loader: TimelineLoader, action: str, argument: int) -> list[dict[str, Any]]:
    """Do something with a loader, and return the batches that it gives."""
    if action == "set_epoch":
        loader.set_epoch(argument)
    elif action == "resume":
        loader.load_state_dict({**loader.state_dict(), "position": min(argument, len(loader))})
    elif action == "epoch":
        return list(loader)
    else:
        return list(islice(loader, argument))
    return []


@settings(max_examples=50)
@given(ACTIONS, st.sampled_from([3, 7, 13]), st.sampled_from([True, ShuffledRuns(2, buffer=4)]), st.integers(1, 6))
def test_whatever_is_done_the_batches_are_those_without_workers(actions, size, shuffle, prefetch):
    order = {"shuffle": shuffle, "on_error": "skip", "augmentation": Augmentation(noise={"proprio": 0.1})}
    separate, loader = (
        loader_of(EveryEpoch(broken=(5,)), size, **order, workers=workers, prefetch=prefetch) for workers in (0, 2)
    )
    for action, argument in actions:
        assert same(run(loader, action, argument), run(separate, action, argument))
        assert loader.state_dict() == separate.state_dict()
        pool, prefetcher = pool_of(loader), loader._prefetcher
        assert len(pool.done) <= prefetch  # read, and not yet handed out
        assert len(pool.done) + len(pool.free) + prefetcher._borrowed == len(prefetcher.slots)  # no block is lost
    loader.close()
    separate.close()
