"""The benchmark of the loader: its data, how it compares rates, and peers that read what this package reads."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import recordings
from benchmarks.loading import __main__ as loading
from benchmarks.loading import datasets
from benchmarks.loading.__main__ import as_markdown, summary
from benchmarks.loading.trajectories import (
    STREAMS,
    TICKS,
    InterpTrajectories,
    VectorisedTrajectories,
    write_trajectories,
)
from benchmarks.training.cameras import FPS, WINDOW, SeekingDataset
from robocache_ros.datasets import (
    Hdf5Trajectories,
    LeRobotTimelineDataset,
    RoboMimicDataset,
    RTXDataset,
    TimelineDataset,
)
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.training_data import open_for_training
from test.exporting import export

FASTEST = {"ours, 0 workers": 10.0, "ours, 2 workers": 30.0, "peer a": 5.0, "bound: x": 99}
ROUNDS = [{**FASTEST, "peer b": 10.0, "nested loop": 1.0}, {**FASTEST, "peer b": 6.0, "nested loop": 2.0}]


def test_the_best_forms_are_compared_within_each_round():
    found = summary(ROUNDS, {"peer": 1.3, "nested loop": 3})
    assert found["best"] == "ours, 2 workers"
    assert found["peer"] == {"best": "peer b", "times": 4.0, "wanted": 1.3}
    assert found["nested loop"] == {"best": "nested loop", "times": 22.5, "wanted": 3}


def test_the_report_has_the_ratio_and_what_is_wanted():
    machine = {"cores": 2, "cpu": "C", "python": "3", "date": "D", "load_before": 0}
    about = {"title": "T", "note": "N", "unit": "batches/s", "machine": machine, "rounds": 2}

    text = as_markdown({"cases": {"t": {**about, **summary(ROUNDS, {"peer": 1.3})}}})

    assert "ours, 2 workers: 4 times peer b (wanted: 1.3)." in text
    assert "2 cores of an C, Python 3, D, load before 0, 2 rounds." in text


def test_the_data_is_read_by_the_datasets(tmp_path):
    for module in ("h5py", "av", "PIL", "rosbags"):
        pytest.importorskip(module)

    assert len(RoboMimicDataset(datasets.robomimic(tmp_path / "lift.hdf5", demos=2))) == 2
    episode = RTXDataset(datasets.rlds(tmp_path / "rlds", episodes=1, shards=1), target_hz=10, rate_hz=10)[0]
    assert tuple(episode["vision"].shape) == (100, 1, 256, 256, 3)
    videos = LeRobotTimelineDataset(datasets.lerobot(tmp_path / "lerobot", seconds=0.5), target_hz=30)[0]
    assert tuple(videos["vision"].shape[1:]) == (2, 224, 224, 3)
    assert not videos["measured"].any()


def test_datasets_that_were_measured_before_a_failure_are_written(tmp_path, monkeypatch):
    def measured(name: str, *_: object) -> dict[str, float]:
        if name == "rlds":
            raise RuntimeError("out of memory")
        return {"ours": 3.0, "peer": 1.0}

    monkeypatch.setattr("sys.argv", ["loading", f"--out={tmp_path / 'out'}", "--case=robomimic", "--case=rlds"])
    monkeypatch.setattr(loading, "_write", lambda _folder, cases: dict.fromkeys(cases, tmp_path))
    monkeypatch.setattr(loading, "_round", measured)

    with pytest.raises(RuntimeError, match="out of memory"):
        loading.main()

    found = json.loads((tmp_path / "out" / "loading.json").read_text(encoding="utf-8"))["cases"]
    assert found["robomimic"]["peer"]["times"] == 3.0
    assert "ours: 3 times peer" in (tmp_path / "out" / "loading.md").read_text(encoding="utf-8")


def test_all_ways_to_load_a_trajectory_give_the_same_values(tmp_path):
    pytest.importorskip("h5py")
    path = tmp_path / "trajectories.hdf5"
    write_trajectories(path, 2)
    episode = TimelineDataset(Hdf5Trajectories(path), modalities=("proprio",))
    names = episode.stream_names()
    ours = dict(zip(names, episode[1]["fused"].split([STREAMS[name][1] for name in names], dim=1), strict=True))

    expected = torch.cat([ours[name][:TICKS] for name in STREAMS], dim=1)

    assert torch.allclose(InterpTrajectories(path, 2)[1], expected, atol=1e-5)
    assert torch.allclose(VectorisedTrajectories(path, 2)[1], expected, atol=1e-5)


@pytest.mark.parametrize("gop", [2, 30])
def test_a_seeking_reader_has_the_samples_of_the_loader(tmp_path, gop):
    paths = [recordings.write(tmp_path / f"bag_{scene}", 2, 2, size=64, scene=scene) for scene in range(2)]
    options = DatasetOptions(gop=gop, codec="h264")
    out = export(paths, load_spec(recordings.spec(2)), tmp_path / "dataset", options).out
    dataset, peer = open_for_training(out, rate_hz=FPS, window=WINDOW, vision=True), SeekingDataset(out)

    assert len(dataset) == len(peer)
    for index in (0, 1, 31, len(peer) // 2, len(peer) - 1):
        ours, theirs = dataset[index], peer[index]
        assert torch.equal(ours["vision"][0], theirs["vision"])
        assert all(torch.equal(ours[key], theirs[key]) for key in ("proprio", "actions", "action_is_pad"))
