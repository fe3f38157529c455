"""A cache of windows keeps each tick once, and its batches have the bits of those that are read."""

from __future__ import annotations

from typing import Any

import pytest
from counting_episodes import same
from moving_streams import MovingStreams

from robocache_ros.datasets import Augmentation, LoaderOptions, TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader import cache as window_cache
from robocache_ros.errors import RoboCacheError

WINDOWS = [Window(), Window(n_obs=3, horizon=5, action_offset=1), Window(2, 2, -1), Window(40, 1, 30)]


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of the tests have 8 to 18 ticks: they are read in several parts."""
    monkeypatch.setattr(window_cache, "TICKS_PER_READ", 5)
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.WHOLE_READ", Window(5, 5, -4))


def epochs(dataset: Any, **options: Any) -> list[dict[str, Any]]:
    loader = TimelineLoader(dataset, 4, **{"shuffle": True, "seed": 1, **options})
    return [*loader, *loader]


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize(
    ("window", "marks", "images", "align_on"),
    [
        *((window, True, "arrays", "device") for window in WINDOWS),
        (WINDOWS[1], False, "", "device"),
        (WINDOWS[1], False, "png", "workers"),
        (WINDOWS[2], True, "png", "device"),
    ],
)
def test_cached_windows_have_the_bits_of_windows_that_are_read(
    window: Window, marks: bool, images: str, align_on: str
) -> None:
    dataset = TimelineDataset(MovingStreams(3, images, marks=marks), window=window)

    cached = epochs(dataset, options=LoaderOptions(align_on=align_on), cache="host")

    assert same(cached, epochs(dataset, options=LoaderOptions(align_on=align_on)))


def test_episodes_of_one_read_and_of_several_have_the_same_bits() -> None:
    dataset = TimelineDataset(MovingStreams(2, ""), target_hz=500, window=WINDOWS[1])  # 75 and 100 ticks

    assert same(epochs(dataset, cache="auto", workers=1), epochs(dataset))


def test_changes_of_samples_do_not_reach_the_cache() -> None:
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])
    changes = {
        "augmentation": Augmentation({"proprio": 0.1}, dropout=0.3, crop=(5, 4), brightness=0.2),
        "statistics": {"actions": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 3.0]}},
    }

    assert same(epochs(dataset, cache="host", **changes), epochs(dataset, **changes))


def test_each_tick_is_kept_once() -> None:
    sizes = []
    for n_obs in (1, 50):
        loader = TimelineLoader(TimelineDataset(MovingStreams(), window=Window(n_obs=n_obs)), 4, cache="host")
        next(iter(loader))
        assert loader._cached is not None
        tables = loader._cached._data[:3]
        sizes.append(sum(tensor.nbytes for table in tables for tensor in table.values()))

    assert sizes[0] == sizes[1]


def test_rows_that_do_not_fit_are_refused_with_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: 1000)
    dataset = TimelineDataset(MovingStreams(), window=WINDOWS[1])

    with pytest.raises(
        RoboCacheError, match=r"cache: 0\.00 GiB expected of 66 ticks, 0\.0 GiB may be used on cpu; use cache='auto'"
    ):
        epochs(dataset, cache="host")
    assert same(epochs(dataset, cache="auto"), epochs(dataset))


@pytest.mark.usefixtures("short_reads")
def test_windows_with_a_tick_of_a_damaged_read_are_skipped() -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (1,)  # image 1 of both cameras
    dataset = TimelineDataset(source, window=Window(n_obs=2))
    read, cached = (
        TimelineLoader(dataset, 4, on_error="skip", cache=cache, options=LoaderOptions(align_on="workers"))
        for cache in ("none", "host")
    )

    seen, kept = ([index for batch in loader for index in batch["index"].tolist()] for loader in (read, cached))

    # Windows 8 to 18 are those of the episode, and a read has 5 ticks. Camera a is damaged in the first, b in the last.
    assert set(cached.skipped_samples) == {8, 9, 10, 11, 12, 13, 18}
    assert set(read.skipped_samples) < set(cached.skipped_samples)
    assert "vision/a: image 1" in cached.skipped_samples[8]
    assert kept == [index for index in seen if index not in cached.skipped_samples]
    assert cached.skipped == 7
