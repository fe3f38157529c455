"""The benchmark of scaling runs on processes of the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robocache_ros.bench.scaling import __main__ as bench
from robocache_ros.bench.scaling.rates import table
from robocache_ros.bench.scaling.scaling_process import APART, PEER

pytest.importorskip("h5py")


def test_a_quick_run_measures_one_process_and_two(tmp_path: Path) -> None:
    assert bench.main(["--quick", "--out", str(tmp_path)]) == 0

    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    ours, peers = {"loading", "preprocessing", "training"}, {PEER, APART}
    assert {(row["mode"], row["processes"], row["what"]) for row in rows} == {
        (mode, count, what)
        for mode in ("weak", "strong")
        for count in (1, 2)
        for what in (ours | peers if mode == "weak" or count == 1 else ours)
    }
    assert {(row["mode"], row["batch"]) for row in rows if row["processes"] == 2} == {("weak", 4), ("strong", 2)}
    text = (tmp_path / "scaling.md").read_text()
    assert text.count("100.0%") == 10
    assert "8 processes: not measured, needs 8 GPUs." in text


def test_processes_that_fail_are_named_with_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROCESS", "import sys; sys.exit(1)")
    monkeypatch.setattr(bench, "COUNTS", (1,))

    assert bench.main(["--quick", "--out", str(tmp_path)]) == 1

    assert (
        "1 processes: not measured, exit status 1; the reason is in its output."
        in (tmp_path / "scaling.md").read_text()
    )


def test_the_efficiency_is_that_of_the_last_rows() -> None:
    about = {"mode": "weak", "what": "loading", "policy": "tiny", "device": "cuda"}
    rows = [{**about, "processes": count, "samples_per_s": each} for count, each in ((1, 9.0), (1, 10.0), (2, 19.0))]

    assert table(rows).splitlines()[2:] == [
        "| weak, loading, tiny, cuda | 1 | 10 | 100.0% |",
        "| weak, loading, tiny, cuda | 2 | 19 | 95.0% |",
    ]
    assert "needs a run with 1 process" in table(rows[2:])
