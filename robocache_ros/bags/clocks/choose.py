"""Selects the clock of the timeline of a recording.

The header stamps of a topic are on the clock of the log times, on /clock, on the clock of other topics, or on a clock
of their own. Two clocks are the same if the median difference of the stamps, at equal log times, is at most the limit
of fusion (`max_skew_ms`, 5 s). The rule:

1. A topic is considered if it has at least two messages, and at least a hundredth of those of the largest topic.
2. If the first messages of all considered topics are on the clock of the log times, this clock is the timeline.
3. Else, if /clock is recorded, and the stamps of a topic are on it or no topic is stamped: /clock.
4. Else the clock of the most topics; in a tie, the clock of the log times, else that of the first topic by name.

Streams on a clock other than the timeline need `stamp: device`. Topics that a spec declares so are not considered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from robocache_ros.bags.clocks.stamp_clock import LIMIT_NS, Times, clock_of
from robocache_ros.bags.clocks.timeline import ClockSteps, Segment, Timeline

CLOCK, CLOCK_TYPE = "/clock", "rosgraph_msgs/msg/Clock"
PROBE = 8  # number of messages per topic that are checked first
MOST_SEGMENTS = 1000  # with more jumps, stamps do not follow a clock; log times are the timeline
SHARE = 100  # a topic with less than 1 / SHARE of the messages of the largest topic is not considered


def with_a_say(counts: Mapping[str, int]) -> list[str]:
    """Return the considered topics, given the message counts of all stamped topics; sorted by name."""
    largest = max((count for name, count in counts.items() if name != CLOCK), default=0)
    least = max(2, largest // SHARE)
    return sorted(name for name, count in counts.items() if count >= least or (name == CLOCK and count > 1))


def is_by_log(times: Mapping[str, Times]) -> bool:
    """Whether the first messages of all topics are on the clock of the log times, or have no stamps."""
    clocks = [clock_of(logs[:PROBE], stamps[:PROBE]) for logs, stamps in times.values()]
    return all(clock.kind == "timeline" or abs(clock.offset_ns) <= LIMIT_NS for clock in clocks)


def timeline_of(times: Mapping[str, Times], devices: Collection[str] = ()) -> Timeline:
    """Select the timeline of a recording.

    Args:
        times: all messages by stamped topic, and those of /clock if it is recorded.
        devices: topics with a clock of their own.
    """
    chosen = {name: times[name] for name in with_a_say({name: len(one.logs_ns) for name, one in times.items()})}
    if is_by_log({name: one for name, one in chosen.items() if name not in devices}):
        return Timeline()
    clock = chosen.pop(CLOCK, None)
    stamped = {name: one.set_ones for name, one in chosen.items() if clock_of(*one).is_usable}
    if clock is not None and clock_of(*clock).kind == "device":
        on_it = tuple(name for name, one in stamped.items() if _same(one, clock))
        if on_it or not set(stamped) - set(devices):
            return _timeline(CLOCK, on_it, clock, _steps(clock))
    main = _largest(stamped, devices)
    if not main:
        return Timeline()
    logs, stamps = (np.concatenate(parts) for parts in zip(*(stamped[name] for name in main), strict=True))
    order = np.argsort(logs, kind="stable")
    merged = Times(logs[order], stamps[order])
    from robocache_ros.bags.clocks.envelope import estimated  # imports torch, which few recordings need

    return _timeline("stamps", main, merged, estimated(merged))


def _largest(stamped: Mapping[str, Times], devices: Collection[str]) -> tuple[str, ...]:
    """Return the topics on the most common clock; empty if this is the clock of the log times."""
    by_log = [name for name, one in stamped.items() if clock_of(*one).kind == "timeline"]
    groups: list[list[str]] = []
    for name in sorted(set(stamped) - set(by_log)):
        found = next((group for group in groups if _same(stamped[name], stamped[group[0]])), None)
        if found is None:
            groups.append([name])
        else:
            found.append(name)

    def votes(group: list[str]) -> int:
        return len(set(group) - set(devices))

    largest = max(groups, key=votes, default=[])
    return tuple(largest) if votes(largest) > votes(by_log) else ()


def _same(one: Times, other: Times) -> bool:
    """Whether the stamps of two topics are on the same clock."""
    base = int(other.logs_ns[0] - other.stamps_ns[0])
    known = (other.logs_ns - other.stamps_ns - base).astype(np.float64)
    start = int(other.logs_ns[0])
    expected = np.interp((one.logs_ns - start).astype(np.float64), (other.logs_ns - start).astype(np.float64), known)
    found = (one.logs_ns - one.stamps_ns - base).astype(np.float64)
    return bool(np.median(np.abs(found - expected)) <= LIMIT_NS)


def _steps(clock: Times) -> list[Segment]:
    from robocache_ros.bags.clocks.envelope import jumps

    good = clock.stamps_ns >= 0
    logs, stamps = clock.logs_ns[good], clock.stamps_ns[good]
    cuts = jumps(Times(np.zeros_like(stamps), stamps)).tolist()  # as in a node, which has no log times
    spans = zip([0, *cuts], [*cuts, len(logs)], strict=True)
    return [Segment(int(logs[a]), ClockSteps(logs[a:b], stamps[a:b])) for a, b in spans]


def _timeline(source: str, topics: tuple[str, ...], times: Times, segments: list[Segment]) -> Timeline:
    if not 0 < len(segments) <= MOST_SEGMENTS:
        return Timeline()
    first, last = int(times.logs_ns[0]), int(times.logs_ns[-1])
    found = Timeline(source, tuple(segments), topics)
    longest = max(found.spans(first, last), key=lambda span: span.stop_ns - span.start_ns)
    length_ns = longest.stop_ns - longest.start_ns
    rate = (longest.last_ns - longest.first_ns) / length_ns if length_ns else 1.0
    return replace(found, offset_ns=first - found.at(first), rate=rate)
