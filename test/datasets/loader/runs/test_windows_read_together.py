"""Windows of one episode that are read together: the same batches as of windows that are read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from moving_streams import MovingStreams

from robocache_ros.datasets import ShuffledRuns, SourceEpisode, TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.errors import RoboCacheError


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


@pytest.mark.parametrize(("images", "marks"), [("", True), ("arrays", False), ("jpeg", True)])
@pytest.mark.parametrize("window", [Window(), Window(3, 4), Window(2, 5, -3), Window(1, 1, 40)])
def test_batches_are_those_of_windows_read_one_by_one(images: str, window: Window, marks: bool) -> None:
    source = MovingStreams(images=images, marks=marks)
    datasets = (kind(source, target_hz=100, window=window) for kind in (TimelineDataset, OneByOne))
    loaders = [TimelineLoader(each, 6, shuffle=ShuffledRuns(4, 8)) for each in datasets]

    for batch, expected in zip(*loaders, strict=True):
        assert list(batch) == list(expected)
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == expected[key].dtype
                assert value.equal(expected[key]), key
            else:
                assert value == expected[key]


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
