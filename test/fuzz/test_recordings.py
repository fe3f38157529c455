"""A sample of damaged recordings; `python -m test.fuzz --recordings 4000` tries many more."""

from __future__ import annotations

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from robocache_ros.bags.reader import CHECKED
from test.fuzz.recordings import BAD, MCAP_VARIANTS, VARIANTS, Judge, cases

SAMPLE = 144  # every kind of damage 3 times for each variant


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("hostile"))


def test_every_variant_gives_the_same_undamaged(judge: Judge) -> None:
    readings = judge.undamaged
    first = readings["mcap"]
    assert len(first.messages) == 140
    assert {(reading.messages, reading.frames) for reading in readings.values()} == {(first.messages, first.frames)}
    assert {reading.notes for reading in readings.values()} == {()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_damage_changes_nothing_or_is_stated(judge: Judge, variant: str) -> None:
    outcomes = [(case, *judge(case)) for case in cases(SAMPLE) if case.variant == variant]
    assert [found for found in outcomes if found[1] in BAD] == []
    assert {outcome for _, outcome, _ in outcomes} - set(BAD)


def test_a_recording_says_whether_its_messages_have_checksums(judge: Judge) -> None:
    checked = {variant for variant, reading in judge.undamaged.items() if reading.integrity == CHECKED}

    assert checked == set(MCAP_VARIANTS)
