"""Quality of service, of what is subscribed to and of what is published."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from robocache_ros.spec import QosSpec


def profile(qos: QosSpec) -> QoSProfile:
    """The profile that a spec's `qos` means."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=qos.depth,
        reliability=ReliabilityPolicy.RELIABLE if qos.reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL
        if qos.durability == "transient_local"
        else DurabilityPolicy.VOLATILE,
    )


def unmet(asked: QosSpec, offered: QoSProfile) -> str:
    """The policy of which a publisher offers less than is asked for; empty where there is none."""
    if asked.reliability == "reliable" and offered.reliability == ReliabilityPolicy.BEST_EFFORT:
        return "reliability"
    if asked.durability == "transient_local" and offered.durability == DurabilityPolicy.VOLATILE:
        return "durability"
    return ""


def reliable(depth: int) -> QoSProfile:
    """Reliable, so that subscribers of either kind match it."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)


def latched(depth: int = 1) -> QoSProfile:
    """The last messages, for whoever comes later."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def clock() -> QoSProfile:
    """What every publisher of /clock matches, deep enough for one message before each message of a fast replay."""
    return QoSProfile(depth=10_000, reliability=ReliabilityPolicy.BEST_EFFORT)
