"""Whole messages as objects: the same values as rosbags gives, of every kind of message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import DecodeError
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from test.decode.cdr.message_builders import STORE, Case


def plain(value: Any) -> Any:
    """A value of either reader as lists, numbers and dicts."""
    if isinstance(value, SimpleNamespace) or hasattr(value, "__msgtype__"):
        return {name: plain(item) for name, item in vars(value).items() if name[0].islower()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("little_endian", [True, False])
def test_a_message_has_the_values_that_rosbags_reads(case: Case, little_endian: bool) -> None:
    data = case.cdr(little_endian)
    if case.type not in STORE.fielddefs:
        pytest.skip("a type of its own")
    found = plain(read_message(message_type(case.type), data))
    expected = plain(STORE.deserialize_cdr(data, case.type))
    np.testing.assert_equal(found, expected)


def test_a_message_that_is_cut_is_refused_wherever_it_is_cut(case: Case) -> None:
    data = case.cdr()
    message = message_type(case.type)
    for stop in range(0, min(len(data) - 8, 200), 3):  # what is behind the last value may be padding
        with pytest.raises(DecodeError):
            read_message(message, data[:stop])
