"""Formats a suggested fusion spec as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from robocache_ros.alignments import alignment
from robocache_ros.bags.clocks.stamp_clock import LIMIT_NS
from robocache_ros.bags.describe import BagInfo

_CLOCKS = {
    "device": "# `stamp: device` translates stamps of another clock, by comparing stamps and arrivals.",
    "receive": "# Where stamps are not usable, `stamp: receive` uses the arrival, which is late by the delay.",
    "header_or_receive": "# `stamp: header_or_receive` uses the arrival of a sample if its stamp is not set.",
}

_HELD = "often silent: its last value is held, with its age; with `split` an export leaves such ticks out"


@dataclass(frozen=True)
class SuggestedStream:
    """A stream of the suggested spec."""

    name: str  # preferred name; made unique later
    keys: dict[str, Any]
    remark: str = ""
    period_ms: float = 0.0  # period of the source data; 0: the period of the topic
    left_out: str = ""  # why the stream is commented out; empty: it is in the spec


def lines_of(info: BagInfo, streams: Sequence[SuggestedStream], left_out: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the spec; `left_out` are the topics without a stream, each with its reason."""
    yield from _head(info, streams)
    yield from _blocks(info, streams)
    yield from _tail(streams, left_out)


def tens(value: float) -> int:
    """Round a value up to a multiple of ten."""
    return 10 * math.ceil(value / 10 - 1e-9)


def wait_ms(info: BagInfo, stream: SuggestedStream) -> float:
    """Return the largest delay of a value of a stream after its time, in ms."""
    topic = info.topics[stream.keys["topic"]]
    period_ms = stream.period_ms or topic.stats.period_ms
    neighbour = period_ms if alignment(stream.keys["align"]).blends else 0.0
    delays = topic.stats.delays_ms
    in_time = delays[abs(delays) <= LIMIT_NS / 1e6]  # fusion drops other samples
    return max(float(in_time.max(initial=0.0)), 0.0) + neighbour


def delay_ms(longest_ms: float) -> int:
    """Return the `delay_ms` of a spec whose values have at most this delay."""
    return max(tens(longest_ms * 1.05), 10)


def _head(info: BagInfo, streams: Sequence[SuggestedStream]) -> list[str]:
    used = [stream for stream in streams if not stream.left_out]
    longest, slowest = max((wait_ms(info, stream), stream.keys["topic"]) for stream in used)
    clocks = {s.keys.get("stamp") for s in streams if info.topics[s.keys["topic"]].stats.clock.text}
    return [
        f"# A first spec for {info.path.name}, measured from its {info.duration_s:.1f} s.",
        "# `robocache check` shows it with all defaults; with `robocache schema` an editor can complete it.",
        "robocache: 1",
        "rate_hz: 50",
        f"# The largest delay of a value after its time was {longest:.0f} ms ({slowest}).",
        "# With a smaller delay_ms a robot reacts faster; values that arrive later are marked as missing.",
        f"delay_ms: {delay_ms(longest)}",
        *(line for stamp, line in _CLOCKS.items() if stamp in clocks),
        "streams:",
    ]


def _blocks(info: BagInfo, streams: Sequence[SuggestedStream]) -> Iterator[str]:
    used: set[str] = set()
    for stream in streams:
        name, count = stream.name, 2
        if name in used:  # add the first part of the topic, then a number
            parts = [re.sub(r"[^a-z0-9_]", "_", p.lower()) for p in stream.keys["topic"].strip("/").split("/")]
            name = f"{parts[0]}_{stream.name}".lstrip("_0123456789")
        while name in used:
            name, count = f"{stream.name}_{count}", count + 1
        used.add(name)
        clock = info.topics[stream.keys["topic"]].stats.clock.text
        held = _HELD if stream.keys.get("on_invalid") == "hold" else ""
        for remark in filter(None, (stream.left_out, stream.remark, clock, held)):
            yield f"  # {remark}"
        indent = "  # " if stream.left_out else "  "
        yield f"{indent}{name}:"
        for key, value in stream.keys.items():
            yield f"{indent}  {key}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tail(streams: Sequence[SuggestedStream], left_out: Sequence[str]) -> Iterator[str]:
    if not any(stream.keys.get("role") == "action" for stream in streams):
        yield "# No topic looks like a command: give `role: action` to the stream that the policy predicts, and remove"
        yield "# the next line; or export with --action next-observation."
        yield "actions: none"
    if left_out:
        yield "# Left out:"
        yield from (f"#   {line}" for line in left_out)
