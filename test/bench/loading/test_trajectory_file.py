"""The trajectories of the benchmark: all ways to load them compute the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robocache_ros.bench.loading.trajectory_file import (
    STREAMS,
    TICKS,
    InterpTrajectories,
    VectorisedTrajectories,
    write_trajectories,
)
from robocache_ros.datasets import Hdf5Trajectories, TimelineDataset

pytest.importorskip("h5py")


def test_all_ways_to_load_a_trajectory_give_the_same_values(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.hdf5"
    write_trajectories(path, 2)
    episode = TimelineDataset(Hdf5Trajectories(path), modalities=("proprio",))
    names = episode.stream_names()
    ours = dict(zip(names, episode[1]["fused"].split([STREAMS[name][1] for name in names], dim=1), strict=True))

    expected = torch.cat([ours[name][:TICKS] for name in STREAMS], dim=1)

    assert torch.allclose(InterpTrajectories(path, 2)[1], expected, atol=1e-5)
    assert torch.allclose(VectorisedTrajectories(path, 2)[1], expected, atol=1e-5)
