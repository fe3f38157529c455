"""The peer of the benchmark of trainings on videos reads what this package reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import recordings
from benchmarks.training.cameras import FPS, WINDOW, SeekingDataset
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.training_data import open_for_training
from test.exporting import export


@pytest.mark.parametrize("gop", [2, 30])
def test_a_seeking_reader_has_the_samples_of_the_loader(tmp_path: Path, gop: int) -> None:
    paths = [recordings.write(tmp_path / f"bag_{scene}", 2, 2, size=64, scene=scene) for scene in range(2)]
    options = DatasetOptions(gop=gop, codec="h264")
    out = export(paths, load_spec(recordings.spec(2)), tmp_path / "dataset", options).out
    dataset, peer = open_for_training(out, rate_hz=FPS, window=WINDOW, vision=True), SeekingDataset(out)

    assert len(dataset) == len(peer)
    for index in (0, 1, 31, len(peer) // 2, len(peer) - 1):
        ours, theirs = dataset[index], peer[index]
        assert torch.equal(ours["vision"][0], theirs["vision"])
        assert all(torch.equal(ours[key], theirs[key]) for key in ("proprio", "actions", "action_is_pad"))
