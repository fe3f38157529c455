"""Batches of a loader in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_episodes import Counting, order_of, same

from robocache_ros.datasets import Augmentation, LoaderOptions, TimelineLoader
from robocache_ros.datasets.loader.order import BatchOrder, permutation
from robocache_ros.errors import RoboCacheError


def test_a_batch_has_the_values_of_its_samples_and_marks_the_padding(counting: Counting) -> None:
    batch = next(iter(TimelineLoader(counting, 4)))

    assert batch["proprio"].shape == (4, 4, 3)
    assert batch["vision"].shape == (4, 4, 2, 8, 6, 3)
    assert batch["length"].tolist() == [1, 2, 3, 4]
    assert batch["language"] == ["task 0", "task 1", "task 2", "task 3"]
    assert batch["padding"].tolist() == [[tick >= length for tick in range(4)] for length in (1, 2, 3, 4)]
    for row in range(4):
        item = counting[row]
        assert np.array_equal(batch["proprio"][row, : row + 1], item["proprio"])
        assert np.array_equal(batch["vision"][row, : row + 1], item["vision"])
        assert not batch["proprio"][row, row + 1 :].any()
        assert not batch["valid"][row, row + 1 :].any()


def test_the_end_of_a_with_statement_ends_the_workers(counting: Counting) -> None:
    with TimelineLoader(counting, 4, workers=1) as loader:
        assert len(list(loader)) == len(loader)
        assert loader.worker_pids

    assert loader.worker_pids == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noise", {"augmentation": Augmentation(noise={"propio": 0.1})}),
        ("statistics", {"statistics": {"propio": {"mean": [0.0] * 3, "std": [1.0] * 3}}}),
    ],
)
def test_a_key_that_batches_lack_is_refused(name: str, options: dict[str, Any], counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match=f"{name}: 'propio' is not one of .*; did you mean 'proprio'"):
        next(iter(TimelineLoader(counting, 4, **options)))


def test_concatenated_samples_have_offsets_and_no_padding(counting: Counting) -> None:
    padded, joined = (
        next(iter(TimelineLoader(counting, 5, options=LoaderOptions(ragged=form)))) for form in ("pad", "concat")
    )

    assert joined["offsets"].tolist() == [0, 1, 3, 6, 10, 15]
    for key in ("proprio", "vision", "valid", "tick_ns"):
        assert joined[key].equal(padded[key][~padded["padding"]])


@pytest.mark.parametrize("name", ["rows", "extra/rows", "0/values/rows"])
def test_an_array_may_have_any_name(name: str) -> None:
    samples = [{name: torch.full((2 + index, 3), index + 1.0)} for index in range(2)]

    batch = next(iter(TimelineLoader(samples, 2)))

    assert batch[name].tolist() == [[[1.0] * 3, [1.0] * 3, [0.0] * 3], [[2.0] * 3] * 3]


def test_windows_cut_episodes_into_complete_parts(counting: Counting) -> None:
    batches = list(TimelineLoader(counting, 100, options=LoaderOptions(windows=(3, 2))))

    assert len(batches) == 1
    assert batches[0]["proprio"].shape == (9, 3, 3)
    assert np.array_equal(batches[0]["proprio"][3], counting[4]["proprio"][2:5])


def test_iterating_twice_gives_two_epochs_and_set_epoch_repeats_one(counting: Counting) -> None:
    loader = TimelineLoader(counting, 4, shuffle=True)

    first, second = list(loader), list(loader)
    loader.set_epoch(0)

    assert order_of(first) != order_of(second)
    assert same(list(loader), first)
    assert len(loader) == len(first) == 4


def test_an_epoch_that_was_left_is_followed_by_the_next_one(counting: Counting) -> None:
    left, complete = (TimelineLoader(counting, 4, shuffle=True, seed=1) for _ in range(2))

    next(iter(left))
    list(complete)

    assert same(list(left), list(complete))


@pytest.mark.parametrize("seen", [0, 1, 3, 4])
def test_a_resumed_loader_continues_with_the_very_next_sample(counting: Counting, seen: int) -> None:
    undisturbed = TimelineLoader(counting, 4, shuffle=True, seed=2)
    expected = [*undisturbed, *undisturbed]
    first, resumed = (TimelineLoader(counting, 4, shuffle=True, seed=2) for _ in range(2))
    batches = iter(first)
    for _ in range(seen):
        next(batches)

    resumed.load_state_dict(first.state_dict())

    assert same([*resumed, *resumed], expected[seen:])


def test_a_state_of_another_order_is_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="batch_size is 4, here 5"):
        TimelineLoader(counting, 5).load_state_dict(TimelineLoader(counting, 4).state_dict())


def test_a_damaged_episode_raises_with_its_number_and_file() -> None:
    loader = TimelineLoader(Counting(broken=(5,)), 4)

    with pytest.raises(RoboCacheError, match=r"sample 5: shard-5\.tfrecord: record 3 is damaged"):
        list(loader)


def test_a_column_with_nan_raises_with_its_name() -> None:
    with pytest.raises(RoboCacheError, match="sample 2: proprio: row 2, column 1 is not finite"):
        list(TimelineLoader(Counting(nan=(2,)), 4))


@pytest.mark.parametrize("cache", ["none", "host"])
def test_skipped_samples_are_left_out_counted_and_named(cache: str) -> None:
    loader = TimelineLoader(Counting(broken=(5,), nan=(6,)), 4, on_error="skip", cache=cache)

    assert order_of(list(loader)) == [[0, 1, 2, 3], [4, 7], [8, 9, 10, 11], [12]]
    assert loader.skipped == 2
    assert loader.skipped_samples[5] == "shard-5.tfrecord: record 3 is damaged"


@pytest.mark.parametrize("cache", ["none", "host"])
def test_an_epoch_without_a_readable_sample_raises(cache: str) -> None:
    loader = TimelineLoader(Counting(3, broken=(0, 1, 2)), 2, on_error="skip", cache=cache)

    with pytest.raises(RoboCacheError, match="no sample can be read"):
        list(loader)


@pytest.mark.parametrize("cache", ["host", "device", "auto"])
@pytest.mark.parametrize("windows", [None, (2, 1)])
def test_a_cache_changes_nothing_but_where_batches_come_from(cache: str, windows: tuple[int, int] | None) -> None:
    dataset, read = Counting(), TimelineLoader(Counting(), 4, shuffle=True, options=LoaderOptions(windows=windows))
    cached = TimelineLoader(dataset, 4, shuffle=True, options=LoaderOptions(windows=windows), cache=cache)

    assert same([*cached, *cached], [*read, *read])
    dataset.broken = tuple(range(13))
    assert same(list(cached), list(read))


def test_a_cache_leaves_out_the_same_samples_of_windows() -> None:
    read, cached = (
        TimelineLoader(
            Counting(nan=(4, 6)), 4, shuffle=True, options=LoaderOptions(windows=(2, 1)), on_error="skip", cache=cache
        )
        for cache in ("none", "host")
    )

    assert same([*cached, *cached], [*read, *read])
    assert cached.skipped_samples == read.skipped_samples


def test_a_cache_states_where_it_is_and_why(counting: Counting, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        list(TimelineLoader(counting, 4, cache="auto"))

    assert "cache: on cpu, because of 0.00 GiB expected of 13 items" in caplog.text


def test_a_cache_that_does_not_fit_is_an_error_only_if_it_was_demanded(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: 1000)

    with pytest.raises(RoboCacheError, match="use cache='auto' or 'none'"):
        list(TimelineLoader(counting, 4, cache="host"))
    assert same(list(TimelineLoader(counting, 4, cache="auto")), list(TimelineLoader(counting, 4)))


def test_a_batch_over_the_limit_is_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="use a smaller batch_size"):
        list(TimelineLoader(counting, 4, options=LoaderOptions(max_batch_bytes=1000)))


def test_batches_that_are_kept_do_not_change_while_others_are_read() -> None:
    kept = list(TimelineLoader(Counting(), 2))

    for batch in kept:
        assert batch["proprio"][:, 0, 0].tolist() == batch["index"].tolist()


def test_the_memory_of_batches_that_are_gone_is_used_again() -> None:
    loader = TimelineLoader(Counting(), 2)
    places = {batch["proprio"].untyped_storage().data_ptr() for batch in loader}

    assert len(places) <= 3


def test_repr_states_the_bound_of_the_host_memory(counting: Counting) -> None:
    assert "2 batches, host memory 0.0 MiB in 3 blocks of at most 1024 MiB" in repr(TimelineLoader(counting, 7))


@pytest.mark.slow
def test_ten_thousand_batches_leave_memory_flat() -> None:
    loader = TimelineLoader(Counting(1000), 2, shuffle=True)
    used = []
    for _ in range(20):
        for batch in loader:
            assert isinstance(batch["proprio"], torch.Tensor)
        used.append(memory_bytes())

    assert max(used[5:]) - min(used[5:]) < 2**21


def memory_bytes() -> int:
    """The memory of this process without files; a system that is short of it swaps some out."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(1024 * int(fields[name].removesuffix(" kB")) for name in ("RssAnon", "RssShmem", "VmSwap"))


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
