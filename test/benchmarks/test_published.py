"""Published figures beside those that are measured, recorded results, and the figures of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.actions import METHODS, ages, differences, fused
from benchmarks.export.cpu import as_markdown
from benchmarks.ops import device_time
from benchmarks.published import PUBLISHED
from robocache_ros.bags.reader import Bag
from robocache_ros.spec import load_spec

ROOT = Path(__file__).parents[2]


def recorded(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("workload", PUBLISHED)
def test_a_published_figure_belongs_to_a_recorded_workload(workload):
    assert workload in [row["workload"] for name in ("vectors", "spatial") for row in recorded(name)["rows"]]


def test_a_published_figure_stands_in_its_row_with_source_and_contradiction(tmp_path, monkeypatch):
    monkeypatch.setattr(device_time, "machine", lambda: {"gpu": "a GPU"})
    name = "resample 256, 100->50, 32 bfloat16"
    device_time.write("vectors", "Vectors", [{"workload": name, "ours": 3.2}], {}, tmp_path)
    page = (tmp_path / "vectors.md").read_text()
    assert f"| {name} | 3.20 | 410 (contradicted) |" in page
    assert f"published for {name}: github.com/GOATnote-Inc/robogoat" in page
    assert "256 in 0.41 ms are 624,000" in page


def test_rows_that_were_measured_before_a_failure_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(device_time, "machine", lambda: {"gpu": "a GPU"})
    monkeypatch.setattr(device_time, "end_on_sigterm", lambda: None)

    def measure() -> None:
        with device_time.written("vectors", "Vectors", {"rate": 1.0}, tmp_path) as rows:
            rows.append({"workload": "first", "ours": 3.2})
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        measure()

    found = json.loads((tmp_path / "vectors.json").read_text(encoding="utf-8"))
    assert (found["rate"], found["rows"]) == (1.0, [{"workload": "first", "ours": 3.2}])


@pytest.mark.parametrize(
    ("page", "results"),
    [
        ("performance", ["vectors", "vectors_h100"]),
        ("performance_spatial", ["spatial"]),
        ("performance_exports", ["export_cpu", "export_cpu_reading"]),
    ],
)
def test_the_figures_in_the_tables_of_a_page_are_recorded(page, results):
    values: list[float] = []
    for name in results:
        text = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
        json.loads(text, parse_float=lambda value: values.append(float(value)))
    lines = (ROOT / f"docs/explanation/{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [cell.strip(" *") for line in lines if line.startswith("|") for cell in line.split("|")]
    figures = [cell for cell in cells if re.fullmatch(r"\d+\.\d\d+", cell)]

    assert len(figures) > 20
    assert [f for f in figures if all(f"{value:.{len(f.split('.')[1])}f}" != f for value in values)] == []


def test_the_recorded_counts_of_actions_are_those_of_the_recording():
    spec = load_spec(ROOT / "config" / "panda_lift.yaml")
    with Bag(ROOT / "test" / "data" / "panda_lift") as bag:
        frames = fused(bag, spec, spec.stream("action"))

    counts = recorded("actions")
    assert counts["pairs"] == list(differences(frames, spec.stream("action")))
    assert counts["age_ms"] == {name: ages(frames, name) for name in METHODS}


def test_the_published_result_of_one_part_states_what_was_measured_and_nothing_else():
    result = recorded("export_cpu_reading")
    assert set(result) == {"machine", "versions", "recording_s", "part", "rounds", "cpu_seconds"}
    page = ROOT / "benchmarks/results/export_cpu_reading.md"
    assert as_markdown(result) == page.read_text(encoding="utf-8")
