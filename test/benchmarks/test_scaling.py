"""Each process of the benchmark of scaling has a share of the cores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks import scaling as bench
from benchmarks import scaling_process
from benchmarks.scaling_process import APART, keep_to_share
from robocache_ros.training.throughput import table


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 2 processors with 2 cores of 2 threads each; the threads of core n are CPU n and CPU n + 4."""
    for cpu in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / f"node{cpu % 4 // 2}").mkdir()
        (folder / "topology/physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (folder / "topology/core_id").write_text(f"{cpu % 4}\n")
    monkeypatch.setattr(scaling_process, "SYSTEM", tmp_path)
    return tmp_path


def shares_of(
    cpus: Iterable[int], processes: int, monkeypatch: pytest.MonkeyPatch, nodes: Sequence[int] = ()
) -> list[set[int]]:
    """The cores of each process on a machine with some cores."""
    shares: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(cpus))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _process, share: shares.append(set(share)))
    for rank in range(processes):
        keep_to_share(rank, processes, nodes)
    return shares


@pytest.mark.parametrize(
    ("cpus", "processes", "sizes"), [(4, 2, [2, 2]), (5, 2, [2, 2]), (2, 2, [1, 1]), (8, 1, [8]), (8, 4, [2] * 4)]
)
def test_processes_share_the_cores_without_overlap(cpus, processes, sizes, monkeypatch):
    shares = shares_of(range(cpus), processes, monkeypatch)
    assert [len(share) for share in shares] == sizes
    assert len(set().union(*shares)) == sum(sizes)


@pytest.mark.usefixtures("system")
def test_a_share_is_near_the_gpu_of_its_process(monkeypatch):
    assert shares_of(range(8), 2, monkeypatch, [1, 0]) == [{2, 3, 6, 7}, {0, 1, 4, 5}]
    assert shares_of(range(8), 4, monkeypatch, [1, 0, 1, 0]) == [{2, 6}, {0, 4}, {3, 7}, {1, 5}]


# The benchmark of scaling runs on processes of the CPU.


pytest.importorskip("h5py")


@pytest.mark.slow
def test_a_quick_run_measures_one_process_and_two(tmp_path):
    assert bench.main(["--quick", "--out", str(tmp_path)]) == 0

    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    ours, peers = {"loading", "preprocessing", "training"}, {APART}
    assert {(row["mode"], row["processes"], row["what"]) for row in rows} == {
        (mode, count, what)
        for mode in ("weak", "strong")
        for count in (1, 2)
        for what in (ours | peers if mode == "weak" or count == 1 else ours)
    }
    assert {(row["mode"], row["batch"]) for row in rows if row["processes"] == 2} == {("weak", 4), ("strong", 2)}
    text = (tmp_path / "scaling.md").read_text()
    assert text.count("100.0%") == 8
    assert "8 processes: not measured, needs 8 GPUs." in text


def test_processes_that_fail_are_named_with_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PROCESS", "import sys; sys.exit(1)")
    monkeypatch.setattr(bench, "COUNTS", (1,))

    assert bench.main(["--quick", "--out", str(tmp_path)]) == 1

    text = (tmp_path / "scaling.md").read_text()
    assert "1 processes: not measured, exit status 1; the reason is in its output." in text


def test_the_efficiency_is_that_of_the_last_rows():
    about = {"mode": "weak", "what": "loading", "policy": "tiny", "device": "cuda"}
    rows = [{**about, "processes": count, "samples_per_s": each} for count, each in ((1, 9.0), (1, 10.0), (2, 19.0))]

    assert table(rows).splitlines()[2:] == [
        "| weak, loading, tiny, cuda | 1 | 10 | 100.0% |",
        "| weak, loading, tiny, cuda | 2 | 19 | 95.0% |",
    ]
    assert "needs a run with 1 process" in table(rows[2:])
