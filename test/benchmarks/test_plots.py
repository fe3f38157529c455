"""The plots of results that are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots
from benchmarks.plots import BOUND, OURS, PEER
from robocache_ros.errors import RoboCacheError

ABOUT = {"gpu": "none", "cores": 2, "torch": "2", "python": "3", "date": "2026-01-01 00:00 UTC"}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def row(what: str, value: float | None, unit: str, published: str = "", wanted: str = "") -> dict[str, Any]:
    return {"part": "act", "what": what, "value": value, "unit": unit, "published": published, "wanted": wanted}


def scaled(what: str, processes: int, rate: float, mode: str = "weak") -> dict[str, Any]:
    about = {"mode": mode, "what": what, "policy": "act", "device": "cuda"}
    return {**about, "processes": processes, "batch": 64, "samples_per_s": rate}


def bars(*rows: dict[str, Any]) -> list[plots.Bar]:
    """The bars of rows of one unit."""
    (panel,) = plots.panels(rows)
    return list(panel.bars)


def test_rows_that_are_times_or_rates_are_bars_with_published_and_wanted_figures_as_marks():
    shown = plots.panels([row("a", 1.0, "ms"), row("b", None, "ms"), row("c", 9.0, "%"), row("d", 2.0, "s")])
    assert [(panel.unit, [bar.name for bar in panel.bars]) for panel in shown] == [("ms", ["a"]), ("s", ["d"])]
    (bar,) = bars(row("step", 0.3, "ms", "1.56 ms", "0.22 ms"))
    assert bar.marks == {"published": 1.56, "wanted": 0.22}


def test_a_wanted_ratio_is_a_mark_at_so_many_times_the_other_or_the_first_row_and_a_range_is_none():
    ready, disk = bars(
        row("step on ready tensors", 20.0, "ms"),
        row("step from disk", 21.0, "ms"),
        row("step from disk / on ready tensors", 1.05, "x", wanted="1.01"),
    )
    assert (ready.marks, disk.marks) == ({}, {"wanted": pytest.approx(20.2)})
    peer, ours = bars(
        row("DataLoader", 100.0, "samples/s"),
        row("TimelineLoader", 300.0, "samples/s"),
        row("TimelineLoader / first", 3.0, "x", "2 to 5", "5"),
    )
    assert (peer.kind, ours.kind) == (PEER, OURS)
    assert ours.marks == {"wanted": 500.0}


def test_the_goal_of_a_loader_is_a_mark_of_its_best_form():
    case = {
        "title": "rlds",
        "machine": ABOUT,
        "unit": "episodes/s",
        "rates": {"ours, 0 workers": 1.0, "ours, 2 workers": 3.0, "bound: jpeg": 4.0, "tf.data": 2.0},
        "best": "ours, 2 workers",
        "peer": {"best": "tf.data", "times": 1.5, "wanted": 1.3},
    }

    (panel,) = plots.of_cases({"rlds": case})

    assert panel.title == "rlds, 2026-01-01"
    assert [bar.kind for bar in panel.bars] == [OURS, OURS, BOUND, PEER]
    assert [bar.marks for bar in panel.bars] == [{}, {"wanted": pytest.approx(2.6)}, {}, {}]


def test_the_efficiency_is_the_rate_per_gpu_over_that_of_one():
    rows = [scaled("training", 1, 10.0), scaled("training", 2, 15.0), scaled("training", 2, 19.0)]
    assert plots.efficiencies(plots.lines_of(rows, "training")["weak"]) == {1: 100.0, 2: 95.0}
    assert plots.efficiencies({2: 19.0}) == {}


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("training", {"rows": [row("a", 1.0, "ms", "30 ms"), row("b", 2.0, "ms", "", "1 ms")]}),
        ("formats", {"rows": [row("DataLoader", 1.0, "samples/s"), row("b", 1e6, "samples/s")]}),
        ("scaling", {"rows": [scaled("loading", 1, 5.0), scaled("loading", 2, 9.0, "strong")]}),
        ("waits", {"gigabytes": 1, "minutes": 2, "rows": [{"what": "robocache info", "cpu_s": 2.0, "rounds": 5}]}),
    ],
    ids=["training", "formats", "scaling", "waits"],
)
def test_results_are_drawn(name, record, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / f"{name}.json").write_text(json.dumps({"machine": ABOUT, **record}), encoding="utf-8")
    plots.main(["--results", str(tmp_path), "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_recorded_results_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    names = [name for name in plots.DRAW if (RESULTS / f"{name}.json").exists()]

    plots.main([*names, "--results", str(RESULTS), "--out", str(tmp_path)])

    drawn = {path.stem for path in tmp_path.iterdir()}
    assert drawn == set(names) >= {"loading", "loading_on_gpu", "vectors", "spatial"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, r"no results of training, .*; measure first"), ("{", "training.json: .*; measure again")],
)
def test_missing_and_damaged_results_are_named(content, message, tmp_path):
    if content is not None:
        (tmp_path / "training.json").write_text(content, encoding="utf-8")
    with pytest.raises(RoboCacheError, match=message):
        plots.main(["--results", str(tmp_path), "--out", str(tmp_path)])
