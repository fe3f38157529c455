"""Exports of recordings, loaded again, are what the engine computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.datasets import LeRobotTimelineDataset, TimelineDataset, open_dataset
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.formats.delta.log import append_dataset
from robocache_ros.formats.lerobot import write
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.small import same, samples
from test.export.delta_tables import deltalake, small_dataset
from test.export.sensor_recording import (
    Rows,
    depth_recording,
    depth_spec,
    engine_episodes,
    sensor_recording,
    sensor_spec,
)
from test.exporting import export

FORMATS = ("lerobot", "lerobot21", "rlds", "robomimic", "webdataset", "diffusion_policy", "mcap", "delta")


def opened(name: str, exports: Path, target_hz: float = 50.0, **options: Any) -> TimelineDataset:
    """A dataset of an export, which has one folder per format."""
    if name == "robomimic":
        options.setdefault("obs_modality", "image")
    return open_dataset(name, exports / name, target_hz=target_hz, **options)


@pytest.fixture(scope="module")
def run(bag, spec) -> dict[str, Any]:
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
def test_an_export_loaded_again_is_the_recording_bit_for_bit(name, media, exported, run):
    dataset = opened(name, exported(media))
    assert len(dataset) == 2
    assert [dataset.source.span_ns(k) for k in range(2)] == [dataset.source.read(k).span_ns() for k in range(2)]
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


def test_all_formats_give_one_sample_at_another_rate(exported):
    samples = [opened(name, exported("none"), 120.0)[1] for name in FORMATS]
    for sample in samples[1:]:
        streams = samples[0]["valid"].shape[1]  # some formats have the rewards after them
        assert all(torch.equal(sample[name], samples[0][name]) for name in ("tick_ns", "fused"))
        assert all(torch.equal(sample[name][:, :streams], samples[0][name]) for name in ("valid", "age_ms"))


def test_orientations_between_exported_ticks_are_unit_quaternions(exported):
    dataset = opened("lerobot", exported("none"), 200.0)
    orientation = dataset[0]["fused"][:, 19:23].double()
    assert (orientation.norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


def test_a_video_of_an_export_has_a_frame_per_tick(exported):
    lossy = opened("lerobot", exported("video"))[1]["vision/front"]
    exact = opened("lerobot", exported("image"))[1]["vision/front"]
    off = (lossy.float() - exact.float()).abs().mean(dim=(1, 2, 3))
    assert lossy.shape == exact.shape
    assert off.max() < 5  # AV1 at its default quality; a frame of another tick is further off where the arm moves


@pytest.mark.parametrize("name", ["lerobot", "lerobot21"])
def test_an_export_of_one_stream_is_loaded(name, bag, spec, tmp_path):
    only = replace(spec, streams=tuple(s for s in spec.streams if s.name == "gripper"), actions="none")
    export([bag], only, tmp_path / "out", DatasetOptions(formats=(name,)))
    sample = open_dataset(name, tmp_path / "out")[0]
    assert sample["valid"].shape == (len(sample["tick_ns"]), 1)
    assert sample["valid"].any()
    assert [str(one) for one in validate(tmp_path / "out")[0].found] == []


# Exports with windows, depth, voxels, rewards and invalid ticks, loaded again, are what the engine computed.

EVERYTHING = ("vision", "proprio", "language", "depth", "voxels")
WITH_SUCCESS = ("lerobot", "lerobot21", "rlds", "webdataset", "diffusion_policy", "delta")


@pytest.fixture(scope="module")
def outcomes() -> FusionSpec:
    raw = sensor_spec(outcomes=True).to_dict()
    raw["streams"]["depth"]["unit"] = "mm"
    return load_spec(raw)


@pytest.fixture(scope="module")
def result(tmp_path_factory, outcomes) -> ExportResult:
    """Two recordings; the second fails, and its command and depth camera are silent for a while."""
    folder = tmp_path_factory.mktemp("sensors")
    bags = [sensor_recording(folder / f"recording_{seed}", seed, seconds) for seed, seconds in ((0, 0.3), (1, 0.9))]
    return export(bags, outcomes, folder / "out", DatasetOptions(formats=FORMATS, media="image"))


@pytest.fixture(scope="module")
def episodes(result, outcomes) -> list[Rows]:
    return engine_episodes(result, outcomes)


@pytest.mark.parametrize("name", FORMATS)
def test_every_stream_of_an_export_is_the_engines(name, result, outcomes, episodes):
    dataset = opened(name, result.out, modalities=EVERYTHING)
    assert len(dataset) == len(episodes) == 2
    for index, rows in enumerate(episodes):
        sample, streams = dataset[index], dataset.streams_of(index).streams
        assert np.array_equal(sample["tick_ns"], rows["tick_ns"])
        stored = [s.name for s in outcomes.vectors if s.role in ("observation", "action")]
        fused = np.concatenate([rows[name].reshape(len(rows["tick_ns"]), -1) for name in stored], axis=1)
        assert np.array_equal(sample["fused"], fused)
        for key, stream in (("vision/color", "color"), ("vision/gray", "gray"), ("depth/depth", "depth")):
            assert np.array_equal(sample[key], rows[stream])
        order = [stream.name for stream in outcomes.streams]
        of_stream = ["reward" if each == "rewards" else each.rpartition("/")[2] for each in streams]
        columns = [order.index(each) for each in of_stream]
        assert np.array_equal(sample["valid"], rows["valid"][:, columns])
        assert np.array_equal(sample["age_ms"], (rows["age_ns"][:, columns] / 1e6).astype(np.float32))
        assert (sample["valid"] == 0).any() == (index == 1)  # the silence
        assert np.array_equal(sample["rewards"], rows["reward"][:, 0])
        assert int(sample["success"]) == (1 - index if name in WITH_SUCCESS else -1)
        assert sample["language"] == "robot task"
        pair = streams["depth/depth"].values.frames(np.array([3, 9]))  # of a window
        assert np.array_equal(pair, sample["depth/depth"][[3, 9]])


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_depth_videos_are_within_their_codes(encoding, tmp_path):
    unit, metre = {"16UC1": ("mm", 1000), "32FC1": ("m", 1)}[encoding]
    outcomes, bag = depth_spec(unit), depth_recording(tmp_path, encoding, 1)
    made = export([bag], outcomes, tmp_path / "out", DatasetOptions(formats=("lerobot",), depth="video"))
    (rows,) = engine_episodes(made, outcomes)
    dataset = open_dataset("lerobot", made.out, modalities=EVERYTHING)
    depth = dataset[0]["depth/depth"].numpy()
    assert dataset.stream_names() == ("depth/depth", "x")
    assert np.abs(depth - rows["depth"]).max() < 0.0013 * metre  # half a step of the codes at 4 m
    assert np.array_equal(depth == 0, rows["depth"] == 0)  # holes


@pytest.mark.parametrize(("name", "voxels"), [*((name, "dense") for name in FORMATS), ("lerobot", "sparse")])
def test_voxels_are_the_engines(name, voxels, tmp_path, bag, spec):
    kept = tuple(stream for stream in spec.streams if stream.name in ("gripper", "voxels", "action"))
    spec = replace(spec, streams=kept)
    made = export([bag], spec, tmp_path / "out", DatasetOptions(formats=(name,), media="none", voxels=voxels))
    dataset = open_dataset(name, made.out, modalities=EVERYTHING)
    for index, rows in enumerate(engine_episodes(made, spec)):
        assert np.array_equal(dataset[index]["voxels/voxels"], rows["voxels"])
        assert rows["voxels"].any()


# LeRobot datasets whose rows and videos are in several files and chunks.


def test_episodes_in_files_and_chunks_of_their_own_are_those_of_one_file(bag, spec, tmp_path, monkeypatch):
    options = DatasetOptions(formats=("lerobot",), task="lift the cube", codec="h264", preset="ultrafast")
    together = export([bag], spec, tmp_path / "together", options).out
    for name in ("DATA_FILE_MB", "VIDEO_FILE_MB"):
        monkeypatch.setattr(write, name, 0)
    monkeypatch.setattr(write, "CHUNK_FILES", 1)
    apart = export([bag], spec, tmp_path / "apart", options).out
    assert len(list(apart.glob("data/chunk-*/*.parquet"))) == 2
    assert len(list(apart.glob("videos/observation.images.front/chunk-*/*.mp4"))) == 2
    first, second = (LeRobotTimelineDataset(path, EVERYTHING) for path in (together, apart))
    assert len(first) == len(second) == 2
    assert first[0]["language"] == "lift the cube"
    assert same(samples(first), samples(second))


# Delta Lake tables that were appended to and compacted, as datasets.


def test_tables_that_were_appended_to_and_compacted_are_read_as_before(tmp_path):
    made = [small_dataset(tmp_path, seed) for seed in range(3)]
    wanted = [sample for path in made for sample in samples(open_dataset("delta", path, modalities=EVERYTHING))]
    grown = tmp_path / "grown"
    for path in made:
        append_dataset(path, grown)
    assert same(samples(open_dataset("delta", grown, modalities=EVERYTHING)), wanted)
    for name in ("ticks", "episodes"):
        deltalake.DeltaTable(grown / name).optimize.compact()
        deltalake.DeltaTable(grown / name).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(list(grown.glob("ticks/*/*.parquet"))) == 1
    assert same(samples(open_dataset("delta", grown, modalities=EVERYTHING)), wanted)
