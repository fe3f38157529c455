"""A sample of damaged datasets; `python -m test.fuzz --datasets 4000` tries many more."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import pytest

pytest.importorskip("h5py", reason="needs the `datasets` extra")
pytest.importorskip("pyarrow", reason="needs the `datasets` extra")

from robocache_ros.formats.registry import FORMATS, READERS
from test.fuzz.datasets import BAD, DAMAGED, EXPORTED, HOW, WRITTEN, Judge, cases, outcomes

KINDS = len(HOW) * len(DAMAGED)  # of damage, over all formats


def test_every_registered_reader_has_a_dataset_that_is_damaged() -> None:
    missing = set(READERS) - {*EXPORTED, *WRITTEN} - ({"delta"} if find_spec("deltalake") is None else set())

    assert not missing, f"{missing}: give the format a writer, or add a small dataset to test/fuzz/datasets.py"


def test_a_format_that_is_registered_is_damaged_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "another", replace(FORMATS["mcap"], name="another"))

    assert "export: another" in run_path(str(Path(__file__).with_name("datasets.py")))["DAMAGED"]


def test_every_format_is_read_undamaged_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = Judge(tmp_path / "a").undamaged, Judge(tmp_path / "b").undamaged

    assert first == second
    assert all(len(set(episodes)) == len(episodes) > 1 for episodes in first.values())
    assert not [text for episodes in first.values() for text in episodes if text.startswith("refused")]


def test_values_do_not_depend_on_compression(tmp_path: Path) -> None:
    undamaged = Judge(tmp_path).undamaged

    assert undamaged["RLDS"] == undamaged["RLDS, gzip"]
    assert undamaged["robomimic"] == undamaged["robomimic, gzip"]


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_damage_is_refused_or_changes_nothing_that_a_checksum_covers(times: int) -> None:
    found = list(outcomes(cases(times * KINDS)))

    assert [(*case, said) for *case, said in found if case[1] in BAD] == []
    assert {case.format for case, outcome, _ in found if outcome == "refused"} == set(DAMAGED)
