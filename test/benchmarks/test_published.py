"""Published figures beside those that are measured, and the figures of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.ops import device_time
from benchmarks.published import PUBLISHED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workload", PUBLISHED)
def test_a_published_figure_belongs_to_a_recorded_workload(workload: str) -> None:
    recorded = [json.loads((ROOT / f"benchmarks/results/{name}.json").read_text()) for name in ("vectors", "spatial")]
    assert workload in [row["workload"] for result in recorded for row in result["rows"]]


def test_a_published_figure_stands_in_its_row_with_source_and_contradiction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_time, "machine", lambda: {"gpu": "a GPU"})
    name = "resample 256, 100->50, 32 bfloat16"
    device_time.write("vectors", "Vectors", [{"workload": name, "ours": 3.2}], {}, tmp_path)
    page = (tmp_path / "vectors.md").read_text()
    assert f"| {name} | 3.20 | 410 (contradicted) |" in page
    assert f"published for {name}: github.com/GOATnote-Inc/robogoat" in page
    assert "256 in 0.41 ms are 624,000" in page


def test_rows_that_were_measured_before_a_failure_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_figures_in_the_tables_of_a_page_are_recorded(page: str, results: list[str]) -> None:
    recorded: list[float] = []
    for name in results:
        text = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
        json.loads(text, parse_float=lambda value: recorded.append(float(value)))
    lines = (ROOT / f"docs/explanation/{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [cell.strip(" *") for line in lines if line.startswith("|") for cell in line.split("|")]
    figures = [cell for cell in cells if re.fullmatch(r"\d+\.\d\d+", cell)]

    assert len(figures) > 20
    assert [f for f in figures if all(f"{value:.{len(f.split('.')[1])}f}" != f for value in recorded)] == []
