"""Topics that are published on change rather than at a rate."""

from __future__ import annotations

from collections.abc import Iterable

from robocache_ros.bags.describe import BagInfo, TopicInfo
from robocache_ros.bags.suggest.spec_text import SuggestedStream

OFTEN_SILENT = 0.25  # share of the time from a topic's first message to the end of the recording


def hold_where_silent(info: BagInfo, streams: Iterable[SuggestedStream]) -> None:
    """Configure the streams of often silent topics to hold their last value."""
    for stream in streams:
        if _often_silent(info, info.topics[stream.keys["topic"]], stream.keys["max_age_ms"]):
            stream.keys["on_invalid"] = "hold"


def _often_silent(info: BagInfo, topic: TopicInfo, age_ms: float) -> bool:
    stats = topic.stats
    stop_ns = max(one.stats.stop_ns for one in info.topics.values())  # on the timeline, as the times of the topic
    silences_ns = [gap.length_ns for gap in stats.gaps] + [stop_ns - stats.stop_ns]
    silent_ns = sum(max(0.0, silence - age_ms * 1e6) for silence in silences_ns)
    return silent_ns > OFTEN_SILENT * (stop_ns - stats.start_ns)
