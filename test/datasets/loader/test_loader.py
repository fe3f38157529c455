"""Batches of a loader in one process: values, order, caches, normalisation and random changes."""

from __future__ import annotations

import pickle
import re
from itertools import chain, islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_episodes import CHANGED, CHANGES, Counting, MovingStreams, order_of

from benchmarks.training.order import nearness
from robocache_ros import normalize_image
from robocache_ros.datasets import Augmentation, ShuffledRuns, TimelineDataset, Window, create_rtx_dataloader
from robocache_ros.datasets.loader import cache as window_cache
from robocache_ros.datasets.loader import timeline_loader
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.order import CROP, BatchOrder, permutation, philox, random_words
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.timeline_loader import RunOrder, SamplePool
from robocache_ros.errors import RoboCacheError
from test.datasets.small import first_batch, loader_of, same


def test_a_batch_has_the_values_of_its_samples_and_marks_the_padding(counting):
    batch = first_batch(counting)
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


def test_concatenated_samples_have_offsets_and_no_padding(counting):
    padded, joined = (first_batch(counting, 5, ragged=form) for form in ("pad", "concat"))
    assert joined["offsets"].tolist() == [0, 1, 3, 6, 10, 15]
    for key in ("proprio", "vision", "valid", "tick_ns"):
        assert joined[key].equal(padded[key][~padded["padding"]])


@pytest.mark.parametrize("name", ["rows", "extra/rows", "0/values/rows"])
def test_an_array_may_have_any_name(name):
    samples = [{name: torch.full((2 + index, 3), index + 1.0)} for index in range(2)]
    batch = first_batch(samples, 2)
    assert batch[name].tolist() == [[[1.0] * 3, [1.0] * 3, [0.0] * 3], [[2.0] * 3] * 3]


def test_iterating_twice_gives_two_epochs_and_set_epoch_repeats_one(counting):
    loader = loader_of(counting, 4, shuffle=True)
    first, second = list(loader), list(loader)
    loader.set_epoch(0)
    assert order_of(first) != order_of(second)
    assert same(list(loader), first)
    assert len(loader) == len(first) == 4


RUNS = ShuffledRuns(4, buffer=8)
ROOM_BYTES = 30_000  # for the first ones of the five episodes of `MovingStreams`


@pytest.mark.parametrize("seen", [0, 1, 3, 4, 7])
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Counting(), {"shuffle": True, "seed": 2}),
        (Counting(), {"shuffle": RUNS, "seed": 5, "windows": (2, 1)}),
        (TimelineDataset(MovingStreams(), window=Window(3, 5, 1)), {"shuffle": RUNS, "cache": "auto"}),
    ],
    ids=["shuffled", "runs", "partly cached"],
)
def test_a_resumed_loader_continues_with_the_very_next_sample(dataset, options, seen, monkeypatch):
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: ROOM_BYTES)
    undisturbed, first, resumed = (loader_of(dataset, 4, **options) for _ in range(3))
    expected = [*undisturbed, *undisturbed]
    taken = min(seen, len(first))
    list(islice(first, taken))
    resumed.load_state_dict(first.state_dict())
    assert same([*resumed, *resumed], expected[taken:])


@pytest.mark.parametrize(
    ("size", "shuffle", "problem"),
    [(5, RUNS, "batch_size is 4, here 5"), (4, True, r"state: runs is \[4, 8\], here None")],
)
def test_a_state_of_another_order_is_refused(size, shuffle, problem, counting):
    state = loader_of(counting, 4, shuffle=RUNS).state_dict()
    with pytest.raises(RoboCacheError, match=problem):
        loader_of(counting, size, shuffle=shuffle).load_state_dict(state)


