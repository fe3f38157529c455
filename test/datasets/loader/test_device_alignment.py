"""Batches that are aligned as a whole have the bits of samples that are aligned one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_episodes import Counting, same
from moving_streams import MovingStreams

from robocache_ros.datasets import (
    Augmentation,
    LeRobotTimelineDataset,
    RoboMimicDataset,
    TimelineDataset,
    TimelineLoader,
    WeightedMixture,
    Window,
)
from robocache_ros.errors import RoboCacheError


def batches(dataset: Any, align_on: str, **options: Any) -> list[dict[str, Any]]:
    return list(TimelineLoader(dataset, 4, shuffle=True, seed=1, align_on=align_on, **options))


def check_same(dataset: Any, **options: Any) -> None:
    expected = batches(dataset, "workers", **options)
    assert expected
    assert same(batches(dataset, "device", **options), expected)


@pytest.mark.parametrize("window", [None, Window(n_obs=3, horizon=5, action_offset=1), Window(2, 2, -1)], ids=str)
@pytest.mark.parametrize("marks", [False, True], ids=["recorded", "exported"])
@pytest.mark.parametrize("images", ["", "arrays", "png"])
def test_a_batch_aligned_as_a_whole_has_the_bits_of_its_samples(
    window: Window | None, marks: bool, images: str
) -> None:
    check_same(TimelineDataset(MovingStreams(images=images, marks=marks), window=window))


def test_parts_of_episodes_have_the_bits_of_samples() -> None:
    check_same(TimelineDataset(MovingStreams()), windows=(5, 3))


def test_joined_samples_have_the_bits_of_samples() -> None:
    check_same(TimelineDataset(MovingStreams()), ragged="concat")


def test_images_alone_have_the_bits_of_samples() -> None:
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
        list(TimelineLoader(TimelineDataset(source), 2, align_on="device"))


def test_an_unknown_place_of_the_alignment_is_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="align_on: 'gpu' is not one of auto, device, workers"):
        TimelineLoader(counting, 2, align_on="gpu")
