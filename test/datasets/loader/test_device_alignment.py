"""Batches that are aligned as a whole have the bits of samples that are aligned one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_episodes import Counting, same
from moving_streams import MovingStreams

from robocache_ros.datasets import (
    Augmentation,
    LeRobotTimelineDataset,
    LoaderOptions,
    RoboMimicDataset,
    TimelineDataset,
    TimelineLoader,
    WeightedMixture,
    Window,
)
from robocache_ros.datasets.loader import packing
from robocache_ros.errors import RoboCacheError


def batches(dataset: Any, align_on: str, **options: Any) -> list[dict[str, Any]]:
    given = replace(options.pop("options", LoaderOptions()), align_on=align_on)
    return list(TimelineLoader(dataset, 4, shuffle=True, seed=1, options=given, **options))


def check_same(dataset: Any, **options: Any) -> None:
    expected = batches(dataset, "workers", **options)
    assert expected
    assert same(batches(dataset, "device", **options), expected)


@pytest.mark.parametrize(
    ("window", "marks", "images"),
    [
        (None, False, ""),
        (None, True, "arrays"),
        (None, False, "png"),
        (Window(n_obs=3, horizon=5, action_offset=1), True, ""),
        (Window(n_obs=3, horizon=5, action_offset=1), False, "arrays"),
        (Window(2, 2, -1), True, "png"),
        (Window(2, 2, -1), False, "arrays"),
    ],
)
def test_a_batch_aligned_as_a_whole_has_the_bits_of_its_samples(
    window: Window | None, marks: bool, images: str
) -> None:
    check_same(TimelineDataset(MovingStreams(images=images, marks=marks), window=window))


@pytest.mark.parametrize(("window", "marks"), [(None, True), (Window(n_obs=3, horizon=5, action_offset=1), False)])
def test_streams_that_are_sent_without_padding_have_the_bits_of_samples(
    window: Window | None, marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_JOIN_SAVING_BYTES", -(2**20))

    check_same(TimelineDataset(MovingStreams(marks=marks), window=window))


def test_arrays_with_much_padding_are_joined() -> None:
    arrays = [np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) for rows in (3, 200_000, 1)]
    samples: list[packing.Arrays] = [{"0/values": array} for array in arrays]

    entries, nbytes = packing.plan(samples, {"0/values"}, {"0/values"})
    block = np.zeros(nbytes, np.uint8)
    packing.write(samples, entries, block)
    values, rows = (packing.view(entry, block) for entry in entries)

    assert values.shape == (200_004, 4)
    assert all(np.array_equal(values[row[: len(array)]], array) for row, array in zip(rows, arrays, strict=True))
    assert rows[:, -1].tolist() == [2, 200_002, 200_003]
    assert nbytes < packing.plan(samples)[1]


def test_arrays_with_little_padding_are_not_joined() -> None:
    samples: list[packing.Arrays] = [{"0/values": np.zeros((rows, 2), np.float32)} for rows in (1000, 1001)]

    (entry,), _ = packing.plan(samples, (), {"0/values"})

    assert entry.shape == (2, 1001, 2)


def test_parts_of_episodes_have_the_bits_of_samples() -> None:
    check_same(TimelineDataset(MovingStreams()), options=LoaderOptions(windows=(5, 3)))


def test_joined_samples_have_the_bits_of_samples() -> None:
    check_same(TimelineDataset(MovingStreams()), options=LoaderOptions(ragged="concat"))


def test_images_only_have_the_bits_of_samples() -> None:
    check_same(TimelineDataset(CamerasOnly()))


class CamerasOnly(MovingStreams):
    def read(self, index: int) -> Any:
        episode = super().read(index)
        for name in [name for name in episode.streams if not name.startswith("vision")]:
            del episode.streams[name]
        return episode


def test_samples_of_different_limits_are_aligned_one_by_one() -> None:
    check_same(TimelineDataset(MovingStreams(limits=2)))


def test_an_export_has_the_bits_of_samples(exported: Callable[[str], Path]) -> None:
    folder = exported("image")

    check_same(LeRobotTimelineDataset(folder / "lerobot"))
    check_same(RoboMimicDataset(folder / "robomimic" / "dataset.hdf5", obs_modality="image"))


def test_a_mixture_has_the_bits_of_samples() -> None:
    parts = {name: TimelineDataset(MovingStreams(marks=marks)) for name, marks in (("a", True), ("b", False))}

    check_same(WeightedMixture(parts, {"a": 2, "b": 1}))


def test_workers_send_streams() -> None:
    check_same(TimelineDataset(MovingStreams()), workers=1)


def test_changes_and_caches_follow_the_alignment() -> None:
    changes = Augmentation({"proprio": 0.1}, dropout=0.3, crop=(5, 4), brightness=0.2)
    statistics = {"actions": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 3.0]}}

    for cache in ("none", "host"):
        check_same(TimelineDataset(MovingStreams()), augmentation=changes, statistics=statistics, cache=cache)


def test_a_dataset_that_gives_aligned_items_is_used_as_it_is(counting: Counting) -> None:
    check_same(counting)


def test_a_damaged_image_is_named_also_where_the_device_aligns() -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (2,)

    with pytest.raises(RoboCacheError, match="sample 2: moving/2: vision/a: image 1"):
        list(TimelineLoader(TimelineDataset(source), 2, options=LoaderOptions(align_on="device")))


def test_an_unknown_place_of_the_alignment_is_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="align_on: 'gpu' is not one of auto, device, workers"):
        TimelineLoader(counting, 2, options=LoaderOptions(align_on="gpu"))