PROPIO = "'propio' is not one of .*; did you mean 'proprio'"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "options", "problem"),
    [
        (Counting(broken=(5,)), {}, r"sample 5: shard-5\.tfrecord: record 3 is damaged"),
        (Counting(nan=(2,)), {}, "sample 2: proprio: row 2, column 1 is not finite"),
        (Counting(3, broken=(0, 1, 2)), {"on_error": "skip"}, "no sample can be read"),
        (Counting(3, broken=(0, 1, 2)), {"on_error": "skip", "cache": "host"}, "no sample can be read"),
        (Counting(), {"max_batch_bytes": 1000}, "use a smaller batch_size"),
        (Counting(), {"augmentation": Augmentation(noise={"propio": 0.1})}, f"noise: {PROPIO}"),
        (Counting(), {"statistics": {"propio": {"mean": [0.0] * 3, "std": [1.0] * 3}}}, f"statistics: {PROPIO}"),
        (Counting(), {"statistics": {"proprio": {"mean": [0.0], "std": [1.0]}}}, "statistics: proprio"),
        (Counting(), {"augmentation": Augmentation(crop=(9, 4))}, "choose a smaller part"),
        (Counting(), {"align_on": "gpu"}, "align_on: 'gpu' is not one of auto, device, workers"),
        (Counting(), {"jpeg": "gpu"}, "jpeg: gpu needs a CUDA device"),
    ],
)
def test_what_is_wrong_is_named_also_by_workers(dataset, options, problem, workers):
    with pytest.raises(RoboCacheError, match=problem):
        list(loader_of(dataset, 4, workers=workers, **options))


@pytest.mark.parametrize("options", [{}, {"cache": "host"}, {"workers": 1}], ids=str)
def test_skipped_samples_are_left_out_counted_and_named(options):
    loader = loader_of(Counting(broken=(5,), nan=(6,)), 4, on_error="skip", **options)
    assert order_of(list(loader)) == [[0, 1, 2, 3], [4, 7], [8, 9, 10, 11], [12]]
    assert loader.skipped == 2
    assert loader.skipped_samples[5] == "shard-5.tfrecord: record 3 is damaged"


@pytest.mark.parametrize("shuffle", [True, RUNS], ids=str)
@pytest.mark.parametrize("cache", ["host", "device", "auto"])
@pytest.mark.parametrize("windows", [None, (2, 1)])
def test_a_cache_changes_nothing_but_where_batches_come_from(cache, windows, shuffle):
    dataset, read = Counting(), loader_of(Counting(), shuffle=shuffle, windows=windows)
    cached = loader_of(dataset, shuffle=shuffle, windows=windows, cache=cache)
    assert same([*cached, *cached], [*read, *read])
    dataset.broken = tuple(range(13))
    assert same(list(cached), list(read))


@pytest.mark.parametrize("shuffle", [True, RUNS], ids=str)
def test_windows_of_samples_that_cannot_be_read_are_left_out_also_of_a_cache(shuffle):
    options = {"shuffle": shuffle, "seed": 5, "windows": (2, 1), "on_error": "skip"}
    read, cached = (loader_of(Counting(nan=(4, 6)), cache=cache, **options) for cache in ("none", "host"))
    batches = [*read, *read]
    assert same([*cached, *cached], batches)
    assert cached.skipped_samples == read.skipped_samples
    assert (sorted(read.skipped_samples), read.skipped) == ([6, 7, 8, 9, 10], 10)
    kept = [number for number in range(len(read._samples)) if number not in read.skipped_samples]
    assert sorted(chain(*order_of(batches))) == sorted(2 * kept)


def test_a_cache_states_where_it_is_and_why(counting, caplog):
    with caplog.at_level("INFO"):
        list(loader_of(counting, 4, cache="auto"))
    assert "cache: on cpu, because of 0.00 GiB expected of 13 items" in caplog.text


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [(Counting(), "13 items"), (TimelineDataset(MovingStreams(), window=Window(3, 5, 1)), "66 ticks")],
)
def test_a_cache_that_does_not_fit_is_an_error_only_if_it_was_demanded(dataset, expected, monkeypatch):
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: 1000)
    problem = rf"cache: 0\.00 GiB expected of {expected}, 0\.0 GiB may be used on cpu; use cache='auto' or 'none'"
    with pytest.raises(RoboCacheError, match=problem):
        list(loader_of(dataset, 4, cache="host"))
    assert same(list(loader_of(dataset, 4, cache="auto")), list(loader_of(dataset, 4)))


def test_the_memory_of_batches_that_are_gone_is_used_again():
    loader = loader_of(Counting(), 2)
    assert "7 batches, host memory 0.0 MiB in 3 blocks of at most 1024 MiB" in repr(loader)
    places = {batch["proprio"].untyped_storage().data_ptr() for batch in loader}
    assert len(places) <= 3


@pytest.mark.slow
def test_ten_thousand_batches_leave_memory_flat():
    loader = loader_of(Counting(1000), 2, shuffle=True)
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


