"""Which samples a batch has."""

from __future__ import annotations

import numpy as np
import pytest

from robocache_ros.datasets.loader.order import BatchOrder, permutation
from robocache_ros.errors import RoboCacheError


def test_the_order_is_fixed_by_seed_and_epoch() -> None:
    assert permutation(8, seed=3, epoch=1).tolist() == [7, 3, 5, 6, 4, 0, 2, 1]


def test_epochs_have_different_orders_of_all_samples() -> None:
    first, second = permutation(100, 0, 0), permutation(100, 0, 1)

    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("length", [7, 12, 13, 16, 25])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_ranks_are_disjoint_complete_and_of_equal_length(length: int, world_size: int, batch_size: int) -> None:
    orders = [BatchOrder(length, batch_size, True, 5, False, rank, world_size) for rank in range(world_size)]
    shares = [order.batches(2) for order in orders]

    assert sorted(int(i) for share in shares for batch in share for i in batch) == list(range(length))
    assert {len(share) for share in shares} == {len(orders[0])}
    assert all(0 < len(batch) <= batch_size for share in shares for batch in share)


def test_drop_last_gives_every_rank_full_batches() -> None:
    shares = [BatchOrder(13, 2, drop_last=True, rank=rank, world_size=3).batches(0) for rank in range(3)]

    assert [[len(batch) for batch in share] for share in shares] == [[2, 2]] * 3


def test_ranks_that_cannot_have_equally_many_batches_are_refused() -> None:
    with pytest.raises(RoboCacheError, match="drop_last"):
        BatchOrder(5, 1, world_size=2)


def test_an_empty_dataset_has_no_batches() -> None:
    assert BatchOrder(0, 4).batches(0) == []
