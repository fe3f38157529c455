"""Episodes in mapped files are read and checked once in each process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.datasets import (
    Hdf5Trajectories,
    LoaderOptions,
    SourceEpisode,
    Stream,
    TimelineDataset,
    TimelineLoader,
    Window,
    timeline_dataset,
)
from robocache_ros.datasets.timeline_dataset import EpisodeCache
from robocache_ros.errors import RoboCacheError

h5py = pytest.importorskip("h5py")


def write(path: Path, **storage: str) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(3):
            values = np.arange(20, dtype=np.float32).reshape(10, 2) + number
            file.create_dataset(f"run_{number}/joints/values", data=values, **storage)
            file[f"run_{number}/joints/stamps_ns"] = np.arange(10) * 20_000_000
    return path


class CountedReads(Hdf5Trajectories):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: Counter[int] = Counter()

    def read(self, index: int) -> SourceEpisode:
        self.reads[index] += 1
        return super().read(index)


def read_in_turn(source: CountedReads) -> list[int]:
    """How often each episode is read if windows of all of them take turns."""
    dataset = TimelineDataset(source, window=Window())
    for _ in range(3):
        for episode in range(3):
            dataset.unaligned(10 * episode)
    return [source.reads[episode] for episode in range(3)]


def test_a_mapped_episode_is_read_once(tmp_path: Path) -> None:
    assert read_in_turn(CountedReads(write(tmp_path / "a.hdf5"))) == [1, 1, 1]


def test_an_episode_that_takes_memory_is_kept_until_the_next_one_is_read(tmp_path: Path) -> None:
    assert read_in_turn(CountedReads(write(tmp_path / "a.hdf5", compression="gzip"))) == [3, 3, 3]


def test_the_number_of_kept_episodes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_dataset, "MAX_EPISODES", 2)
    source, kept = Hdf5Trajectories(write(tmp_path / "a.hdf5")), EpisodeCache()

    for index in range(3):
        kept.put(index, source.read(index))

    assert [kept.get(index) is not None for index in range(3)] == [False, True, True]


def test_the_number_of_files_that_stay_open_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_dataset, "MAX_FILES", 2)
    kept = EpisodeCache()

    for index in range(3):
        kept.put(index, Hdf5Trajectories(write(tmp_path / f"{index}.hdf5")).read(index))

    assert [kept.get(index) is not None for index in range(3)] == [False, False, True]


class OneNumber:
    """Episodes in memory, the second of which has a number that is not finite at its end."""

    def __len__(self) -> int:
        return 2

    def read(self, index: int) -> SourceEpisode:
        stamps, values = np.arange(4) * 20_000_000, np.zeros((4, 1), np.float32)
        values[3] = np.nan if index else 0
        return SourceEpisode({"joints": Stream("joints", stamps, values, True)}, "", "memory", "memory")

    def span_ns(self, index: int) -> tuple[int, int]:
        return self.read(index).span_ns()


def test_each_window_of_an_episode_with_nan_is_refused() -> None:
    dataset = TimelineDataset(OneNumber(), window=Window())
    loader = TimelineLoader(dataset, 1, on_error="skip", options=LoaderOptions(align_on="device"))

    assert [batch["index"].tolist() for batch in loader] == [[0], [1], [2], [3]]
    assert loader.skipped_samples == dict.fromkeys(
        range(4, 8), "joints: row 3, column 0 is not finite; repair the data, or use on_error='skip'"
    )


def test_nan_is_named_with_its_sample() -> None:
    dataset = TimelineDataset(OneNumber(), window=Window())

    with pytest.raises(RoboCacheError, match="sample 4: joints: row 3, column 0 is not finite"):
        list(TimelineLoader(dataset, 1, options=LoaderOptions(align_on="device")))
