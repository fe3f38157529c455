"""Two results of a benchmark, compared figure by figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bench.suite.compare_results import compare, figures
from robocache_ros.cli.commands import main
from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[3]


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
    better, worse = compare(old, new)
    assert [each.name for each in worse] == ["rows fuse ours"]
    assert [each.name for each in better] == ["rows voxels ours"]


def test_a_lower_rate_is_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path / "a.json", {"rows_per_s": 100}), written(tmp_path / "b.json", {"rows_per_s": 50})
    assert [each.change for each in compare(old, new)[1]] == [-0.5]


def test_rows_are_paired_by_their_texts(tmp_path: Path) -> None:
    old = result(tmp_path / "old.json", fuse=1.0)
    new = result(tmp_path / "new.json", added=7.0, fuse=1.0)
    assert compare(old, new) == ([], [])


def test_folders_are_compared_file_by_file(tmp_path: Path) -> None:
    result(tmp_path / "old" / "tick.json", tick=1.0)
    result(tmp_path / "new" / "tick.json", tick=2.0)
    assert [each.name for each in compare(tmp_path / "old", tmp_path / "new")[1]] == ["tick: rows tick ours"]


def test_the_machine_is_not_a_figure(tmp_path: Path) -> None:
    assert list(figures(result(tmp_path / "a.json", fuse=1.0))) == ["rows fuse ours"]


@pytest.mark.parametrize("name", ["vectors", "spatial", "tick"])
def test_recorded_results_have_figures_and_equal_themselves(name: str) -> None:
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    assert len(figures(file)) > 5
    assert compare(file, file) == ([], [])


@pytest.mark.parametrize("content", ["", "[", "{}"])
def test_a_file_without_figures_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    with pytest.raises(RoboCacheError, match=r"give a results file|compare one benchmark"):
        compare(tmp_path / "a.json", tmp_path / "a.json")


def test_the_command_exits_with_1_if_a_figure_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = result(tmp_path / "old.json", fuse=10.0), result(tmp_path / "new.json", fuse=20.0)
    with pytest.raises(SystemExit, match="1"):
        main(["bench", "compare", str(old), str(new)])
    told = capsys.readouterr().out
    assert "-50.0%            10            20  rows fuse ours" in told
    assert "1 figures are worse and 0 better by more than 5%" in told
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "compare", str(new), str(old)])
