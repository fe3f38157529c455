"""Batches that a GPU aligns and decodes: the bits of the CPU, and nvJPEG's pixels nearly so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from memory_episodes import MovingStreams

from robocache_ros.datasets import Augmentation, LoaderOptions, ShuffledRuns, TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader import packing
from robocache_ros.errors import RoboCacheError
from test.datasets.small import same

CHANGES = Augmentation(
    {"proprio": 0.1}, dropout=0.3, crop=(5, 4), shift=2, brightness=0.2, contrast=0.2, saturation=0.5
)
STATISTICS = {"actions": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 3.0]}}


def batches(dataset: Any, device: str, align_on: str = "auto", **options: Any) -> list[dict[str, Any]]:
    given = replace(options.pop("options", LoaderOptions()), align_on=align_on)
    loader = TimelineLoader(dataset, 4, shuffle=True, seed=1, device=device, options=given, **options)
    return [
        {key: value if isinstance(value, list) else value.cpu() for key, value in batch.items()} for batch in loader
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "window", [None, Window(n_obs=3, horizon=5, action_offset=1), Window(3, 5, 1, n_images=2)], ids=str
)
@pytest.mark.parametrize("marks", [False, True], ids=["recorded", "exported"])
@pytest.mark.parametrize("images", ["", "arrays", "png"])
def test_a_gpu_aligns_batches_with_the_bits_of_the_cpu(window: Window | None, marks: bool, images: str) -> None:
    dataset = TimelineDataset(MovingStreams(images=images, marks=marks), window=window)
    assert same(batches(dataset, "cuda"), batches(dataset, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("marks", [False, True], ids=["recorded", "exported"])
def test_streams_that_are_sent_without_padding_have_the_bits_of_the_cpu(
    marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_JOIN_SAVING_BYTES", -(2**20))
    dataset = TimelineDataset(MovingStreams(marks=marks), window=Window(n_obs=3, horizon=5, action_offset=1))
    assert same(batches(dataset, "cuda"), batches(dataset, "cpu", "workers"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 2},
        {"options": LoaderOptions(windows=(5, 3))},
        {"options": LoaderOptions(ragged="concat")},
        {"cache": "device"},
        {"cache": "host"},
    ],
    ids=str,
)
def test_changes_of_samples_have_the_bits_of_the_cpu(options: dict[str, Any]) -> None:
    dataset = TimelineDataset(MovingStreams())
    options |= {"augmentation": CHANGES, "statistics": STATISTICS}
    assert same(batches(dataset, "cuda", **options), batches(dataset, "cpu", **options))


FEW_IMAGES = Window(n_obs=3, horizon=5, action_offset=1, n_images=1)


@pytest.mark.gpu
@pytest.mark.parametrize("shuffle", [True, ShuffledRuns(4, 8)], ids=str)
@pytest.mark.parametrize(
    "room", [{"cuda": 30_000, "cpu": 30_000}, {"cuda": 0, "cpu": 30_000}, {"cuda": 30_000, "cpu": 0}, {}]
)
def test_a_cache_in_several_places_has_the_bits_of_the_cpu_without_one(
    shuffle: Any, room: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = TimelineDataset(MovingStreams(), window=FEW_IMAGES)
    if room:
        monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: room[place.type])
    loader = TimelineLoader(dataset, 4, shuffle=shuffle, device="cuda", cache="auto", workers=1)
    read = TimelineLoader(dataset, 4, shuffle=shuffle)
    for cached, expected in zip([*loader, *loader, *loader], [*read, *read, *read], strict=True):
        assert same([{k: v if isinstance(v, list) else v.cpu() for k, v in cached.items()}], [expected])
    kept = [next(iter(each._data.observed.values())).device.type for _, _, each in loader._cached]
    assert kept == [place for place, nbytes in room.items() if nbytes] if room else ["cuda"]


@pytest.mark.gpu
def test_workers_may_align_for_a_gpu() -> None:
    dataset = TimelineDataset(MovingStreams())
    assert same(batches(dataset, "cuda", "workers"), batches(dataset, "cuda", "device"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"workers": 1}, {"cache": "device"}], ids=str)
def test_nvjpeg_differs_little(options: dict[str, Any]) -> None:
    dataset = TimelineDataset(MovingStreams(images="jpeg"))
    cpu, gpu = (
        batches(dataset, "cuda", **options),
        batches(dataset, "cuda", options=LoaderOptions(jpeg="gpu"), **options),
    )
    for first, second in zip(cpu, gpu, strict=True):
        assert (first["vision"].int() - second["vision"].int()).abs().float().mean() < 2
        assert same([{**first, "vision": [0]}], [{**second, "vision": [0]}])


@pytest.mark.gpu
def test_files_of_another_kind_are_decoded_by_the_workers() -> None:
    dataset = TimelineDataset(MovingStreams(images="png"))
    assert same(batches(dataset, "cuda", options=LoaderOptions(jpeg="gpu")), batches(dataset, "cpu"))


@pytest.mark.gpu
def test_a_file_without_an_end_is_an_error_that_names_it() -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (2,)
    with pytest.raises(RoboCacheError, match="sample 2: moving/2: vision/a: image 1"):
        batches(TimelineDataset(source), "cuda", options=LoaderOptions(jpeg="gpu"))


@pytest.mark.gpu
def test_memory_of_the_gpu_is_flat() -> None:
    loader = TimelineLoader(
        TimelineDataset(MovingStreams(images="jpeg")), 4, device="cuda", options=LoaderOptions(jpeg="gpu")
    )
    used = []
    for _ in range(60):
        for batch in loader:
            assert batch["vision"].is_cuda
        used.append(torch.cuda.memory_allocated())  # not reserved: that depends on when the GPU is done with each block
    assert used[-1] == used[30]
