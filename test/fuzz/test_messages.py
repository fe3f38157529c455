"""Damaged messages of every supported kind: a sample or a refusal in one line, and nothing else."""

import pytest

from robocache_ros.decode import make_decoder
from test.fuzz import messages


@pytest.mark.parametrize("one", messages.seeds(), ids=lambda one: f"{one.stream.type}.{one.stream.field}")
def test_every_seed_is_valid_in_both_byte_orders(one):
    little, big = (make_decoder(one.stream).decode_cdr(data) for data in one.messages)
    assert little.stamp_ns == big.stamp_ns
    assert type(little.value) is type(big.value)


def test_damaged_messages_become_samples_or_one_line():
    report = messages.run(4000, seed=1)
    assert report["exceptions"] == {}
    assert report["unfit_texts"] == 0
    assert report["accepted"] > 200
    assert report["accepted"] + sum(report["refused"].values()) == 4000


def test_the_same_damage_comes_of_the_same_seed():
    one, other = (messages.run(300, seed=7) for _ in range(2))
    assert (one["accepted"], one["refused"]) == (other["accepted"], other["refused"])


def test_an_exception_of_another_class_is_reported(monkeypatch):
    def crash(data):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(messages, "read_transforms", crash)
    report = messages.run(300, seed=3)
    assert set(report["exceptions"]) == {"/tf_static: ZeroDivisionError('on purpose')"}
