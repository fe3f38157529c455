"""Datasets with different columns in one layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.datasets import (
    CALVINDataset,
    DatasetError,
    SourceEpisode,
    Stream,
    TimelineDataset,
    TimelineLoader,
    WeightedMixture,
    Window,
)
from robocache_ros.datasets.mixture import load_layout
from robocache_ros.errors import RoboCacheError
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
