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


def result(file: Path, **rows: float) -> Path:
    table = [{"workload": name, "ours": us} for name, us in rows.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"machine": {"cores": 2}, "rows": table}), encoding="utf-8")
    return file


def written(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_a_longer_time_is_worse_and_noise_is_neither(tmp_path: Path) -> None:
    old = result(tmp_path / "old.json", fuse=10.0, resample=10.0, voxels=10.0)
    new = result(tmp_path / "new.json", fuse=12.0, resample=10.4, voxels=5.0)
    better, worse, *_ = compare(old, new)
    assert [each.name for each in worse] == ["rows fuse ours"]
    assert [each.name for each in better] == ["rows voxels ours"]


def test_a_lower_rate_is_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path / "a.json", {"rows_per_s": 100}), written(tmp_path / "b.json", {"rows_per_s": 50})
    assert [each.change for each in compare(old, new)[1]] == [-0.5]


def test_rows_are_paired_by_their_texts(tmp_path: Path) -> None:
    old = result(tmp_path / "old.json", fuse=1.0)
    new = result(tmp_path / "new.json", added=7.0, fuse=1.0)
    assert compare(old, new) == ([], [], [], [], [])


def formats(file: Path, **rates: float) -> Path:
    """Rows as `python -m benchmarks formats` writes them: each run has another note."""
    rows = [
        {"part": "rlds", "what": what, "value": rate, "unit": "samples/s", "note": f"{1 / rate:g} ms a batch"}
        for what, rate in rates.items()
    ]
    return written(file, {"machine": {"cores": 2}, "size": {"seconds": rates["read"]}, "rows": rows})


def test_rows_of_one_part_are_compared_by_their_units(tmp_path: Path) -> None:
    old, new = formats(tmp_path / "a.json", read=100, cached=900), formats(tmp_path / "b.json", read=50, cached=910)
    better, worse, *_ = compare(old, new)
    assert [(each.name, each.change) for each in worse] == [("rows rlds, read samples/s", -0.5)]
    assert better == []


def test_a_row_that_was_left_out_is_not_compared(tmp_path: Path) -> None:
    old = formats(tmp_path / "a.json", read=100, cached=900)
    rows = [{"part": "rlds", "what": "cached", "value": None, "unit": "samples/s"}]
    new = written(tmp_path / "b.json", {"rows": [*json.loads(old.read_text())["rows"][:1], *rows]})
    assert compare(old, new) == ([], [], ["rows rlds, cached samples/s"], [], [])


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ({"part": "act", "what": "step from disk", "unit": "ms"}, -0.5),
        ({"part": "act", "what": "GPU utilisation, from disk", "unit": "%"}, 1.0),
        ({"part": "act", "what": "waiting for data, from disk", "unit": "%"}, -0.5),
        ({"part": "act", "what": "step from disk / on ready tensors", "unit": "x"}, -0.5),
        ({"part": "small", "what": "TimelineLoader, from disk / first", "unit": "x"}, 1.0),
    ],
)
def test_each_figure_of_a_training_has_its_direction(tmp_path: Path, row: dict[str, str], change: float) -> None:
    old, new = (written(tmp_path / f"{value}.json", {"rows": [{**row, "value": value}]}) for value in (1.0, 2.0))
    better, worse, *_ = compare(old, new)
    assert [each.change for each in better + worse] == [change]


def test_folders_are_compared_file_by_file(tmp_path: Path) -> None:
    result(tmp_path / "old" / "tick.json", tick=1.0)
    result(tmp_path / "new" / "tick.json", tick=2.0)
    assert [each.name for each in compare(tmp_path / "old", tmp_path / "new")[1]] == ["tick: rows tick ours"]


@pytest.mark.parametrize("name", ["vectors", "spatial", "tick", "roofline", "loading_on_gpu"])
def test_recorded_results_have_figures_and_equal_themselves(name: str) -> None:
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    assert len(figures(file)) > 5
    assert compare(file, file) == ([], [], [], [], [])


def test_figures_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
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
def test_a_file_without_figures_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    with pytest.raises(RoboCacheError, match=r"give a results file|compare one benchmark"):
        compare(tmp_path / "a.json", tmp_path / "a.json")


def test_the_command_exits_with_1_if_a_figure_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = result(tmp_path / "old.json", fuse=10.0), result(tmp_path / "new.json", fuse=20.0)
    with pytest.raises(SystemExit, match="1"):
        main(["compare", str(old), str(new)])
    printed = capsys.readouterr().out
    assert "-50.0%            10            20  rows fuse ours" in printed
    assert "1 figures are worse and 0 better by more than 5%" in printed
    with pytest.raises(SystemExit, match="0"):
        main(["compare", str(new), str(old)])


def test_folders_of_a_suite_and_of_recorded_results_are_compared_by_the_names_of_files(tmp_path: Path) -> None:
    for folder, ms in (("suite/tick", 1.0), ("recorded", 2.0)):
        (tmp_path / folder).mkdir(parents=True)
        written(tmp_path / folder / "tick.json", {"ms": ms})
    written(tmp_path / "suite" / "tick" / "tick_trace.json", {"traceEvents": [{"ms": 7.0}]})

    (worse,) = compare(tmp_path / "suite", tmp_path / "recorded").worse

    assert (worse.name, worse.old, worse.new) == ("tick: ms", 1.0, 2.0)
    assert list(figures(tmp_path / "suite")) == ["tick: ms"]


def test_another_machine_and_other_versions_are_named(tmp_path: Path) -> None:
    old = written(tmp_path / "a.json", {"machine": {"gpu": "H200", "torch": "2.11", "date": "1", "load": 1}, "ms": 1.0})
    new = written(tmp_path / "b.json", {"machine": {"gpu": "H100", "torch": "2.11", "date": "2", "load": 2}, "ms": 1.0})

    found = compare(old, new)

    assert found.machines == ["gpu H200 -> H100"]
    assert as_text(found, 0.05).startswith("another machine or version: gpu H200 -> H100\n")
