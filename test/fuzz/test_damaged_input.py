"""Damaged messages and specs: a sample or a refusal in one line, and nothing else."""

from __future__ import annotations

import pytest

from robocache_ros.decode import make_decoder
from test.fuzz import messages, specs


@pytest.mark.parametrize("one", messages.seeds(), ids=lambda one: f"{one.stream.type}.{one.stream.field}")
def test_every_seed_is_valid_in_both_byte_orders(one):
    little, big = (make_decoder(one.stream).decode_cdr(data) for data in one.messages)
    assert little.stamp_ns == big.stamp_ns
    assert type(little.value) is type(big.value)


def test_damaged_messages_become_samples_or_one_line():
    report, again = (messages.run(4000, seed=1) for _ in range(2))
    assert (report["accepted"], report["refused"]) == (again["accepted"], again["refused"])
    assert report["exceptions"] == {}
    assert report["unfit_texts"] == 0
    assert report["accepted"] > 200
    assert report["accepted"] + sum(report["refused"].values()) == 4000


def test_an_exception_of_another_class_is_reported(monkeypatch):
    monkeypatch.setattr(messages, "read_transforms", lambda _: 1 / 0)
    report = messages.run(300, seed=3)
    assert set(report["exceptions"]) == {"/tf_static: ZeroDivisionError('division by zero')"}


# Damaged fusion specs: no traceback, no hang, and every refusal in lines that say where, what and what to do.


def test_damaged_specs_are_accepted_or_refused_in_well_formed_lines() -> None:
    report, again = (specs.run(60, seed=1) for _ in range(2))
    assert report["failures"] == []
    assert report["accepted"] + report["refused"] == 60
    assert min(report["accepted"], report["refused"]) > 0
    assert (report["accepted"], report["refused"]) == (again["accepted"], again["refused"])


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
