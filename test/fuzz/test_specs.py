"""Damaged fusion specs: no traceback, no hang, and every refusal in lines that say where, what and what to do."""

from __future__ import annotations

import random

import pytest

from robocache_ros.resources import resource
from test.fuzz import specs


def test_damaged_specs_are_accepted_or_refused_in_well_formed_lines() -> None:
    report = specs.run(60, seed=1)

    assert report["failures"] == []
    assert report["accepted"] + report["refused"] == 60
    assert min(report["accepted"], report["refused"]) > 0


def test_a_spec_is_damaged_the_same_way_for_the_same_seed() -> None:
    base = resource("config", "panda_lift.yaml").read_text(encoding="utf-8")
    assert specs.damaged(base, random.Random(3)) == specs.damaged(base, random.Random(3))
    assert specs.damaged(base, random.Random(3)) != base.encode()


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("robot.yaml:1:2: a.b: 3 is not text; put it in quotes", True),
        ("robot.yaml: 3 is not text", False),
        ("3 is not text; put it in quotes", False),
        ("robot.yaml: a\x1b[31m; b", False),
        (f"robot.yaml: {'a' * 200}; b", False),
    ],
)
def test_a_well_formed_line_has_a_place_a_reason_and_a_hint(line: str, fits: bool) -> None:
    assert specs.well_formed(line) is fits