def test_the_order_is_fixed_by_seed_and_epoch():
    assert permutation(8, seed=3, epoch=1).tolist() == [7, 3, 5, 6, 4, 0, 2, 1]


def test_drop_last_gives_every_rank_full_batches():
    shares = [BatchOrder(13, 2, drop_last=True, rank=rank, world_size=3).batches(0) for rank in range(3)]
    assert [[len(batch) for batch in share] for share in shares] == [[2, 2]] * 3
    assert BatchOrder(0, 4).batches(0) == []
    with pytest.raises(RoboCacheError, match="drop_last"):  # the ranks cannot have equally many batches
        BatchOrder(5, 1, world_size=2)


# The loader with the datasets of this package.


def test_the_loader_of_a_real_rlds_dataset_has_its_samples(real):
    loader = create_rtx_dataloader(real / "rlds_bridge", 2, split="val", device="cpu", workers=1, shuffle=False)
    batch = next(iter(loader))
    expected = loader.dataset[0]
    for key in ("vision", "proprio", "actions", "fused", "valid"):
        assert batch[key][0, : expected["length"]].equal(expected[key]), key
    assert batch["language"][0] == expected["language"]


@pytest.mark.parametrize("window", [None, Window(n_obs=3, horizon=3, action_offset=1)])
def test_batches_have_the_bits_of_the_dataset(window):
    dataset = TimelineDataset(MovingStreams(), window=window)
    for batch in loader_of(dataset, 4, shuffle=True):
        for row, index in enumerate(batch["index"].tolist()):
            item = dataset[index]
            length = item.pop("length")
            assert batch["language"][row] == item.pop("language")
            assert batch["length"][row] == length
            for key, value in item.items():
                found = batch[key][row]
                assert (found[: len(value)] if value.ndim else found).equal(value), key


def test_windows_in_order_read_each_episode_once(monkeypatch):
    source = MovingStreams(images="")
    read = Mock(wraps=source.read)
    monkeypatch.setattr(source, "read", read)
    list(loader_of(TimelineDataset(source, window=Window(n_obs=2)), 4))
    assert [each.args for each in read.call_args_list] == [(index,) for index in range(5)]


def test_a_dataset_is_pickled_without_the_episode_that_it_keeps():
    dataset = TimelineDataset(MovingStreams(images=""), window=Window())
    before = len(pickle.dumps(dataset))
    dataset[0]
    assert len(pickle.dumps(dataset)) < before + 100  # the numbers of windows


def test_invalid_actions_stay_zero_when_normalised():
    statistics = {"actions": {"mean": [5.0] * 3, "std": [2.0] * 3}}
    statistics["fused"] = {"mean": [5.0] * 3 + [0.0] * 7, "std": [2.0] * 3 + [1.0] * 7}
    dataset = TimelineDataset(MovingStreams(images=""))
    plain, scaled = (first_batch(dataset, 5, statistics=each) for each in (None, statistics))
    invalid = plain["valid"][..., 0] == 0
    assert invalid[0, :3].all()
    assert not scaled["actions"][invalid].any()
    assert not scaled["fused"][..., :3][invalid].any()
    assert scaled["actions"][~invalid].equal((plain["actions"][~invalid] - 5) / 2)


def test_a_dropped_stream_loses_its_columns_only():
    dataset = TimelineDataset(MovingStreams(images=""))
    plain, changed = (first_batch(dataset, 5, augmentation=each) for each in (None, Augmentation(dropout=0.5)))
    kept = (changed["valid"] > 0).any(dim=1)
    assert {tuple(row) for row in kept[:, :2].tolist()} > {(True, False)}
    for row in range(5):
        for stream, columns in ((0, slice(3)), (1, slice(3, 5)), (2, slice(5, 9)), (4, slice(9, 10))):
            expected = plain["fused"][row, :, columns] * kept[row, stream]
            assert changed["fused"][row, :, columns].equal(expected)


# A cache of windows keeps each tick once, and its batches have the bits of those that are read.

WINDOWS = [Window(), Window(3, 5, 1), Window(2, 2, -1, n_images=1), Window(40, 1, 30), Window(3, 2, n_images=2)]


