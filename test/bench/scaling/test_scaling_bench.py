"""The benchmark of scaling runs on processes of the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from robocache_ros.bench.scaling import __main__ as bench
from robocache_ros.bench.scaling.rates import table
from robocache_ros.bench.scaling.scaling_process import APART, PEER, keep_to_share

pytest.importorskip("h5py")


@pytest.mark.timeout(300)  # processes that import torch, on a machine that may be busy
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


@pytest.mark.parametrize(
    ("cpus", "processes", "sizes"), [(4, 2, [2, 2]), (5, 2, [2, 2]), (2, 2, [1, 1]), (8, 1, [8]), (8, 4, [2] * 4)]
)
def test_processes_share_the_cores_without_overlap(
    cpus: int, processes: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = shares_of(range(cpus), processes, monkeypatch)

    assert [len(share) for share in shares] == sizes
    assert len(set().union(*shares)) == sum(sizes)


def test_more_processes_than_cores_have_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares_of([7], 2, monkeypatch) == [{7}, {7}]
    assert sorted(map(sorted, shares_of([0, 1], 3, monkeypatch))) in ([[0], [0], [1]], [[0], [1], [1]])


def shares_of(cpus: Iterable[int], processes: int, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The cores of each process on a machine with some cores."""
    shares: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(cpus))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _process, share: shares.append(set(share)))
    for rank in range(processes):
        keep_to_share(rank, processes)
    return shares
