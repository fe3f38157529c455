"""Batches on a GPU: the same values as on the CPU."""

from __future__ import annotations

import pytest
from counting_episodes import Counting

from robocache_ros.datasets import Augmentation, LoaderOptions, TimelineLoader

pytestmark = pytest.mark.gpu
CHANGES = Augmentation({"proprio": 0.1}, dropout=0.3, crop=(5, 4), brightness=0.2, contrast=0.2, saturation=0.5)
STATISTICS = {"proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 3.0]}}


def batches(device: str, **options: object) -> list:
    loader = TimelineLoader(
        Counting(), 4, shuffle=True, seed=3, device=device, statistics=STATISTICS, augmentation=CHANGES, **options
    )
    return [
        {key: value if isinstance(value, list) else value.cpu() for key, value in batch.items()}
        for batch in [*loader, *loader]
    ]


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2}, {"cache": "device"}, {"cache": "host"}, {"options": LoaderOptions(windows=(2, 1))}],
    ids=str,
)
def test_a_gpu_has_the_batches_of_the_cpu_bit_for_bit(options: dict) -> None:
    expected = batches("cpu", options=options.get("options", LoaderOptions()))

    found = batches("cuda", **options)

    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert all(a[key] == b[key] if isinstance(a[key], list) else a[key].equal(b[key]) for key in b)
