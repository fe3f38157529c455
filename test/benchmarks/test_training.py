"""The benchmark of trainings runs, in miniature and on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.episodes import InterpolatingDataset, mixed_rate_dataset, write_episodes
from benchmarks.training import __main__ as bench
from benchmarks.training.measured import Size
from benchmarks.training.parts import PARTS
from robocache_ros.datasets import Window

pytest.importorskip("h5py")


@pytest.mark.parametrize("keep_open", [False, True])
def test_the_baseline_and_the_loader_train_on_the_same_values(keep_open, tmp_path):
    window = Window(n_obs=3, horizon=4)
    write_episodes(tmp_path / "episodes.hdf5", 2)
    ours = mixed_rate_dataset(tmp_path / "episodes.hdf5", window)
    baseline = InterpolatingDataset(tmp_path / "episodes.hdf5", window, keep_open=keep_open)

    # The first tick is the first one on the grid after the first stamp; both grids are multiples of 20 ms.
    for tick in (10, 100, 200):
        mine, other = ours[tick], baseline[tick + int(ours[0]["tick_ns"][-1]) // 20_000_000]
        # Stamps of the baseline are float64 seconds.
        torch.testing.assert_close(mine["proprio"], other["proprio"], atol=1e-5, rtol=0)
        assert mine["actions"].shape == other["actions"].shape
        assert torch.equal(mine["action_is_pad"], other["action_is_pad"])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures the parts here, which saves processes that import torch."""

    def rows_of(wanted: dict[str, Any]) -> Any:
        measure = PARTS[wanted["part"]].measure
        return measure(Size(**wanted["size"]), torch.device("cpu"), Path(wanted["episodes"]))

    monkeypatch.setattr(bench, "rows_of", rows_of)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_quick_run_writes_every_part(tmp_path):
    assert bench.main(["--quick", "--out", str(tmp_path)]) == 0

    record = json.loads((tmp_path / "training.json").read_text())
    assert set(record["took_s"]) == set(PARTS)
    assert not [row for row in record["rows"] if row["what"] == "failed"]
    measured = {row["what"] for row in record["rows"] if row["value"] is not None}
    assert {"step on ready tensors", "step from DataLoader, 8 workers, np.interp"} <= measured
    assert {"step from disk / on ready tensors", "TimelineLoader, from disk / first"} <= measured
    text = (tmp_path / "training.md").read_text()
    assert "| 1.56 ms | 0.22 ms |" in text
    assert "not reached in" in text or "1 steps, 64 samples" in text
    assert "no figure means anything" in text


ROW = {"part": "step", "what": "a", "value": 1.0, "unit": "ms"}


@pytest.mark.parametrize(
    ("ends", "reason"),
    [("import sys; sys.exit(3)", "exit status 3"), ("import signal; signal.pause()", "ended after 3 s")],
)
def test_a_part_that_fails_or_hangs_is_in_the_results_with_what_it_measured(ends, reason, tmp_path, monkeypatch):
    program = f"print({json.dumps(json.dumps(ROW))}, flush=True); {ends}"
    monkeypatch.setattr(bench, "RUN_PART", (sys.executable, "-c", program))

    assert bench.main(["--quick", "--out", str(tmp_path), "--part", "step", "--limit-s", "3"]) == 1

    first, second = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert first == {**first, **ROW}
    assert (second["part"], second["what"], second["value"]) == ("step", "failed", None)
    assert second["note"] == f"{reason}; the reason is in its output"
