"""Normalisation and random changes of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from counting_episodes import Counting, same

from robocache_ros import normalize_image
from robocache_ros.datasets import Augmentation, LoaderOptions, TimelineLoader
from robocache_ros.errors import RoboCacheError

CHANGES = Augmentation({"proprio": 0.1}, dropout=0.3, crop=(5, 4), brightness=0.2, contrast=0.2, saturation=0.5)


def by_sample(batches: list[dict[str, Any]]) -> dict[int, dict[str, torch.Tensor]]:
    """The tensors of each sample, without padding."""
    return {
        int(batch["index"][row]): {
            key: batch[key][row, : batch["length"][row]] for key in ("proprio", "vision", "valid")
        }
        for batch in batches
        for row in range(len(batch["index"]))
    }


def test_values_are_normalised_and_the_padding_stays_zero(counting: Counting) -> None:
    statistics = {"proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 2.0]}}

    batch = next(iter(TimelineLoader(counting, 2, statistics=statistics)))

    expected = (counting[0]["proprio"] - np.float32([1, 2, 3])) / np.float32([0.5, 1, 2])
    assert np.array_equal(batch["proprio"][0, :1], expected)
    assert not batch["proprio"][0, 1:].any()


def test_images_are_converted_as_by_normalize_image(counting: Counting) -> None:
    batch = next(
        iter(TimelineLoader(counting, 4, options=LoaderOptions(image_dtype=torch.bfloat16, image_normalize="imagenet")))
    )

    image = torch.from_numpy(counting[3]["vision"]).permute(0, 1, 4, 2, 3).contiguous()
    assert batch["vision"][3].equal(normalize_image(image, "imagenet", torch.bfloat16))


def test_statistics_of_other_columns_are_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="statistics: proprio"):
        next(iter(TimelineLoader(counting, 2, statistics={"proprio": {"mean": [0.0], "std": [1.0]}})))


def test_a_sample_has_the_same_changes_in_every_batch_and_rank(counting: Counting) -> None:
    def changed(**options: Any) -> dict[int, dict[str, torch.Tensor]]:
        return by_sample(list(TimelineLoader(counting, seed=3, augmentation=CHANGES, **options)))

    together = changed(batch_size=13)
    apart = changed(batch_size=3, shuffle=True) | {}
    ranks = [changed(batch_size=4, options=LoaderOptions(rank=rank, world_size=2)) for rank in range(2)]

    for found in (apart, ranks[0] | ranks[1]):
        assert found.keys() == together.keys()
        assert all(found[i][key].equal(together[i][key]) for i in found for key in found[i])


def test_epochs_and_seeds_have_different_changes(counting: Counting) -> None:
    loader = TimelineLoader(counting, 13, augmentation=CHANGES)
    other = TimelineLoader(counting, 13, augmentation=CHANGES, seed=1)

    first = list(loader)

    assert not same(first, list(loader))
    assert not same(first, list(other))


def test_noise_has_the_given_deviation_and_leaves_padding_unchanged() -> None:
    plain, noisy = (
        next(iter(TimelineLoader(Counting(200), 200, augmentation=each)))
        for each in (None, Augmentation({"proprio": 0.5}))
    )

    added = noisy["proprio"] - plain["proprio"]

    assert not added[plain["padding"]].any()
    assert abs(float(added[~plain["padding"]].std()) - 0.5) < 0.03  # 1,800 numbers: 4 standard errors


def test_a_dropped_stream_is_invalid(counting: Counting) -> None:
    batch = next(iter(TimelineLoader(counting, 4, augmentation=Augmentation(dropout=1.0))))

    assert not batch["valid"].any()


def test_a_crop_is_the_same_part_of_all_ticks_and_cameras(counting: Counting) -> None:
    batch = next(iter(TimelineLoader(counting, 4, augmentation=Augmentation(crop=(5, 4)))))

    images = batch["vision"][3]
    assert images.shape == (4, 2, 5, 4, 3)
    assert (images == images[0, 0]).all()
    top = int(images[0, 0, 0, 0, 0]) - 3  # row y of the images of episode i is i + y
    assert (images[0, 0, :, 0, 0] == torch.arange(5) + top + 3).all()


def test_a_crop_larger_than_the_images_is_refused(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="choose a smaller part"):
        next(iter(TimelineLoader(counting, 4, augmentation=Augmentation(crop=(9, 4)))))


def test_brightness_scales_pixels_by_one_factor(counting: Counting) -> None:
    batch = next(iter(TimelineLoader(Counting(200), 200, augmentation=Augmentation(brightness=0.5))))
    image = batch["vision"][150, 0, 0, :, 0, 0].float()

    factor = float(image[0]) / 150

    assert 0.5 <= factor <= 1.5
    assert (image - factor * torch.arange(150, 158)).abs().max() <= 1  # rounded to whole pixels
