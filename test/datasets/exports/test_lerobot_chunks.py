"""LeRobot datasets whose rows and videos are in several files and chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robocache_ros.datasets import LeRobotTimelineDataset
from robocache_ros.exporter.job import export
from robocache_ros.formats.lerobot import write
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions

EVERYTHING = ("vision", "proprio", "language", "voxels")


def test_episodes_in_files_and_chunks_of_their_own_are_those_of_one_file(
    bag: Path, spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = DatasetOptions(formats=("lerobot",), task="lift the cube", media="video")
    together = export([bag], spec, tmp_path / "together", options).out
    for name in ("DATA_FILE_MB", "VIDEO_FILE_MB"):
        monkeypatch.setattr(write, name, 0)
    monkeypatch.setattr(write, "CHUNK_FILES", 1)

    apart = export([bag], spec, tmp_path / "apart", options).out

    assert len(list(apart.glob("data/chunk-*/*.parquet"))) == 2
    assert len(list(apart.glob("videos/observation.images.front/chunk-*/*.mp4"))) == 2
    first, second = (LeRobotTimelineDataset(path, EVERYTHING) for path in (together, apart))
    assert len(first) == len(second) == 2
    for index in range(2):
        one, other = first[index], second[index]
        assert one["language"] == other["language"] == "lift the cube"
        assert all(torch.equal(one[key], other[key]) for key in one if isinstance(one[key], torch.Tensor))
