"""A sample of damaged datasets; `python -m test.fuzz --datasets 4000` tries many more."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("h5py", reason="needs the `datasets` extra")
pytest.importorskip("pyarrow", reason="needs the `datasets` extra")

from test.fuzz.datasets import BAD, EPISODES, FORMATS, Judge, cases, outcomes

SAMPLE = 400  # every kind of damage 10 times for each format


def test_every_format_is_read_undamaged_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = Judge(tmp_path / "a").undamaged, Judge(tmp_path / "b").undamaged

    assert first == second
    assert {len(set(episodes)) for episodes in first.values()} == {EPISODES}
    assert not [text for episodes in first.values() for text in episodes if text.startswith("refused")]


def test_values_do_not_depend_on_compression(tmp_path: Path) -> None:
    undamaged = Judge(tmp_path).undamaged

    assert undamaged["RLDS"] == undamaged["RLDS, gzip"]
    assert undamaged["robomimic"] == undamaged["robomimic, gzip"]


def test_damage_is_refused_or_changes_nothing_that_a_checksum_covers() -> None:
    found = list(outcomes(cases(SAMPLE)))

    assert [(*case, said) for *case, said in found if case[1] in BAD] == []
    assert {case.format for case, outcome, _ in found if outcome == "refused"} == set(FORMATS)
