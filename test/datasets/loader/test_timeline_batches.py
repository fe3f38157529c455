"""The loader with the datasets of this package."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros.datasets import (
    Augmentation,
    SourceEpisode,
    Stream,
    TimelineDataset,
    TimelineLoader,
    WeightedMixture,
    Window,
    create_rtx_dataloader,
)
from robocache_ros.errors import RoboCacheError


class Moving:
    """Episodes of joints at 100 Hz and commands that begin 100 ms later."""

    def __len__(self) -> int:
        return 5

    def read(self, index: int) -> SourceEpisode:
        stamps = np.arange(20 + 10 * index, dtype=np.int64) * 10_000_000
        joints = np.stack([np.sin(stamps / 1e8 + index), np.cos(stamps / 1e8)], axis=1).astype(np.float32)
        streams = [
            Stream("proprio", stamps, joints, measured=True),
            Stream("actions", stamps[10:], joints[10:, :1] + 5, measured=True, role="action"),
        ]
        return SourceEpisode({stream.name: stream for stream in streams}, f"task {index}", "moving", f"moving/{index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        return 0, (19 + 10 * index) * 10_000_000


def test_the_loader_of_a_real_rlds_dataset_has_its_samples(real: Path) -> None:
    loader = create_rtx_dataloader(real / "rlds_bridge", 2, split="val", device="cpu", workers=1, shuffle=False)

    batch = next(iter(loader))

    expected = loader.dataset[0]
    for key in ("vision", "proprio", "actions", "fused", "valid"):
        assert batch[key][0, : expected["length"]].equal(expected[key]), key
    assert batch["language"][0] == expected["language"]


@pytest.mark.parametrize("window", [None, Window(n_obs=3, horizon=3, action_offset=1)])
def test_batches_have_the_bits_of_the_dataset(window: Window | None) -> None:
    dataset = TimelineDataset(Moving(), window=window)

    for batch in TimelineLoader(dataset, 4, shuffle=True):
        for row, index in enumerate(batch["index"].tolist()):
            item = dataset[index]
            length = item.pop("length")
            assert batch["language"][row] == item.pop("language")
            assert batch["length"][row] == length
            for key, value in item.items():
                found = batch[key][row]
                assert (found[: len(value)] if value.ndim else found).equal(value), key


def test_windows_in_order_read_each_episode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = Moving.read
    monkeypatch.setattr(Moving, "read", lambda self, index: read.append(index) or plain(self, index))

    list(TimelineLoader(TimelineDataset(Moving(), window=Window(n_obs=2)), 4))

    assert read == [0, 1, 2, 3, 4]


def test_a_dataset_is_pickled_without_the_episode_that_it_keeps() -> None:
    dataset = TimelineDataset(Moving(), window=Window())
    before = len(pickle.dumps(dataset))

    dataset[0]

    assert len(pickle.dumps(dataset)) < before + 100  # the numbers of windows


def test_invalid_actions_stay_zero_when_normalised() -> None:
    statistics = {"actions": {"mean": [5.0], "std": [2.0]}, "fused": {"mean": [0, 0, 5.0], "std": [1, 1, 2.0]}}
    plain, scaled = (
        next(iter(TimelineLoader(TimelineDataset(Moving()), 5, statistics=each))) for each in (None, statistics)
    )
    invalid = plain["valid"][..., 1] == 0

    assert invalid[0, :5].all()
    assert not scaled["actions"][invalid].any()
    assert not scaled["fused"][..., 2][invalid].any()
    assert scaled["actions"][~invalid].equal((plain["actions"][~invalid] - 5) / 2)


def test_a_dropped_stream_loses_its_columns_only() -> None:
    changes = Augmentation(dropout=0.5)
    plain, changed = (next(iter(TimelineLoader(TimelineDataset(Moving()), 5, augmentation=a))) for a in (None, changes))
    kept = (changed["valid"] > 0).any(dim=1)

    assert {tuple(row) for row in kept.tolist()} > {(True, False)}
    for row in range(5):
        for stream, columns in enumerate((slice(0, 2), slice(2, 3))):
            expected = plain["fused"][row, :, columns]
            assert changed["fused"][row, :, columns].equal(
                expected if kept[row, stream] else torch.zeros_like(expected)
            )


def test_a_mixture_is_drawn_anew_in_each_epoch() -> None:
    mixture = WeightedMixture(
        {"a": TimelineDataset(Moving()), "b": TimelineDataset(Moving())}, {"a": 3, "b": 1}, seed=1
    )
    loader = TimelineLoader(mixture, 10)

    first, second = next(iter(loader))["dataset"], next(iter(loader))["dataset"]
    loader.set_epoch(0)

    assert first != second
    assert next(iter(loader))["dataset"] == first


def test_a_mixture_is_not_cached() -> None:
    mixture = WeightedMixture({"a": TimelineDataset(Moving())}, {"a": 1})

    with pytest.raises(RoboCacheError, match="other items in each epoch"):
        TimelineLoader(mixture, 2, cache="auto")
