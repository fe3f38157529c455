"""Datasets with different columns in one layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros import convert_image
from robocache_ros.datasets import (
    CALVINDataset,
    DatasetError,
    SourceEpisode,
    Stream,
    TimelineDataset,
    TimelineLoader,
    WeightedMixture,
    Window,
    open_dataset,
)
from robocache_ros.datasets.mixture import load_layout
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.conftest import write_calvin

LAYOUT = """
streams:
  ee_position: {dim: 2, align: linear}
  gripper: {dim: 1}
  primary: {image_size: [4, 4]}
  delta: {dim: 2, role: action}
  gripper_action: {dim: 1, role: action}
datasets:
  named:
    ee_position: {from: proprio, columns: [y, x]}
    delta: {from: actions, columns: [0, 1], scale: [1, -2], offset: 0.5}
    gripper_action: {from: actions, columns: 2}
  calvin:
    ee_position: {from: proprio, columns: [0, 1]}
    gripper: {from: proprio, columns: [14]}
    primary: vision/static
    delta: {from: actions, columns: [0, 1]}
    gripper_action: {from: actions, columns: [6]}
"""


class NamedColumns:
    """An episode of four steps at 50 Hz without a camera, whose columns have names."""

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> SourceEpisode:
        stamps = np.arange(4) * 20_000_000
        steps = np.arange(4, dtype=np.float32)
        position = np.stack([steps, 10 * steps, 100 * steps], axis=1)
        action = np.stack([steps, steps + 1, steps + 2], axis=1)
        streams = {
            "proprio": Stream("proprio", stamps, position, False, columns=("x", "y", "z")),
            "actions": Stream("actions", stamps, action, False, "action"),
        }
        return SourceEpisode(streams, "push", "named", "named: 0")

    def span_ns(self, index: int) -> tuple[int, int]:
        return 0, 60_000_000


@pytest.fixture
def mixture(tmp_path: Path) -> WeightedMixture:
    (tmp_path / "layout.yaml").write_text(LAYOUT)
    window = Window(n_obs=2, horizon=2)
    datasets = {
        "named": TimelineDataset(NamedColumns(), window=window),
        "calvin": CALVINDataset(write_calvin(tmp_path / "training"), window=window),
    }
    return WeightedMixture(datasets, {"named": 1, "calvin": 1}, layout=tmp_path / "layout.yaml", samples=40)


def test_samples_of_all_datasets_have_one_layout(mixture: WeightedMixture) -> None:
    samples = [mixture[index] for index in range(len(mixture))]

    assert {sample["dataset"] for sample in samples} == {"named", "calvin"}
    shapes = {tuple((k, v.shape) for k, v in sample.items() if isinstance(v, torch.Tensor)) for sample in samples}
    assert len(shapes) == 1
    assert samples[0]["proprio"].shape == (2, 3)
    assert samples[0]["actions"].shape == (2, 3)
    assert samples[0]["vision"].shape == (2, 1, 4, 4, 3)
    assert mixture.datasets[0].stream_names() == (
        *("ee_position", "gripper", "vision/primary", "delta", "gripper_action"),
    )


def test_columns_are_chosen_by_name_or_index_and_scaled(mixture: WeightedMixture) -> None:
    sample = mixture.datasets[0][2]

    assert sample["proprio"].tolist() == [[10, 1, 0], [20, 2, 0]]
    assert sample["actions"].tolist() == [[2.5, -5.5, 4], [3.5, -7.5, 5]]


def test_a_stream_that_a_dataset_lacks_is_never_valid(mixture: WeightedMixture) -> None:
    named, calvin = mixture.datasets[0][2], mixture.datasets[1][2]

    assert named["valid"][:, 1:3].unique().tolist() == [0]  # the gripper and the camera
    assert named["valid"][:, [0, 3, 4]].all()
    assert not named["vision"].any()
    assert calvin["valid"].all()


def test_absent_columns_are_not_normalised(mixture: WeightedMixture) -> None:
    statistics = {"proprio": {"mean": [0.0, 0.0, 5.0], "std": [1.0, 1.0, 2.0]}}

    batches = list(TimelineLoader(mixture, 40, statistics=statistics))

    (batch,) = batches
    named = torch.tensor([name == "named" for name in batch["dataset"]])
    assert not batch["proprio"][named][:, :, 2].any()
    assert batch["proprio"][~named][:, :, 2].min() >= (14 - 5) / 2


def test_the_image_size_of_the_layout_replaces_that_of_a_dataset(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training")
    layout = {"streams": {"primary": {"image_size": [6, 8]}}, "datasets": {"calvin": {"primary": "vision/static"}}}
    own, stored = (
        WeightedMixture({"calvin": CALVINDataset(tmp_path / "training", image_size=size)}, {"calvin": 1}, layout=layout)
        for size in ((16, 16), None)
    )

    assert own[0]["vision"].shape[-3:] == (6, 8, 3)
    assert torch.equal(own[0]["vision"], stored[0]["vision"])


def test_a_dataset_that_the_layout_lacks_is_refused() -> None:
    dataset = TimelineDataset(NamedColumns())
    layout = {"streams": {"a": {"dim": 1}}, "datasets": {"named": {}}}

    with pytest.raises(RoboCacheError, match=r"datasets\.other: not in the layout, which has named; add it"):
        WeightedMixture({"other": dataset}, {"other": 1.0}, layout=layout)


@pytest.mark.parametrize(
    ("origin", "problem"),
    [
        ({"from": "nothing"}, "named: 0: nothing: no such stream; there are proprio, actions"),
        ({"from": "proprio"}, "3 columns, and the layout has 1; give columns"),
        ({"from": "proprio", "columns": [3]}, "no column 3, it has 3"),
        ({"from": "proprio", "columns": ["w"]}, "no column w; its names are x, y, z"),
        ({"from": "actions", "columns": ["x"]}, "no column x; its names are none; use an index"),
    ],
)
def test_columns_that_a_dataset_lacks_are_named(origin: dict[str, Any], problem: str) -> None:
    layout = {"streams": {"a": {"dim": 1}}, "datasets": {"named": {"a": origin}}}
    mixture = WeightedMixture({"named": TimelineDataset(NamedColumns())}, {"named": 1.0}, layout=layout)

    with pytest.raises(DatasetError, match=problem):
        mixture[0]


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ({"streams": {}}, "datasets: None is not a mapping"),
        ({"streams": {}, "datasets": {}}, "layout: 0 streams"),
        ({"streams": {"a": {}}, "datasets": {}}, r"streams\.a: give either dim, from 1 to 4096, or image_size"),
        (
            {"streams": {"a": {"dims": 1}}, "datasets": {}},
            r"streams\.a: 'dims' is not one of dim.*; did you mean 'dim'",
        ),
        (
            {"streams": {"a": {"dim": 1, "role": "x"}}, "datasets": {}},
            r"streams\.a\.role: 'x' is not one of observation",
        ),
        ({"streams": {"a": {"dim": 1, "align": "x"}}, "datasets": {}}, r"streams\.a\.align: 'x' is not one of angle"),
        ({"streams": {"a": {"dim": 1}}, "datasets": {"d": {"b": "c"}}}, r"datasets\.d\.b: not a stream of the layout"),
        ({"streams": {"a": {"dim": 1}}, "datasets": {"d": {"a": {}}}}, r"datasets\.d\.a\.from: give the name"),
        (
            {"streams": {"a": {"dim": 1}}, "datasets": {"d": {"a": {"from": "c", "columns": [0, 1]}}}},
            r"datasets\.d\.a\.columns: give 1 indices from 0 on, or names",
        ),
        (
            {"streams": {"a": {"dim": 2}}, "datasets": {"d": {"a": {"from": "c", "scale": [1]}}}},
            r"datasets\.d\.a\.scale: \[1\] is neither a number nor 2 numbers",
        ),
    ],
)
def test_what_is_wrong_in_a_layout_is_named(layout: dict[str, Any], problem: str) -> None:
    with pytest.raises(RoboCacheError, match=problem):
        load_layout(layout)


def test_a_file_that_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "layout.yaml").write_text("streams:\n  a: [")

    with pytest.raises(RoboCacheError, match=r"layout\.yaml: line 2: "):
        load_layout(tmp_path / "layout.yaml")


def test_cameras_of_different_sizes_become_one_tensor(tmp_path: Path) -> None:
    path = write_calvin(tmp_path / "training")

    sample = CALVINDataset(path, image_size=(12, 16))[0]

    assert sample["vision"].shape == (9, 2, 12, 16, 3)  # 6 steps at 30 Hz are 9 ticks at 50 Hz
    assert "vision/static" not in sample
    assert sample["vision"][0, 0].unique().tolist() == [0]
    assert sample["vision"][0, 1].unique().tolist() == [100]


def test_without_a_size_they_are_keys_of_their_own(tmp_path: Path) -> None:
    sample = CALVINDataset(write_calvin(tmp_path / "training"))[0]

    assert sample["vision/static"].shape == (9, 20, 20, 3)
    assert sample["vision/gripper"].shape == (9, 8, 8, 3)
    assert "vision" not in sample


@pytest.mark.parametrize("resize", ["bilinear", "nearest", "area"])
def test_the_bits_are_those_of_the_operation(resize: str, exported: Callable[[str], Path]) -> None:
    path = exported("image") / "webdataset"
    whole = open_dataset("webdataset", path)[1]["vision/front"][0]

    small = open_dataset("webdataset", path, image_size=(60, 80), image_resize=resize)[1]["vision"][0, 0]

    height, width = whole.shape[:2]
    data = whole.contiguous().view(-1)
    made = convert_image(
        data, encoding="rgb8", width=width, height=height, step=3 * width, size=(60, 80), resize=resize
    )
    assert torch.equal(small, made.permute(1, 2, 0))


def test_the_bits_are_those_of_an_export_of_that_size(bag: Path, spec: FusionSpec, tmp_path: Path) -> None:
    exports = {}
    for name, size in (("small", [60, 80]), ("source", None)):
        raw = spec.to_dict()
        raw["streams"] = {key: raw["streams"][key] for key in ("gripper", "wrist", "action")}
        raw["streams"]["wrist"]["image"] = {"size": size} if size else {}
        options = DatasetOptions(formats=("webdataset",), media="image")
        exports[name] = export([bag], load_spec(raw), tmp_path / name, options).out

    small = open_dataset("webdataset", exports["small"])[0]["vision"]
    resized = open_dataset("webdataset", exports["source"], image_size=(60, 80))[0]["vision"]

    assert torch.equal(resized, small)


def test_a_window_has_resized_images(tmp_path: Path) -> None:
    path = write_calvin(tmp_path / "training")

    sample = CALVINDataset(path, image_size=(4, 4), window=Window(n_obs=2))[3]

    assert sample["vision"].shape == (2, 2, 4, 4, 3)


@pytest.mark.parametrize("size", [(0, 4), (4,), 224, (4.0, 4)])
def test_a_size_that_is_none_is_refused(size: object, tmp_path: Path) -> None:
    path = write_calvin(tmp_path / "training")

    with pytest.raises(RoboCacheError, match=r"image_size: .* is not a height and a width from 1 to 16384 px"):
        CALVINDataset(path, image_size=size)


def test_another_way_of_resizing_is_refused(tmp_path: Path) -> None:
    path = write_calvin(tmp_path / "training")

    with pytest.raises(RoboCacheError, match="image_resize: 'cubic' is not one of bilinear, nearest, area"):
        CALVINDataset(path, image_size=(4, 4), image_resize="cubic")


def test_an_image_without_a_sample_stays_black(exported: Callable[[str], Path]) -> None:
    dataset = open_dataset("webdataset", exported("image") / "webdataset", image_size=(8, 8))
    stream = dataset.streams_of(0).streams["vision/front"]

    assert stream.values.frames(np.array([0])).shape == (1, 8, 8, 3)
