"""Options of an export that decide which ticks are in which episode, and which action belongs to an observation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.message_types import topic_name

ACTIONS = ("absolute", "delta", "next-observation", "next-delta")
MAX_OFFSET = 1000  # ticks
MAX_RATE_HZ = 1000
_NEAR = 0.05  # largest distance of an offset in ms from a whole number of ticks, in ticks


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """Options that decide the rows of an episode."""

    rate_hz: int | None = None  # ticks per second; None: as in the spec
    episode_topic: str = ""  # topic whose messages begin and end episodes
    episode_file: bool = True  # use episodes.yaml or episodes.csv of a recording, unless there is an episode topic
    split_s: float = 0.0  # longest episode in seconds; longer ones become several; 0: no limit
    trim_idle_s: float = 0.0  # leave out ticks without motion for this long; 0: keep them
    task_topic: str = ""  # topic of std_msgs/String with the task
    action: str = "absolute"  # absolute: commands; delta: see `StreamSpec.delta_from`; next-observation: later states
    action_from: tuple[str, ...] = ()  # delta: the observation to subtract; next-observation: the states, else all
    action_offset: int | str = (
        ""  # which later tick the action of a row is from: ticks, or "40ms"; "": 0, or 1 for next
    )

    def __post_init__(self) -> None:
        if self.rate_hz is not None and not 1 <= self.rate_hz <= MAX_RATE_HZ:
            raise RoboCacheError(f"rate_hz: {self.rate_hz} is not a rate; use 1 to {MAX_RATE_HZ}")
        if self.action not in ACTIONS:
            raise RoboCacheError(f"action: {printable(self.action, 40)!r} is not one of {', '.join(ACTIONS)}")
        for name in ("split_s", "trim_idle_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise RoboCacheError(f"{name}: {getattr(self, name)} is not a number of seconds; use 0 or more")
        for name in ("episode_topic", "task_topic"):
            topic = getattr(self, name)
            if topic and not topic_name.accepts(topic):
                raise RoboCacheError(f"{name}: {printable(topic, 60)!r} is not an absolute topic name; write /topic")
        if isinstance(self.action_from, str):
            raise RoboCacheError(f"action_from: {printable(self.action_from, 60)!r} is one name; give a list of names")
        self._offset()

    @property
    def is_next(self) -> bool:
        """Whether actions are made of observations."""
        return self.action.startswith("next-")

    def offset_ticks(self, rate_hz: int) -> int:
        """Return how many ticks after a row its action is, at a rate.

        Errors:
            RoboCacheError: the offset is not a whole number of ticks, or out of range.
        """
        number, in_ms = self._offset()
        ticks = number * rate_hz / 1000 if in_ms else number
        if abs(ticks - round(ticks)) > _NEAR:
            period = f"{1000 / rate_hz:.4g} ms"
            raise RoboCacheError(f"action_offset: {number:g} ms is {ticks:.2f} ticks of {period}; use whole ticks")
        least = int(self.is_next)
        if not least <= round(ticks) <= MAX_OFFSET:
            raise RoboCacheError(f"action_offset: {round(ticks)} ticks are not possible; use {least} to {MAX_OFFSET}")
        return round(ticks)

    def _offset(self) -> tuple[float, bool]:
        """Return the given offset, and whether it is in ms."""
        given = str(self.action_offset).strip() or str(int(self.is_next))
        found = re.fullmatch(r"(-?)([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms)?", given)
        if not found or (not found[3] and "." in found[2]):
            raise RoboCacheError(f"action_offset: {printable(given, 40)!r} is not an offset; write 2 (ticks) or 40ms")
        if found[1]:
            raise RoboCacheError(
                f"action_offset: {given} is before the row; set latency_ms of the action's stream instead"
            )
        return float(found[2]), bool(found[3])
