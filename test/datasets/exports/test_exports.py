"""Exports of a recording, loaded again, are what the engine computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.datasets import TimelineDataset, open_dataset
from robocache_ros.exporter.job import export
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions

FORMATS = ("lerobot", "lerobot21", "rlds", "robomimic", "webdataset", "diffusion_policy", "mcap", "delta")


def opened(name: str, exports: Path, target_hz: float = 50.0, **options: Any) -> TimelineDataset:
    """A dataset of an export, which has one folder per format."""
    if name == "robomimic":
        options.setdefault("obs_modality", "image")
    return open_dataset(name, exports / name, target_hz=target_hz, **options)


@pytest.fixture(scope="module")
def run(bag: Path, spec: FusionSpec) -> dict[str, Any]:
    """All ticks of the recording, from the engine."""
    with Bag(bag) as opened:
        pass_ = BagRun(opened, spec, trim=False)  # without images, an export also has ticks before the first of them
        frames = list(pass_.frames())
    media = {name: torch.cat([f.media[name] for f in frames]).permute(0, 2, 3, 1) for name in ("front", "wrist")}
    return {
        "ticks": np.concatenate([f.ticks_ns for f in frames]),
        "fused": torch.cat([f.fused for f in frames]),
        "valid": np.concatenate([f.valid for f in frames]),
        "age_ms": (np.concatenate([f.age_ns for f in frames]) / 1e6).astype(np.float32),
        "names": list(pass_.layout.names),
        **media,
    }


@pytest.mark.parametrize("media", ["none", "image"])
@pytest.mark.parametrize("name", FORMATS)
def test_an_export_loaded_again_is_the_recording_bit_for_bit(
    name: str, media: str, exported: Callable[[str], Path], run: dict[str, Any]
) -> None:
    dataset = opened(name, exported(media))

    assert len(dataset) == 2
    for index in range(2):
        sample = dataset[index]
        rows = np.searchsorted(run["ticks"], sample["tick_ns"].numpy())
        names = [name for name in dataset.stream_names(index) if name != "rewards"]  # of no stream of the recording
        columns = [run["names"].index(name.removeprefix("vision/")) for name in names]
        assert np.array_equal(run["ticks"][rows], sample["tick_ns"])
        assert torch.equal(run["fused"][rows], sample["fused"])
        assert np.array_equal(run["valid"][rows][:, columns], sample["valid"][:, : len(names)])
        assert np.array_equal(run["age_ms"][rows][:, columns], sample["age_ms"][:, : len(names)])
        assert sample["measured"].all()
        assert sample["language"] == "lift the cube"
        if media == "image":
            assert torch.equal(run["front"][rows], sample["vision/front"])
            assert torch.equal(run["wrist"][rows], sample["vision/wrist"])


def test_all_formats_give_one_sample_at_another_rate(exported: Callable[[str], Path]) -> None:
    samples = [opened(name, exported("none"), 120.0)[1] for name in FORMATS]

    for sample in samples[1:]:
        streams = samples[0]["valid"].shape[1]  # some formats have the rewards after them
        assert all(torch.equal(sample[name], samples[0][name]) for name in ("tick_ns", "fused"))
        assert all(torch.equal(sample[name][:, :streams], samples[0][name]) for name in ("valid", "age_ms"))


def test_orientations_between_exported_ticks_are_unit_quaternions(exported: Callable[[str], Path]) -> None:
    dataset = opened("lerobot", exported("none"), 200.0)

    orientation = dataset[0]["fused"][:, 19:23].double()

    assert (orientation.norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


def test_a_video_of_an_export_has_a_frame_per_tick(exported: Callable[[str], Path]) -> None:
    lossy = opened("lerobot", exported("video"))[1]["vision/front"]
    exact = opened("lerobot", exported("image"))[1]["vision/front"]

    off = (lossy.float() - exact.float()).abs().mean(dim=(1, 2, 3))

    assert lossy.shape == exact.shape
    assert off.max() < 5  # AV1 at its default quality; a frame of another tick is further off where the arm moves


@pytest.mark.parametrize("name", FORMATS)
def test_spans_are_those_of_the_episodes(name: str, exported: Callable[[str], Path]) -> None:
    source = opened(name, exported("none")).source

    assert [source.span_ns(k) for k in range(2)] == [source.read(k).span_ns() for k in range(2)]


@pytest.mark.parametrize("name", ["lerobot", "lerobot21"])
def test_an_export_of_one_stream_is_loaded(name: str, bag: Path, spec: FusionSpec, tmp_path: Path) -> None:
    only = replace(spec, streams=tuple(s for s in spec.streams if s.name == "gripper"), actions="none")
    export([bag], only, tmp_path / "out", DatasetOptions(formats=(name,)))

    sample = open_dataset(name, tmp_path / "out")[0]

    assert sample["valid"].shape == (len(sample["tick_ns"]), 1)
    assert sample["valid"].any()
    assert [str(one) for one in validate(tmp_path / "out")[0].found] == []
