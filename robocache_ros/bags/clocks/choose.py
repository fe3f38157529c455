"""Selects the clock of the timeline of a recording.

The header stamps of a topic are on the clock of the log times, on /clock, on the clock of other topics, or on a clock
of their own. Two clocks are the same if the median difference of the stamps, at equal log times, is at most the limit
of fusion (`max_skew_ms`, 5 s). The publishers of /tf are judged one by one: AMCL stamps its transforms in the future,
and SLAM repeats old ones. The rule:

1. A topic is considered if it has at least two messages, and at least a hundredth of those of the largest topic.
2. If the first messages of all considered topics are on the clock of the log times, this clock is the timeline.
3. Else, if /clock is recorded, and the stamps of a topic are on it or no topic is stamped: /clock.
4. Else the clock of the most topics; in a tie, the clock of the log times, else that of the first topic by name.

5. Publishers whose stamps are ahead of those of the others, or behind them, by more than a jump of the clock do not
   take part in the estimate of the clock: they are neither a jump nor another clock.

Streams on a clock other than the timeline need `stamp: device`. Topics that a spec declares so are not considered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    probes = [part for one in times.values() for part in one.where(slice(PROBE)).by_publisher()]
    clocks = [clock_of(part.logs_ns, part.stamps_ns) for part in probes]
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
    stamped = [
        _Publisher(name, part.set_ones)
        for name, one in chosen.items()
        for part in one.by_publisher()
        if SHARE * len(part.logs_ns) >= len(one.logs_ns) and clock_of(part.logs_ns, part.stamps_ns).is_usable
    ]
    if clock is not None and clock_of(clock.logs_ns, clock.stamps_ns).kind == "device":
        on_it = tuple(dict.fromkeys(one.topic for one in stamped if _same(one.times, clock)))
        if on_it or not {one.topic for one in stamped} - set(devices):
            return _timeline(CLOCK, on_it, clock, _steps(clock))
    main = _largest(stamped, devices)
    if not main:
        return Timeline()
    used = _in_step(main)
    logs = np.concatenate([one.times.logs_ns for one in used])
    stamps = np.concatenate([one.times.stamps_ns for one in used])
    order = np.argsort(logs, kind="stable")
    merged = Times(logs[order], stamps[order])
    from robocache_ros.bags.clocks.envelope import estimated  # imports torch, which few recordings need

    return _timeline("stamps", tuple(dict.fromkeys(one.topic for one in main)), merged, estimated(merged))


class _Publisher(NamedTuple):
    topic: str
    times: Times


def _largest(stamped: Sequence[_Publisher], devices: Collection[str]) -> list[_Publisher]:
    """Return the publishers on the clock of the most topics; empty if this is the clock of the log times."""
    by_log: list[_Publisher] = []
    groups: list[list[_Publisher]] = []
    for one in stamped:  # in the order of the topics' names
        if clock_of(one.times.logs_ns, one.times.stamps_ns).kind == "timeline":
            by_log.append(one)
            continue
        found = next((group for group in groups if _same(one.times, group[0].times)), None)
        if found is None:
            groups.append([one])
        else:
            found.append(one)

    def votes(group: list[_Publisher]) -> int:
        return len({one.topic for one in group} - set(devices))

    largest = max(groups, key=votes, default=[])
    return largest if votes(largest) > votes(by_log) else []


def _in_step(publishers: Sequence[_Publisher]) -> list[_Publisher]:
    """Return the publishers whose stamps differ from those of the largest one by less than a jump of the clock."""
    from robocache_ros.engine.tick_grid import JUMP_BACK_NS  # imports torch, which few recordings need

    largest = max(publishers, key=lambda one: len(one.times.logs_ns)).times
    first, last = largest.logs_ns[0], largest.logs_ns[-1]
    kept = []
    for one in publishers:
        during = one.times.where((one.times.logs_ns >= first) & (one.times.logs_ns <= last))
        if not len(during.logs_ns) or abs(float(np.median(_behind(during, largest)))) <= JUMP_BACK_NS:
            kept.append(one)
    return kept


def _same(one: Times, other: Times) -> bool:
    """Whether the stamps of two publishers are on the same clock."""
    return bool(np.median(np.abs(_behind(one, other))) <= LIMIT_NS)


def _behind(one: Times, other: Times) -> NDArray[np.float64]:
    """Return by how many ns the stamps of a publisher are behind those of another one at the same log times."""
    base = int(other.logs_ns[0] - other.stamps_ns[0])
    known = (other.logs_ns - other.stamps_ns - base).astype(np.float64)
    start = int(other.logs_ns[0])
    expected = np.interp((one.logs_ns - start).astype(np.float64), (other.logs_ns - start).astype(np.float64), known)
    behind: NDArray[np.float64] = (one.logs_ns - one.stamps_ns - base).astype(np.float64) - expected
    return behind


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
