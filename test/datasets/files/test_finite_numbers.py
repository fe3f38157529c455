"""Numbers of datasets are checked for NaN and infinite values."""

from __future__ import annotations

import numpy as np
import pytest

from robocache_ros.formats.read import DatasetError, all_finite, numbers


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8191, 8192, 20_000])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(value: float, place: int) -> None:
    values = np.ones((3000, 7), np.float32)
    values.reshape(-1)[place] = value

    with pytest.raises(DatasetError, match=f"file: row {place // 7}, column {place % 7} is not finite"):
        numbers(values, "file")


def test_large_numbers_are_finite_although_their_squares_are_not() -> None:
    assert all_finite(np.full((20, 3), np.finfo(np.float32).max))
    assert all_finite(np.zeros((0, 3), np.float32))
