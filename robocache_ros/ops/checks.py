"""Checks of arguments that are not tensors. Each error names the argument, the expected value and the given one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

from robocache_ros.errors import RoboCacheError


def checked_integer(name: str, value: Any) -> int:
    """An integer of any type as int."""
    try:
        return operator.index(value)
    except TypeError:
        raise RoboCacheError(f"{name}: expected an integer, got {value!r}") from None


def checked_sizes(**sizes: Any) -> tuple[int, ...]:
    """Integers, each by the name of its argument."""
    return tuple(checked_integer(name, value) for name, value in sizes.items())


def checked_integers(name: str, values: Any, form: tuple[str, ...]) -> tuple[int, ...]:
    """Integers, one for each of the names in `form`."""
    return tuple(_checked_each(name, values, form, operator.index, "integers"))


def checked_floats(name: str, values: Any, form: tuple[str, ...]) -> list[float]:
    """Numbers, one for each of the names in `form`."""
    return _checked_each(name, values, form, float, "numbers")


def _checked_each(name: str, values: Any, form: tuple[str, ...], kind: Callable[[Any], Any], what: str) -> list[Any]:
    try:
        found = list(map(kind, values))
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several values
        found = []
    if len(found) != len(form):
        raise RoboCacheError(f"{name}: expected the {what} ({', '.join(form)}), got {values!r}")
    return found


def check_choice(name: str, value: Any, among: Collection[str]) -> None:
    """Raise RoboCacheError if `value` is not one of the strings in `among`."""
    if not isinstance(value, str) or value not in among:
        raise RoboCacheError(f"{name}: {value!r} is not one of {', '.join(among)}")


def checked_list(name: str, values: Any) -> list[Any]:
    """The items of a sequence."""
    try:
        return list(values)
    except TypeError:
        raise RoboCacheError(f"{name}: expected a sequence, got {values!r}") from None


def check_names(name: str, values: Any) -> None:
    """Raise RoboCacheError if `values` is not a sequence of strings. A single string is not a sequence here."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in checked_list(name, values)):
        raise RoboCacheError(f"{name}: expected a sequence of names, got {values!r}")
