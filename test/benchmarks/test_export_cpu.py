"""What the benchmark of CPU seconds writes."""

from __future__ import annotations

import json

from benchmarks.export.cpu import as_markdown
from benchmarks.report import ROOT


def test_the_published_result_of_one_part_states_what_was_measured_and_nothing_else() -> None:
    published = ROOT / "benchmarks/results/export_cpu_reading.json"
    result = json.loads(published.read_text(encoding="utf-8"))

    assert set(result) == {"machine", "versions", "recording_s", "part", "rounds", "cpu_seconds"}
    assert as_markdown(result) == published.with_suffix(".md").read_text(encoding="utf-8")
