"""Where a cache is kept."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from robocache_ros.errors import RoboCacheError

_LOG = logging.getLogger("robocache_ros.datasets.loader")


def choose_place(where: str, expected: float, what: str, share: float, device: torch.device) -> torch.device | None:
    """Return where a cache is kept: the first place that has room for it. A line in the log states the sizes.

    Args:
        where: device, host or auto: the first of the two that has room.
        expected: bytes.
        what: is kept.
        share: of the free memory that may be used.
        device: of the batches.

    Returns:
        the place; None if none has room and `where` is auto.

    Errors:
        RoboCacheError: there is no room where the cache is wanted.
    """
    host = torch.device("cpu")
    places = {"device": [device], "host": [host], "auto": [device, host]}[where]
    room = {place: free_bytes(place) * share for place in places}
    facts = ", ".join(f"{each / 2**30:.1f} GiB may be used on {place}" for place, each in room.items())
    facts = f"{expected / 2**30:.2f} GiB expected of {what}, {facts}"
    for place, each in room.items():
        if expected <= each:
            _LOG.info("cache: on %s, because of %s", place, facts)
            return place
    if where != "auto":
        raise RoboCacheError(f"cache: {facts}; use cache='auto' or 'none'")
    _LOG.info("cache: none, because of %s", facts)
    return None


def free_bytes(place: torch.device) -> int:
    """Return the free memory of a place."""
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
