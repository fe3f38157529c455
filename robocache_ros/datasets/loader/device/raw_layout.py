"""What the samples of a batch that is aligned on the device have in common."""

from __future__ import annotations

from typing import NamedTuple


class RawStream(NamedTuple):
    """What a stream is in all samples of a batch."""

    name: str
    role: str
    method: str
    max_gap_ns: int | None
    max_age_ns: int | None
    width: int  # columns; 0: images
    marked: bool  # its samples were aligned by an export, and have `valid` and `age`
    size: tuple[int, int] | None  # height and width of its jpeg files, if the device decodes them


class RawLayout(NamedTuple):
    """What the samples of a batch have in common."""

    streams: tuple[RawStream, ...]
    own_ticks: bool  # actions and rewards have ticks of their own


def key_of(index: int, part: str) -> str:
    """The key of a part of a stream in the block."""
    return f"{index}/{part}"
