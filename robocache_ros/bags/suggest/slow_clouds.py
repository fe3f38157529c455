"""Leaves point clouds out of a suggested spec that would delay the ticks of all other streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from robocache_ros.bags.describe import BagInfo
from robocache_ros.bags.suggest.spec_text import SuggestedStream, delay_ms, wait_ms

SLOWER = 1.25  # a cloud that raises `delay_ms` by this factor is left out


def without_slow_clouds(info: BagInfo, streams: Iterable[SuggestedStream]) -> list[SuggestedStream]:
    """Return the streams; those of slow clouds say why they are left out."""
    given = list(streams)
    others = [wait_ms(info, stream) for stream in given if "voxels" not in stream.keys]
    if not others:
        return given
    needed_ms = delay_ms(max(others))
    return [
        replace(
            stream,
            left_out=f"left out, because it is slow: it needs delay_ms {own_ms}, and the other streams {needed_ms}",
        )
        if "voxels" in stream.keys and (own_ms := delay_ms(wait_ms(info, stream))) >= SLOWER * needed_ms
        else stream
        for stream in given
    ]
