"""Datasets of any format as the data of a training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import recordings
from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import ShuffledRuns, Stream, TimelineDataset, WeightedMixture, Window
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import (
    data_info,
    default_workers,
    format_of,
    open_for_training,
    shuffled_order,
    training_loader,
)
from robocache_ros.training.training_options import TrainingOptions
from test.datasets.small import InMemory, write_calvin, write_hdf5
from test.exporting import export
from test.training.reach.reach_arm import TYPES, demonstration


def episodes(*roles: str, camera: bool = False) -> InMemory:
    """Two episodes of four steps: a position that does not change, and the streams that are asked for."""
    stamps, found = np.arange(4) * 20_000_000, []
    for index in range(2):
        rows = np.stack([np.full(4, 2.5), np.arange(4.0) + index], axis=1).astype(np.float32)
        pixels = np.full((4, 12, 16, 3), 40 * index, np.uint8)
        cameras = [Stream("vision/front", stamps, pixels, False)] if camera else []
        found.append([*(Stream(role, stamps, rows, False, role) for role in roles), *cameras])
    return InMemory(*found)


def test_batches_are_normalised_and_constant_columns_stay():
    dataset = TimelineDataset(episodes("observation", "action"), window=Window(1, 2))
    info = data_info(dataset)
    batches = list(training_loader(dataset, info, 8, shuffle=False))
    assert (info.streams, info.proprio, info.actions) == ({"observation": 2}, 2, 2)
    proprio = batches[0]["proprio"]
    assert torch.equal(proprio[..., 0], torch.zeros(8, 1))  # 2.5 - 2.5, over 1
    assert proprio[..., 1].mean().abs() < 1e-6
    assert proprio[..., 1].std(correction=0) == pytest.approx(1)


@pytest.mark.parametrize(("gop", "length"), [(2, 8), (12, 10)])
def test_videos_are_read_in_runs_of_half_the_key_frame_interval(tmp_path, gop, length):
    bag = recordings.write(tmp_path / "bag", 2, 1, size=64)
    options = DatasetOptions(gop=gop, codec="h264")
    out = export([bag], load_spec(recordings.spec(1)), tmp_path / "dataset", options).out
    dataset = open_for_training(out, window=Window(2, 4, n_images=1), vision=True)  # 50 Hz of 30
    order = shuffled_order(dataset)
    assert order == ShuffledRuns(length, 8192)
    smaller = open_for_training(out, window=Window(2, 4), vision=True, image_size=(32, 32))
    assert shuffled_order(smaller) == order
    assert shuffled_order(open_for_training(out, window=Window(2, 4))) is True
    loader = training_loader(dataset, data_info(dataset), 8, seed=1)
    read = training_loader(dataset, data_info(dataset), 8, seed=1, cache="none")
    for cached, expected in zip(loader, read, strict=True):
        assert all(torch.equal(cached[key], expected[key]) for key in ("vision", "proprio", "actions", "index"))
    assert loader._cached


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    assert default_workers() == 11
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "12")
    assert default_workers() == 1


def test_what_is_known_of_an_export_is_stored(reach):
    info = data_info(open_for_training(reach.dataset, window=Window(2, 4, 1)))
    columns = {"joints": ["shoulder", "elbow", "wrist"], "goal": ["x", "y", "z"], "command": ["0", "1", "2"]}
    assert info.columns == columns
    assert load_spec(info.spec).streams == reach.spec.streams
    assert info.spec["dataset"]["task"] == "reach the goal"
    assert info.action_offset == 1
    assert list(info.samples) == ["joints", "goal"]
    assert info.samples["joints"]["valid"] == 1.0
    ranges = np.array([info.ranges["proprio"][name] for name in ("min", "q01", "q99", "max")])
    assert (np.diff(ranges, axis=0) >= 0).all()


@pytest.mark.parametrize(("roles", "missing"), [(("action",), "proprio"), (("observation",), "actions")])
def test_a_dataset_without_observations_or_actions_is_refused(roles, missing):
    with pytest.raises(RoboCacheError, match=f"has no {missing}"):
        data_info(TimelineDataset(episodes(*roles), window=Window()))


def test_a_mixture_needs_statistics_of_its_own():
    parts = {"lift": TimelineDataset(episodes("observation", "action"), window=Window(1, 2))}
    with pytest.raises(RoboCacheError, match="a WeightedMixture has no statistics of its own; make a DataInfo with"):
        data_info(WeightedMixture(parts, {"lift": 1.0}))  # type: ignore[arg-type]


def test_every_format_of_an_export_gives_the_same_batches(reach, tmp_path):
    bag = write_bag(tmp_path / "reach", TYPES, demonstration(9, reaches=1))
    formats = ("lerobot", "lerobot21", "rlds", "robomimic", "webdataset", "diffusion_policy", "mcap")
    export([bag], reach.spec, tmp_path / "out", DatasetOptions(formats=formats, task="reach", media="none"))
    opened = [open_for_training(tmp_path / "out" / name, window=Window(2, 4)) for name in formats]
    infos = [data_info(dataset) for dataset in opened]
    batches = [next(iter(training_loader(d, info, 16))) for d, info in zip(opened, infos, strict=True)]
    assert all(info == infos[0] for info in infos)
    assert all(torch.equal(batch[key], batches[0][key]) for batch in batches for key in ("proprio", "actions"))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("meta/info.json", "lerobot"),
        ("1.0.0/dataset_info.json", "rlds"),
        ("bridge/1.0.0/dataset_info.json", "rlds"),
        ("training/ep_start_end_ids.npy", "calvin"),
        ("low_dim.hdf5", "robomimic"),
        ("replay_buffer.zarr/.zgroup", "diffusion_policy"),
        ("meta/episode_ends/.zarray", "diffusion_policy"),
        ("train-000000.tar", "webdataset"),
        ("episode_000000/episode_000000_0.mcap", "mcap"),
        ("ticks/_delta_log/0.json", "delta"),
    ],
)
def test_a_format_is_found_by_its_files(file, kind, tmp_path):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert format_of(tmp_path) == kind


SEVERAL = ["lerobot21/meta/info.json", "rlds/lift/1.0.0/dataset_info.json"]


@pytest.mark.parametrize(
    ("place", "files", "given", "message"),
    [
        (".", [], {}, "not a dataset of lerobot, rlds, calvin, robomimic"),
        ("lift", [], {}, "lift: does not exist; give the folder of a dataset"),
        ("lift.hdf5", [], {}, "lift.hdf5: does not exist; give the folder of a dataset"),
        (".", SEVERAL, {}, "has folders of several formats, rlds, lerobot21; give one of them"),
        (".", [], {"file_format": "zarr"}, "format: 'zarr' is not one of"),
        (".", [], {"file_format": "robomimic"}, "0 hdf5 files, not 1"),
        (".", ["0.hdf5", "1.hdf5"], {"file_format": "robomimic"}, "2 hdf5 files, not 1"),
    ],
)
def test_a_folder_that_is_not_one_dataset_is_refused(tmp_path, place, files, given, message):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(RoboCacheError, match=message):
        open_for_training(tmp_path / place, **given, window=Window())


@pytest.mark.parametrize("vision", [False, True])
def test_a_split_is_that_of_the_format_with_or_without_images(vision, tmp_path, reach):
    write_calvin(tmp_path / "validation", annotated=())
    info = data_info(open_for_training(tmp_path, window=Window(1, 2), split="validation", vision=vision))
    assert info.cameras == ({"vision/static": 1, "vision/gripper": 1} if vision else {})
    assert info.actions == 7
    with pytest.raises(RoboCacheError, match="split: lerobot has none, only rlds, calvin, robomimic; leave it out"):
        open_for_training(reach.dataset, window=Window(1, 2), split="val")


def test_trajectories_of_ones_own_are_trained_on(tmp_path):
    info = data_info(open_for_training(write_hdf5(tmp_path), file_format="hdf5", window=Window(1, 2)))
    assert (info.streams, info.actions) == ({"joints": 3}, 3)


def test_images_are_part_of_the_training():
    dataset = TimelineDataset(episodes("observation", "action", camera=True), window=Window(1, 2))
    info = data_info(dataset)
    loader = training_loader(dataset, info, 4)
    config = PolicyConfig("transformer", 2, 2, 1, 2, cameras=info.cameras, layers=1, heads=2, width=16)
    trainer = Trainer(make_policy(config), loader, TrainingOptions(steps=2))
    assert (info.cameras, info.images) == ({"vision": 1}, {"vision": ["front"]})
    assert all(trainer.train_step().isfinite() for _ in range(2))
    encoder = trainer.policy.of_image
    assert encoder is not None
    assert all(parameter.grad is not None for parameter in encoder.parameters())
