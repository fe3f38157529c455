"""What the episodes of a dataset state of their outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from robocache_ros.spec import FusionSpec


def known_outcomes(spec: FusionSpec, successes: Iterable[bool | None]) -> frozenset[str]:
    """Return what a dataset knows of the outcomes of its episodes: `reward`, `success`, both or nothing.

    Args:
        spec: its streams.
        successes: of each episode, None if it is not known. A known success is also a reward, at the last tick.
    """
    roles = {stream.role for stream in spec.vectors}
    if "success" in roles or any(success is not None for success in successes):
        return frozenset({"reward", "success"})
    return frozenset({"reward"} & roles)
