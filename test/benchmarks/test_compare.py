"""Two results of a benchmark, compared figure by figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.compare import as_text, compare, figures
from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[2]


def written(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def result(**us: float) -> dict[str, Any]:
    """A table of times."""
    return {"machine": {"cores": 2}, "rows": [{"workload": name, "ours": each} for name, each in us.items()]}


def formats(**rates: float) -> dict[str, Any]:
    """Rows as `python -m benchmarks formats` writes them: each run has another note."""
    about = {"part": "rlds", "unit": "samples/s"}
    rows = [{**about, "what": what, "value": each, "note": f"{1 / each:g} ms"} for what, each in rates.items()]
    return {"machine": {"cores": 2}, "size": {"seconds": rates["read"]}, "rows": rows}


def training(what: str, unit: str, value: float) -> dict[str, Any]:
    return {"rows": [{"part": "act", "what": what, "unit": unit, "value": value}]}


LEFT_OUT = {
    "rows": [*formats(read=100)["rows"], {"part": "rlds", "what": "cached", "value": None, "unit": "samples/s"}]
}
SHARE = "GPU utilisation, from disk"


@pytest.mark.parametrize(
    ("old", "new", "better", "worse", "missing"),
    [
        # A longer time and a lower rate are worse, and noise is neither.
        (
            result(fuse=10.0, resample=10.0, voxels=10.0),
            result(fuse=12.0, resample=10.4, voxels=5.0),
            {"rows voxels ours": 1.0},
            {"rows fuse ours": 10 / 12 - 1},
            [],
        ),
        ({"rows_per_s": 100}, {"rows_per_s": 50}, {}, {"rows_per_s": -0.5}, []),
        # Rows are paired by their texts, and those of one part by their units.
        (result(fuse=1.0), result(added=7.0, fuse=1.0), {}, {}, []),
        (formats(read=100, cached=900), formats(read=50, cached=910), {}, {"rows rlds, read samples/s": -0.5}, []),
        (formats(read=100, cached=900), LEFT_OUT, {}, {}, ["rows rlds, cached samples/s"]),
        # Each figure of a training has its direction.
        *(
            (training(what, unit, 1.0), training(what, unit, 2.0), better, worse, [])
            for what, unit, better, worse in (
                ("step from disk", "ms", {}, {"rows act, step from disk ms": -0.5}),
                (SHARE, "%", {f"rows act, {SHARE} %": 1.0}, {}),
                ("waiting for data, from disk", "%", {}, {"rows act, waiting for data, from disk %": -0.5}),
                ("step from disk / on ready tensors", "x", {}, {"rows act, step from disk / on ready tensors x": -0.5}),
                ("TimelineLoader, from disk / first", "x", {"rows act, TimelineLoader, from disk / first x": 1.0}, {}),
            )
        ),
    ],
)
def test_figures_are_compared(old, new, better, worse, missing, tmp_path):
    found = compare(written(tmp_path / "old.json", old), written(tmp_path / "new.json", new))
    assert {each.name: each.change for each in found.better} == pytest.approx(better)
    assert {each.name: each.change for each in found.worse} == pytest.approx(worse)
    assert (found.missing, found.zero, found.machines) == (missing, [], [])


def test_folders_are_compared_by_the_names_of_files_whatever_folders_they_are_in(tmp_path):
    written(tmp_path / "suite" / "tick" / "tick.json", {"ms": 1.0})
    written(tmp_path / "suite" / "tick" / "tick_trace.json", {"traceEvents": [{"ms": 7.0}]})
    written(tmp_path / "recorded" / "tick.json", {"ms": 2.0})
    (worse,) = compare(tmp_path / "suite", tmp_path / "recorded").worse
    assert (worse.name, worse.old, worse.new) == ("tick: ms", 1.0, 2.0)
    assert list(figures(tmp_path / "suite")) == ["tick: ms"]


@pytest.mark.parametrize("name", ["vectors", "spatial", "tick", "roofline", "loading_on_gpu"])
def test_recorded_results_have_figures_and_equal_themselves(name):
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    assert len(figures(file)) > 5
    assert compare(file, file) == ([], [], [], [], [])


def test_figures_that_cannot_be_compared_are_named(tmp_path):
    old = written(tmp_path / "a.json", {"ms": 2, "lost": 0, "gone": 3, "late": 0, **{f"x{k}": 1 for k in range(7)}})
    new = written(tmp_path / "b.json", {"ms": 2, "lost": 9, "added": 1, "late": 0})
    found = compare(old, new)
    assert found == ([], [], ["gone", *(f"x{k}" for k in range(7))], ["lost"], [])
    assert as_text(found, 0.05).splitlines() == [
        "not in the new results: gone; x0; x1; x2; x3 and 3 more",
        "from or to 0, so without a ratio: lost",
        "0 figures are worse and 0 better by more than 5%",
    ]


@pytest.mark.parametrize("content", ["", "[", "{}"])
def test_a_file_without_figures_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    with pytest.raises(RoboCacheError, match=r"give a results file|compare one benchmark"):
        compare(tmp_path / "a.json", tmp_path / "a.json")


def test_the_command_exits_with_1_if_a_figure_is_worse(tmp_path, capsys):
    old, new = (written(tmp_path / f"{us}.json", result(fuse=us)) for us in (10.0, 20.0))
    with pytest.raises(SystemExit, match="1"):
        main(["compare", str(old), str(new)])
    printed = capsys.readouterr().out
    assert "-50.0%            10            20  rows fuse ours" in printed
    assert "1 figures are worse and 0 better by more than 5%" in printed
    with pytest.raises(SystemExit, match="0"):
        main(["compare", str(new), str(old)])


def test_another_machine_and_other_versions_are_named(tmp_path):
    machines = ({"gpu": "H200", "torch": "2.11", "date": "1"}, {"gpu": "H100", "torch": "2.11", "date": "2"})
    files = [written(tmp_path / f"{m['gpu']}.json", {"machine": m, "ms": 1.0}) for m in machines]
    found = compare(*files)
    assert found.machines == ["gpu H200 -> H100"]
    assert as_text(found, 0.05).startswith("another machine or version: gpu H200 -> H100\n")