@pytest.fixture
def short_reads(monkeypatch) -> None:
    """Episodes of the tests have 8 to 18 ticks: they are read in several parts."""
    monkeypatch.setattr(window_cache, "TICKS_PER_READ", 5)
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.WHOLE_READ", Window(5, 5, -4))


def epochs(dataset: Any, **options: Any) -> list[dict[str, Any]]:
    loader = loader_of(dataset, 4, **{"shuffle": True, "seed": 1, **options})
    return [*loader, *loader]


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize(
    ("window", "marks", "images", "align_on"),
    [
        *((window, True, "arrays", "device") for window in WINDOWS),
        (WINDOWS[1], False, "", "device"),
        (WINDOWS[1], False, "png", "workers"),
        (WINDOWS[2], True, "png", "device"),
        (WINDOWS[2], True, "png", "workers"),
        (WINDOWS[4], False, "jpeg", "device"),
    ],
)
def test_cached_windows_have_the_bits_of_windows_that_are_read(window, marks, images, align_on):
    dataset = TimelineDataset(MovingStreams(3, images, marks=marks), window=window)
    cached = epochs(dataset, align_on=align_on, cache="host")
    assert same(cached, epochs(dataset, align_on=align_on))


@pytest.mark.parametrize("align_on", ["device", "workers"])
@pytest.mark.parametrize("images", ["arrays", "png"])
@pytest.mark.parametrize("shuffle", [True, RUNS], ids=str)
def test_windows_have_images_of_their_newest_ticks_only(align_on, images, shuffle):
    options, source = {"align_on": align_on, "shuffle": shuffle}, MovingStreams(3, images)
    windows = (Window(3, 2), Window(3, 2, n_images=2))
    whole, newest = (epochs(TimelineDataset(source, window=window), **options) for window in windows)
    cameras = [key for key in whole[0] if key.partition("/")[0] == "vision"]
    assert cameras
    for batch in whole:
        batch.update({key: batch[key][:, 1:] for key in cameras})
    assert same(newest, whole)


@pytest.mark.parametrize("count", [0, 3])
def test_a_window_without_images_or_with_more_than_ticks_is_refused(count):
    with pytest.raises(RoboCacheError, match="n_images is from 1 to n_obs"):
        Window(2, n_images=count)


@pytest.fixture
def half(monkeypatch) -> None:
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: ROOM_BYTES)


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False, RUNS], ids=str)
def test_what_does_not_fit_is_read_in_each_epoch(shuffle, workers, caplog):
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    with caplog.at_level("INFO"):
        cached = epochs(dataset, shuffle=shuffle, cache="auto", workers=workers)
    assert re.search(r"cache: \d+ ticks on cpu and \d+ ticks are read in each epoch, because of 0.00 GiB", caplog.text)
    assert same(cached, epochs(dataset, shuffle=shuffle))


@pytest.mark.usefixtures("half")
def test_a_partly_cached_loader_leaves_out_samples_that_cannot_be_read():
    source = MovingStreams(images="jpeg")
    source.broken = (4,)
    dataset = TimelineDataset(source, window=WINDOWS[1])
    loader = loader_of(dataset, shuffle=True, cache="auto", on_error="skip", align_on="workers")
    seen = [number for batch in loader for number in batch["index"].tolist()]
    assert loader._cached
    assert loader.skipped_samples
    assert min(loader.skipped_samples) >= dataset.window_ends()[3]
    assert sorted([*seen, *loader.skipped_samples]) == list(range(len(dataset)))


@pytest.mark.parametrize("shuffle", [True, RUNS], ids=str)
@pytest.mark.parametrize("before", [3, 20])
def test_a_cache_that_is_filled_later_changes_no_batch(shuffle, before):
    """As for a GPU, whose memory is known when the training has begun."""
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    loader = loader_of(dataset, 4, shuffle=shuffle, cache="auto")
    loader._uncached = before
    found = [*loader, *loader]
    assert loader._cached
    assert same(found, list(chain(*[loader_of(dataset, 4, shuffle=shuffle)] * 2)))


def test_batches_after_which_a_cache_is_filled_are_not_read_ahead(monkeypatch):
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    with loader_of(dataset, 4, shuffle=True, cache="auto", workers=2) as loader:
        loader._uncached, pool = 3, loader._prefetcher.pool
        submit = Mock(wraps=pool.submit)
        monkeypatch.setattr(pool, "submit", submit)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        assert submit.call_count == 3


