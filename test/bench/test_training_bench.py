"""The benchmark of trainings runs, in miniature and on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from robocache_ros.bench.training.__main__ import PARTS, main
from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset
from robocache_ros.bench.training.mixed_rate_episodes import MixedRateEpisodes, write_episodes
from robocache_ros.datasets import TimelineDataset, Window

pytest.importorskip("h5py")


@pytest.mark.parametrize("keep_open", [False, True])
def test_the_baseline_and_the_loader_train_on_the_same_values(keep_open: bool, tmp_path: Path) -> None:
    window = Window(n_obs=3, horizon=4)
    write_episodes(tmp_path / "episodes.hdf5", 2)
    ours = TimelineDataset(MixedRateEpisodes(tmp_path / "episodes.hdf5"), window=window, modalities=("proprio",))
    baseline = InterpolatingDataset(tmp_path / "episodes.hdf5", window, keep_open=keep_open)

    # The first tick is the first one on the grid after the first stamp; both grids are multiples of 20 ms.
    for tick in (10, 100, 200):
        mine, other = ours[tick], baseline[tick + int(ours[0]["tick_ns"][-1]) // 20_000_000]
        # Stamps of the baseline are float64 seconds.
        torch.testing.assert_close(mine["proprio"], other["proprio"], atol=1e-5, rtol=0)
        assert mine["actions"].shape == other["actions"].shape
        assert torch.equal(mine["action_is_pad"], other["action_is_pad"])


def test_a_quick_run_writes_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--out", str(tmp_path)]) == 0

    record = json.loads((tmp_path / "training.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rows"] == record["rows"]
    assert set(record["took_s"]) == set(PARTS)
    assert not [row for row in record["rows"] if row["what"] == "failed"]
    measured = [row["what"] for row in record["rows"] if row["value"] is not None]
    assert {"step on ready tensors", "step from disk / on ready tensors", "TimelineLoader, from disk / first"} <= {
        *measured
    }
    text = (tmp_path / "training.md").read_text()
    assert "| 1.56 ms | 0.22 ms |" in text
    assert "no figure means anything" in text


def test_a_part_that_fails_is_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("robocache_ros.bench.training.against_dataloader.measure", broken)

    assert main(["--quick", "--out", str(tmp_path), "--part", "diffusion"]) == 1

    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert rows == [{**rows[0], "part": "diffusion", "what": "failed", "value": None, "note": "out of memory"}]
