"""Images of datasets in one size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros import convert_image
from robocache_ros.datasets import CALVINDataset, Window, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.conftest import write_calvin


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