def test_a_place_that_has_less_than_it_reports_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(window_cache, "_empty", Mock(side_effect=RuntimeError("out of memory")))
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    with caplog.at_level("INFO"):
        assert same(epochs(dataset, cache="auto"), epochs(dataset))
    assert "cache: none, because of 0.00 GiB expected of 66 ticks" in caplog.text
    assert "cpu has not: out of memory" in caplog.text
    with pytest.raises(RoboCacheError, match="cache: out of memory; use cache='auto' or 'none'"):
        epochs(dataset, cache="host")


def test_episodes_of_one_read_and_of_several_have_the_same_bits():
    dataset = TimelineDataset(MovingStreams(2, ""), target_hz=500, window=WINDOWS[1])  # 75 and 100 ticks
    assert same(epochs(dataset, cache="auto", workers=1), epochs(dataset))


def test_changes_of_samples_do_not_reach_the_cache():
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    assert same(epochs(dataset, cache="host", **CHANGED), epochs(dataset, **CHANGED))


def test_each_tick_is_kept_once():
    sizes = []
    for n_obs in (1, 50):
        loader = loader_of(TimelineDataset(MovingStreams(), window=Window(n_obs=n_obs)), 4, cache="host")
        next(iter(loader))
        ((_, _, windows),) = loader._cached
        tables = windows._data[:3]
        sizes.append(sum(tensor.nbytes for table in tables for tensor in table.values()))
    assert sizes[0] == sizes[1]


@pytest.mark.usefixtures("short_reads")
def test_windows_with_a_tick_of_a_damaged_read_are_skipped():
    source = MovingStreams(images="jpeg")
    source.broken = (1,)  # image 1 of both cameras
    dataset = TimelineDataset(source, window=Window(n_obs=2))
    read, cached = (loader_of(dataset, on_error="skip", cache=where, align_on="workers") for where in ("none", "host"))
    seen, kept = ([index for batch in loader for index in batch["index"].tolist()] for loader in (read, cached))
    # Windows 8 to 18 are those of the episode, and a read has 5 ticks. Camera a is damaged in the first, b in the last.
    assert set(cached.skipped_samples) == {8, 9, 10, 11, 12, 13, 18}
    assert set(read.skipped_samples) < set(cached.skipped_samples)
    assert "vision/a: image 1" in cached.skipped_samples[8]
    assert kept == [index for index in seen if index not in cached.skipped_samples]
    assert cached.skipped == 7


# Normalisation and random changes of samples.


