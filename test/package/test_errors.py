"""Text from outside, shown in errors and logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.errors import printable


@given(st.text(), st.integers(8, 200))
def test_text_from_outside_is_printable_and_bounded(text: str, limit: int) -> None:
    shown = printable(text, limit)

    assert shown.isprintable()
    assert len(shown) <= limit


def test_short_plain_text_is_shown_as_it_is() -> None:
    assert printable("/camera/front größe") == "/camera/front größe"


def test_a_line_break_cannot_forge_a_line() -> None:
    assert printable("a\n[ERROR] b\x1b[31m") == "a\\n[ERROR] b\\x1b[31m"


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    assert printable("a" * 100 + "b" * 10**6, 21) == "a" * 10 + "…" + "b" * 10
