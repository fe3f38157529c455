"""The code blocks of the how-to on SQL run as they are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from test.export.delta.conftest import Exports
from test.export.delta.delta_rows import table

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("polars")

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "query_datasets_with_sql.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"```(python|sql)\n(.*?)```", re.DOTALL)


@pytest.fixture
def results(exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The rows of each query of the page, in a folder with `lift`."""
    (tmp_path / "lift").symlink_to(exports("lift", "video") / "delta")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = []
    for kind, block in BLOCKS.findall(PAGE):
        if kind == "python":
            exec(compile(block, "page", "exec"), names)
        else:
            episodes, ticks = names["episodes"], names["ticks"]  # as DuckDB finds them
            found.append(duckdb.sql(block).to_arrow_table().to_pylist())
            assert episodes is not ticks
    assert len(names["samples"]) == 4
    assert (tmp_path / "strongest_command.png").stat().st_size
    return found


def test_the_page_shows_the_queries_that_run(results: list[list[dict[str, Any]]], exports: Exports) -> None:
    rows = table(exports("lift", "video") / "delta", "episodes").to_pylist()
    by_quality, to_train, delays, losses, joined, held = results

    assert [row["aligned"] for row in by_quality] == sorted(row["quality"]["aligned"] for row in rows)
    good = [row for row in rows if row["quality"]["complete"] == 1 and row["quality"]["aligned"] > 0.95]
    assert to_train == [
        {"episodes": len(good), "share": sum(r["length"] for r in good) / sum(r["length"] for r in rows)}
    ]
    assert [(row["robot"], str(row["week"].date()), row["recordings"]) for row in delays] == [
        ("panda", "2025-10-06", 2)
    ]
    medians = sorted(row["delay_ms"]["front"]["median"] for row in rows if row["recording_episode"] == 0)
    assert delays[0]["median_ms"] == sum(medians) / 2
    assert {row["counter"] for row in losses} >= {"duplicate"}
    assert [row["episode"] for row in joined] == [0, 1, 2, 3]
    assert held
    assert all(0 <= row["seconds"] < 2 for row in held)
