"""The small tensors of samples that wait for their batch are in one tensor for each key."""

from __future__ import annotations

import pytest
import torch
from counting_episodes import Counting

from robocache_ros.datasets import ShuffledRuns, TimelineLoader
from robocache_ros.datasets.loader import runs
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.runs import ROW_BYTES, SamplePool


def batch(first: int, count: int, ticks: int = 2, width: int = 3) -> Batch:
    values = torch.arange(first, first + count).float()[:, None, None].expand(count, ticks, width).contiguous()
    images = torch.zeros((count, ticks, ROW_BYTES), dtype=torch.uint8)
    samples, lengths = tuple(range(first, first + count)), (ticks,) * count
    return Batch({"values": values, "images": images}, samples, lengths, frozenset({"values", "images"}), {})


def test_slots_are_reused_and_more_are_made_only_when_all_are_taken() -> None:
    pool = SamplePool(batch(0, 4))

    first, second = pool.add(batch(0, 4)), pool.add(batch(4, 4))
    assert first is not None
    assert second is not None
    pool.free(first)
    third = pool.add(batch(8, 3))

    assert sorted(first + second) == list(range(8))
    assert third is not None
    assert set(third) <= set(first)
    assert pool.tensors["values"].shape == (8, 2, 3)
    assert pool.tensors["values"][second][:, 0, 0].tolist() == [4, 5, 6, 7]
    assert pool.tensors["values"][third][:, 0, 0].tolist() == [8, 9, 10]


def test_large_tensors_and_other_shapes_are_not_in_the_pool() -> None:
    pool = SamplePool(batch(0, 4))

    assert set(pool.tensors) == {"values"}
    assert pool.keys == ("values", "images")
    assert pool.add(batch(0, 4, ticks=3)) is None
    assert pool.add(batch(0, 4, width=2)) is None


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
    for one, other in zip(found, expected, strict=True):
        assert all(value.equal(other[key]) for key, value in one.items() if isinstance(value, torch.Tensor))