def test_values_are_normalised_and_the_padding_stays_zero(counting):
    statistics = {"proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 2.0]}}
    batch = first_batch(counting, 2, statistics=statistics)
    expected = (counting[0]["proprio"] - np.float32([1, 2, 3])) / np.float32([0.5, 1, 2])
    assert np.array_equal(batch["proprio"][0, :1], expected)
    assert not batch["proprio"][0, 1:].any()


def test_images_are_converted_as_by_normalize_image(counting):
    batch = first_batch(counting, 4, image_dtype=torch.bfloat16, image_normalize="imagenet")
    image = torch.from_numpy(counting[3]["vision"]).permute(0, 1, 4, 2, 3).contiguous()
    assert batch["vision"][3].equal(normalize_image(image, "imagenet", torch.bfloat16))


def test_a_sample_has_the_same_changes_in_every_batch_and_rank(counting):
    def changed(**options: Any) -> dict[int, dict[str, torch.Tensor]]:  # of each sample, without padding
        return {
            index: {key: batch[key][row, : batch["length"][row]] for key in ("proprio", "vision", "valid")}
            for batch in loader_of(counting, seed=3, augmentation=CHANGES, **options)
            for row, index in enumerate(batch["index"].tolist())
        }

    together = changed(batch_size=13)
    apart = changed(batch_size=3, shuffle=True)
    ranks = [changed(batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    for found in (apart, ranks[0] | ranks[1]):
        assert found.keys() == together.keys()
        assert all(found[i][key].equal(together[i][key]) for i in found for key in found[i])


@given(
    seed=st.integers(-(2**63), 2**64),
    epoch=st.integers(0, 2**40),
    samples=st.lists(st.integers(0, 2**62), min_size=1),
    count=st.integers(1, 9),
)
def test_random_numbers_of_many_samples_are_those_of_numpy(seed, epoch, samples, count):
    expected = [philox(seed, epoch, CROP, sample).random_raw(count) for sample in samples]
    assert np.array_equal(random_words(seed, epoch, CROP, samples, count), expected)


def test_epochs_and_seeds_have_different_changes(counting):
    loader = loader_of(counting, 13, augmentation=CHANGES)
    other = loader_of(counting, 13, augmentation=CHANGES, seed=1)
    first = list(loader)
    assert not same(first, list(loader))
    assert not same(first, list(other))


def test_noise_has_the_given_deviation_and_leaves_padding_unchanged():
    noise = Augmentation({"proprio": 0.5})
    plain, noisy = (first_batch(Counting(200), 200, augmentation=each) for each in (None, noise))
    added = noisy["proprio"] - plain["proprio"]
    assert not added[plain["padding"]].any()
    assert abs(float(added[~plain["padding"]].std()) - 0.5) < 0.03  # 1,800 numbers: 4 standard errors


def test_a_crop_is_the_same_part_of_all_ticks_and_cameras(counting):
    batch = first_batch(counting, 4, augmentation=Augmentation(crop=(5, 4)))
    images = batch["vision"][3]
    assert images.shape == (4, 2, 5, 4, 3)
    assert (images == images[0, 0]).all()
    top = int(images[0, 0, 0, 0, 0]) - 3  # row y of the images of episode i is i + y
    assert (images[0, 0, :, 0, 0] == torch.arange(5) + top + 3).all()


def test_a_shift_moves_all_ticks_and_cameras_alike_and_repeats_the_edge():
    batch = first_batch(Counting(200), 200, augmentation=Augmentation(shift=2))
    found = set()
    for episode, ticks in enumerate(batch["length"].tolist()):
        images = batch["vision"][episode, :ticks, ..., 0, 0]
        rows = images[0, 0].int() - episode  # row y of the images of episode i is i + y
        found.add(by := int(rows[4]) - 4)
        assert (images == images[0, 0]).all()
        assert rows.tolist() == [min(max(row + by, 0), 7) for row in range(8)]
    assert found == {-2, -1, 0, 1, 2}


def test_brightness_scales_pixels_by_one_factor(counting):
    batch = first_batch(Counting(200), 200, augmentation=Augmentation(brightness=0.5))
    image = batch["vision"][150, 0, 0, :, 0, 0].float()
    factor = float(image[0]) / 150
    assert 0.5 <= factor <= 1.5
    assert (image - factor * torch.arange(150, 158)).abs().max() <= 1  # rounded to whole pixels


# Runs of samples in a random order, mixed in a buffer.

ENDS = np.cumsum([7, 1, 30, 12])


def order(**changes: object) -> RunOrder:
    return RunOrder(**{"length": 50, "batch_size": 6, "runs": RUNS, "ends": ENDS, **changes})


def test_an_epoch_has_every_sample_once_and_another_order_than_the_next():
    epochs = [np.concatenate(order().batches(epoch)).tolist() for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]
    reads = [[run.tolist() for run in order().reads(epoch, [np.arange(50)])] for epoch in range(2)]
    assert reads[0] != reads[1]


def test_a_run_is_consecutive_and_stays_in_its_episode():
    runs = order().reads(0, [np.arange(50)])
    assert sorted(map(len, runs)) == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    for run in runs:
        assert np.array_equal(run, run[0] + np.arange(len(run)))
        assert len(set(np.searchsorted(ENDS, run, "right"))) == 1


def test_a_sample_is_moved_back_by_fewer_places_than_the_buffer():
    read = {number: place for place, number in enumerate(np.concatenate(order().reads(0, [np.arange(50)])).tolist())}
    given = np.concatenate(order().batches(0)).tolist()
    moved = [place - read[number] for place, number in enumerate(given)]
    assert max(moved) <= RUNS.buffer
    assert min(moved) >= -RUNS.buffer
    assert max(map(abs, moved)) > RUNS.length  # mixed with other runs


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_are_disjoint_and_complete_and_read_other_runs(world_size):
    shares = [order(rank=rank, world_size=world_size) for rank in range(world_size)]
    numbers = [np.concatenate(each.batches(1)).tolist() for each in shares]
    assert sorted(chain(*numbers)) == list(range(50))
    assert len({len(each.batches(1)) for each in shares}) == 1
    assert sum(len(each.reads(1, [np.arange(50)])) for each in shares) <= 14 + world_size - 1


def test_whole_episodes_have_their_values_and_padding():
    episodes = [batch["proprio"][0] for batch in loader_of(Counting(), 1)]
    for batch in loader_of(Counting(), 4, shuffle=RUNS):
        for row, index in enumerate(batch["index"].tolist()):
            length = int(batch["length"][row])
            assert batch["proprio"][row, :length].equal(episodes[index])
            assert not batch["proprio"][row, length:].any()
            assert (batch["tick_ns"][row, length:] == ABSENT_STAMP_NS).all()
            assert batch["language"][row] == f"task {index}"


@pytest.mark.parametrize(
    ("runs", "variance", "correlation"),
    [(ShuffledRuns(8, 2330), 1.2, 0.15), (ShuffledRuns(15, 2330), 1.3, 0.25), (ShuffledRuns(8, 8192), 1.1, 0.1)],
)
def test_the_order_of_trainings_is_near_a_full_shuffle(runs, variance, correlation):
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


def test_a_buffer_smaller_than_a_run_is_refused():
    with pytest.raises(RoboCacheError, match="give 1 <= length <= buffer"):
        ShuffledRuns(8, buffer=4)


class OneByOne(TimelineDataset):
    """A dataset that defines its items itself, so that a loader asks for each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index)


class Unreadable(MovingStreams):
    """Episodes of which one cannot be read, and another has a number that is not finite."""

    def read(self, index: int) -> Any:
        if index == 1:
            raise OSError("shard-1: damaged")
        episode = super().read(index)
        if index == 3:
            values = episode.streams["joints"].values
            assert isinstance(values, np.ndarray)
            values[-1, 1] = np.nan
        return episode


def requests(count: int, first: int = 0) -> list[list[int]]:
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
def test_batches_are_those_of_windows_read_one_by_one(images, window, marks):
    source = MovingStreams(images=images, marks=marks)
    datasets = (kind(source, target_hz=100, window=window) for kind in (TimelineDataset, OneByOne))
    loaders = [loader_of(each, 6, shuffle=ShuffledRuns(4, 8)) for each in datasets]
    found, expected = map(list, loaders)
    assert same(found, expected)
    assert list(found[0]) == list(expected[0])


def test_windows_of_one_episode_are_read_together_and_others_are_not():
    reader = BatchReader(TimelineDataset(MovingStreams(), target_hz=100, window=Window(2, 3)))
    within = int(reader.dataset.window_ends()[0])  # type: ignore[attr-defined]
    assert reader.load(requests(within)).together is not None
    assert reader.load(requests(2, within - 1)).together is None
    assert reader.load(requests(1)).together is None


def test_windows_of_an_episode_that_cannot_be_read_are_skipped_and_named():
    source = Unreadable(images="")
    dataset = TimelineDataset(source, target_hz=100, window=Window(2, 3))
    ends = dataset.window_ends()
    loader = loader_of(dataset, 6, shuffle=ShuffledRuns(4, 8), on_error="skip")
    read = sorted(number for batch in loader for number in batch["index"].tolist())
    assert not set(read) & set(range(ends[0], ends[1]))
    assert set(range(ends[0])) <= set(read)
    assert all("shard-1: damaged" in loader.skipped_samples[number] for number in range(ends[0], ends[1]))
    assert any("not finite" in reason for reason in loader.skipped_samples.values())
    assert sorted([*read, *loader.skipped_samples]) == list(range(ends[-1]))
    with pytest.raises(RoboCacheError, match=f"sample {ends[0]}: shard-1: damaged"):
        list(loader_of(dataset, 6))


def test_runs_of_other_lengths_are_mixed_with_those_of_the_pool(monkeypatch):
    loaders = [loader_of(Counting(), 4, shuffle=ShuffledRuns(2, buffer=4), seed=3) for _ in range(2)]
    expected = list(loaders[0])
    pools = []

    class Refusing(SamplePool):
        def add(self, batch: Batch) -> list[int] | None:
            pools.append(self)
            return super().add(batch) if len(pools) % 2 else None

    monkeypatch.setattr(timeline_loader, "SamplePool", Refusing)
    found = list(loaders[1])
    assert len(pools) > 2
    assert same(found, expected)
