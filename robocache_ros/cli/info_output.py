"""What `info --json` states about a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robocache_ros.bags.describe import BagInfo, FrameInfo, TopicInfo
from robocache_ros.bags.reader import Bag

# Of a topic, what a few chunks do not tell.
_NOT_SAMPLED = ("size_bytes", "lost", "longest_gap_ms", "gaps", "duplicates", "out_of_order")


def summary(path: Path) -> dict[str, Any]:
    """Return what the index of a recording states, without reading its messages."""
    with Bag(path) as bag:
        return {
            **_extent(bag.path, sum(file.stat().st_size for file in bag.files), bag.start_ns, bag.stop_ns),
            "integrity": bag.integrity,
            "notes": bag.notes,
            "topics": [{"name": t.name, "type": t.type, "messages": t.count} for t in bag.topics.values()],
        }


def facts(info: BagInfo) -> dict[str, Any]:
    """Return the description of a recording whose messages were read."""
    return {
        **_extent(info.path, info.size, info.start_ns, info.stop_ns),
        "integrity": info.integrity,
        "notes": info.notes,
        "topics": [
            _topic(name, topic) | (dict.fromkeys(_NOT_SAMPLED) if info.is_sampled else {})
            for name, topic in info.topics.items()
        ],
        "frames": [_frame(name, frame) for name, frame in info.frames.items()],
    }


def _extent(path: Path, size: int, start_ns: int, stop_ns: int) -> dict[str, Any]:
    span = {"start_ns": start_ns, "stop_ns": stop_ns, "duration_s": (stop_ns - start_ns) / 1e9}
    return {"path": path, "size_bytes": size, **span}


def _topic(name: str, topic: TopicInfo) -> dict[str, Any]:
    stats = topic.stats
    quantiles = (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    return {
        "name": name,
        "type": stats.type,
        "messages": stats.count,
        "size_bytes": stats.size,
        "content": topic.content,
        "not_finite": topic.not_finite,
        "start_ns": stats.start_ns,
        "stop_ns": stats.stop_ns,
        "rate_hz": stats.rate_hz,
        "period_ms": stats.period_ms,
        "jitter_ms": stats.jitter_ms,
        "lost": stats.missing,
        "longest_gap_ms": stats.longest_gap_ms,
        "gaps": [{"start_ns": gap.start_ns, "length_ms": gap.length_ns / 1e6} for gap in stats.gaps],
        "duplicates": stats.duplicates,
        "out_of_order": stats.out_of_order,
        "stamps": stats.clock.kind,
        "delay_ms": {key: stats.delay_ms(share) for key, share in quantiles} if stats.stamped else None,
    }


def _frame(name: str, frame: FrameInfo) -> dict[str, Any]:
    return {
        "name": name,
        "parent": frame.parent,
        "topic": frame.topic,
        "static": frame.is_static,
        "moves": frame.moves,
        "rate_hz": frame.rate_hz or None,
        "changes_of_parent": frame.parents - 1,
    }
