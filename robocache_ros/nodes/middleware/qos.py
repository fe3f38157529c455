"""Quality of service of the subscriptions and the publishers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from robocache_ros.spec import QosSpec

SMALL_DEPTH, LARGE_DEPTH = 5000, 500  # messages that are queued for a busy node during a replay
CLOCK_DEPTH = 10_000


def profile(qos: QosSpec) -> QoSProfile:
    """The profile of a spec's `qos`."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=qos.depth,
        reliability=ReliabilityPolicy.RELIABLE if qos.reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL
        if qos.durability == "transient_local"
        else DurabilityPolicy.VOLATILE,
    )


def for_replay(asked: QosSpec, *, large: bool) -> QosSpec:
    """Reliable, with a queue deep enough that a fast replay loses no message while the node is busy."""
    return replace(asked, reliability="reliable", depth=max(asked.depth, LARGE_DEPTH if large else SMALL_DEPTH))


def any_best_effort(offered: Iterable[QoSProfile]) -> bool:
    """Whether a publisher offers best effort only, which a reliable subscription does not receive."""
    return any(profile.reliability == ReliabilityPolicy.BEST_EFFORT for profile in offered)


def unmet(asked: QosSpec, offered: QoSProfile) -> str:
    """The QoS policy for which a publisher offers less than is requested; empty if it offers enough."""
    if asked.reliability == "reliable" and offered.reliability == ReliabilityPolicy.BEST_EFFORT:
        return "reliability"
    if asked.durability == "transient_local" and offered.durability == DurabilityPolicy.VOLATILE:
        return "durability"
    return ""


def reliable(depth: int) -> QoSProfile:
    """Reliable, which matches reliable and best effort subscribers."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)


def latched(depth: int = 1) -> QoSProfile:
    """Reliable and transient local: later subscribers receive the last messages too."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def clock(depth: int = CLOCK_DEPTH) -> QoSProfile:
    """A profile that matches every publisher of /clock, with a queue for one /clock per message of a fast replay."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)
