"""Exports with windows, depth, voxels, rewards and invalid ticks, loaded again, are what the engine computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import TimelineDataset, open_dataset
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.sensor_recording import (
    Rows,
    depth_recording,
    depth_spec,
    engine_episodes,
    sensor_recording,
    sensor_spec,
)

FORMATS = ("lerobot", "lerobot21", "rlds", "robomimic", "webdataset", "diffusion_policy", "mcap", "delta")
EVERYTHING = ("vision", "proprio", "language", "depth", "voxels")
WITH_SUCCESS = ("lerobot", "lerobot21", "rlds", "webdataset", "diffusion_policy", "delta")


def opened(name: str, exports: Path, **options: Any) -> TimelineDataset:
    if name == "robomimic":
        options["obs_modality"] = "image"
    return open_dataset(name, exports / name, modalities=EVERYTHING, **options)


@pytest.fixture(scope="module")
def spec() -> FusionSpec:
    raw = sensor_spec(outcomes=True).to_dict()
    raw["streams"]["depth"]["unit"] = "mm"
    return load_spec(raw)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, spec: FusionSpec) -> ExportResult:
    """Two recordings; the second fails, and its command and depth camera are silent for a while."""
    folder = tmp_path_factory.mktemp("sensors")
    bags = [sensor_recording(folder / f"recording_{seed}", seed, seconds) for seed, seconds in ((0, 0.3), (1, 0.9))]
    return export(bags, spec, folder / "out", DatasetOptions(formats=FORMATS, media="image"))


@pytest.fixture(scope="module")
def episodes(result: ExportResult, spec: FusionSpec) -> list[Rows]:
    return engine_episodes(result, spec)


@pytest.mark.parametrize("name", FORMATS)
def test_every_stream_of_an_export_is_the_engines(
    name: str, result: ExportResult, spec: FusionSpec, episodes: list[Rows]
) -> None:
    dataset = opened(name, result.out)

    assert len(dataset) == len(episodes) == 2
    for index, rows in enumerate(episodes):
        sample, streams = dataset[index], dataset.streams_of(index).streams
        assert np.array_equal(sample["tick_ns"], rows["tick_ns"])
        stored = [s.name for s in spec.vectors if s.role in ("observation", "action")]
        fused = np.concatenate([rows[name].reshape(len(rows["tick_ns"]), -1) for name in stored], axis=1)
        assert np.array_equal(sample["fused"], fused)
        for key, stream in (("vision/color", "color"), ("vision/gray", "gray"), ("depth/depth", "depth")):
            assert np.array_equal(sample[key], rows[stream])
        order = [stream.name for stream in spec.streams]
        of_stream = ["reward" if each == "rewards" else each.rpartition("/")[2] for each in streams]
        columns = [order.index(each) for each in of_stream]
        assert np.array_equal(sample["valid"], rows["valid"][:, columns])
        assert np.array_equal(sample["age_ms"], (rows["age_ns"][:, columns] / 1e6).astype(np.float32))
        assert (sample["valid"] == 0).any() == (index == 1)  # the silence


@pytest.mark.parametrize("name", FORMATS)
def test_rewards_are_those_of_the_recording(name: str, result: ExportResult, episodes: list[Rows]) -> None:
    dataset = opened(name, result.out)

    for index, rows in enumerate(episodes):
        assert np.array_equal(dataset[index]["rewards"], rows["reward"][:, 0])


@pytest.mark.parametrize("name", FORMATS)
def test_success_is_stated_where_the_format_keeps_it(name: str, result: ExportResult) -> None:
    dataset = opened(name, result.out)

    found = [int(dataset[index]["success"]) for index in range(2)]

    assert found == ([1, 0] if name in WITH_SUCCESS else [-1, -1])


@pytest.mark.parametrize("name", FORMATS)
def test_an_episode_has_the_task_of_its_recording(name: str, result: ExportResult) -> None:
    assert [opened(name, result.out)[index]["language"] for index in range(2)] == ["robot task"] * 2


def test_windows_of_samples_have_their_depth(result: ExportResult, episodes: list[Rows]) -> None:
    for name in FORMATS:
        dataset = opened(name, result.out)
        whole = dataset[1]["depth/depth"]
        assert np.array_equal(
            dataset.streams_of(1).streams["depth/depth"].values.frames(np.array([3, 9])), whole[[3, 9]]
        )


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_depth_videos_are_within_their_codes(encoding: str, tmp_path: Path) -> None:
    unit, metre = {"16UC1": ("mm", 1000), "32FC1": ("m", 1)}[encoding]
    spec, bag = depth_spec(unit), depth_recording(tmp_path, encoding, 1)
    made = export([bag], spec, tmp_path / "out", DatasetOptions(formats=("lerobot",), depth="video"))
    (rows,) = engine_episodes(made, spec)

    dataset = open_dataset("lerobot", made.out, modalities=EVERYTHING)
    depth = dataset[0]["depth/depth"].numpy()

    assert dataset.stream_names() == ("depth/depth", "x")
    assert np.abs(depth - rows["depth"]).max() < 0.0013 * metre  # half a step of the codes at 4 m
    assert np.array_equal(depth == 0, rows["depth"] == 0)  # holes


@pytest.mark.parametrize(("name", "voxels"), [*((name, "dense") for name in FORMATS), ("lerobot", "sparse")])
def test_voxels_are_the_engines(name: str, voxels: str, tmp_path: Path, bag: Path, spec_of_lift: FusionSpec) -> None:
    made = export([bag], spec_of_lift, tmp_path / "out", DatasetOptions(formats=(name,), media="none", voxels=voxels))
    dataset = open_dataset(name, made.out, modalities=EVERYTHING)

    for index, rows in enumerate(engine_episodes(made, spec_of_lift)):
        assert np.array_equal(dataset[index]["voxels/voxels"], rows["voxels"])
        assert rows["voxels"].any()


@pytest.fixture(scope="module")
def spec_of_lift() -> FusionSpec:
    config = load_spec(Path(__file__).parents[3] / "config" / "panda_lift.yaml")
    kept = tuple(stream for stream in config.streams if stream.name in ("gripper", "voxels", "action"))
    return replace(config, streams=kept)
