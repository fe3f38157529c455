"""Diagnostics of a node: its streams and topics, and warnings about them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

from robocache_ros.engine import Ingest
from robocache_ros.errors import printable
from robocache_ros.nodes import middleware
from robocache_ros.nodes.subscriptions import StreamState, Topic, TopicSubscriptions
from robocache_ros.nodes.tick_loop import TickStats
from robocache_ros.nodes.transport import Limit
from robocache_ros.ops.resample.selection import NONE
from robocache_ros.spec import TF, FusionSpec, StreamSpec

OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE
SLOW = 0.8  # share of the declared rate below which a stream is reported as slow
# Counters that cause a warning, with advice for the user; the first one that has grown is reported.
_ADVICE = {
    "dropped": "messages cannot be decoded; see the dropped:<cause> counters",
    "unpaired": "depth images have no camera_info, or no color image within pair_ms; see unpaired:<key> and the log",
    "skewed": "header stamps are far from the arrival; set use_sim_time for a replay or a simulation, else "
    "synchronize the clocks or set stamp: device",
    "device_jumps": "the device's clock jumped; look for a restart of the device",
    "unstamped": "header stamps are not set (0); set stamp: header_or_receive, or set the stamps in the driver",
    "late": "samples arrive after their tick was published; raise delay_ms",
    "overrun": "samples come faster than the buffer holds; declare rate_hz",
    "corrupt": "images or clouds cannot be converted; see the log",
}
_ALWAYS = ("received", "decoded", "accepted", "late", "duplicate", "skewed", "unstamped", "dropped", "unmatched")


class Diagnostics:
    """Reports the counters of all messages, and derives a level from those that have grown since the last report."""

    def __init__(self, name: str, ingest: Ingest, states: dict[str, StreamState], stats: TickStats) -> None:
        self._name, self._ingest, self._states, self._stats = name, ingest, states, stats
        self._spec = ingest.engine.spec
        # The counters of each stream at the last report, and the arrival of its newest message.
        self._seen: dict[str, tuple[Counter[str], int | None]] = {s.name: (Counter(), None) for s in self._spec.streams}
        self._jumps = 0

    def report(self, active: bool, outputs: Mapping[str, int]) -> list[DiagnosticStatus]:
        """One status for each stream, and one for the ticks with the counters of the outputs."""
        streams = [self._stream(stream, index, active) for index, stream in enumerate(self._spec.streams)]
        return [*streams, self._ticks(active, outputs)]

    def _stream(self, stream: StreamSpec, index: int, active: bool) -> DiagnosticStatus:
        ingest, states, stats = self._ingest, self._states, self._stats
        state = states[stream.name]
        framed = stream in self._spec.framed  # its clouds are placed with /tf
        parts = [feed for feed in self._spec.feeds if feed in stream.companions or (framed and feed.name == TF)]
        problems = [text for s in (stream, *parts) for text in states[s.name].problems.values()]
        counters = Counter(dict(ingest.counters[stream.name]))
        for feed in parts:
            part = feed.name.rpartition("/")[2]
            counters.update({f"{part}:{key}": count for key, count in dict(ingest.counters[feed.name]).items()})
        counters.update(ingest.engine.lost(stream.name))
        counters["dropped"] += state.crashed
        counters["dropped:internal"] += state.crashed
        seen, arrival_ns = self._seen[stream.name]
        new = counters - seen
        rate_hz = _rate(new["received"], arrival_ns, state.newest_arrival_ns)
        self._seen[stream.name] = counters, state.newest_arrival_ns

        values = {key: str(counters[key]) for key in _ALWAYS}
        values |= {key: str(counters[key]) for key in sorted(counters) if key not in values and counters[key]}
        values |= {key: str(count) for key, count in sorted(state.events.items())}
        values["rate_hz"] = "" if rate_hz is None else f"{rate_hz:.2f}"
        values["declared_rate_hz"] = f"{stream.rate_hz:g}" if stream.rate_hz else ""
        for key, delay in (("age_ms", state.age.read()), ("transport_ms", state.transport.read())):
            values[f"{key}_mean"], values[f"{key}_max"] = (f"{d:.3f}" for d in delay) if delay else ("", "")
        clock = ingest.engine.device_clocks.get(stream.name)
        if clock and clock.offset_ns is not None:
            values["device_offset_ms"] = f"{clock.offset_ns / 1e6:.3f}"
            values["device_skew_ppm"] = f"{clock.skew_ppm:.1f}"
        values["stale_ticks"] = str(stats.invalid[index])
        values["held_ticks"] = str(stats.held[index])

        level, message = _judge(
            stream, problems, new, rate_hz, "" if counters["received"] else _unheard(stream, state), active
        )
        old = not stream.samples and stats.newest_age_ns[index] > stream.max_age_ns
        stale = old or stats.newest_valid[index] == NONE
        if level == OK and active and stats.newest_tick_ns is not None and stale:
            missing = list(ingest.engine.missing(stream.name))
            span = "since the tick before" if stream.samples else f"within {stream.max_age_ms:g} ms of"
            why = missing[-1] if missing else f"no sample {span} the newest tick"
            if stream.align == "next":
                why = f"no sample arrived by delay_ms that is within {stream.max_age_ms:g} ms after the newest tick"
            level, message = STALE, f"stale: {why}" + (f"; {state.loss}" if state.loss else "")
        return status(self._name, stream.name, level, message, values)

    def _ticks(self, active: bool, outputs: Mapping[str, int]) -> DiagnosticStatus:
        engine, stats = self._ingest.engine, self._stats
        values = {
            "emitted": str(stats.emitted),
            "clock_jumps": str(engine.clock_jumps),
            "newest_tick_ns": "" if stats.newest_tick_ns is None else str(stats.newest_tick_ns),
            **{key: str(count) for key, count in (engine.counters() | dict(outputs)).items()},
        }
        for key, late_ms in zip(("p50", "p99", "max"), stats.read_lateness_ms() or (None, None, None), strict=True):
            values[f"jitter_ms_{key}"] = "" if late_ms is None else f"{late_ms:.3f}"
        jumped, self._jumps = engine.clock_jumps > self._jumps, engine.clock_jumps
        if not active:
            return status(self._name, "ticks", OK, "inactive", values)
        if not stats.emitted:
            text = "no tick yet; in sim time there are no ticks without /clock"
            return status(self._name, "ticks", WARN, text, values)
        text = "the clock jumped" if jumped else "running"
        return status(self._name, "ticks", WARN if jumped else OK, text, values)


def status(name: str, part: str, level: bytes, message: str, values: Mapping[str, str]) -> DiagnosticStatus:
    """The status of a part of a node, with the node's name as the hardware."""
    pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
    return DiagnosticStatus(level=level, name=f"{name}: {part}", message=message, hardware_id=name, values=pairs)


def _rate(count: int, before_ns: int | None, newest_ns: int | None) -> float | None:
    """Messages per second by their arrivals, so that a replay at any speed shows the recorded rate."""
    if before_ns is None or newest_ns is None or newest_ns <= before_ns:
        return None
    return count * 1e9 / (newest_ns - before_ns)


def _unheard(stream: StreamSpec, state: StreamState) -> str:
    missing = "" if state.publishers else ", which has no publisher; compare it with ros2 topic list"
    return state.loss or f"nothing received on {printable(stream.topic, 100)}{missing}"


def _judge(
    stream: StreamSpec, problems: list[str], new: Counter[str], rate_hz: float | None, unheard: str, active: bool
) -> tuple[bytes, str]:
    """Level and message of a stream."""
    if problems:
        return ERROR, "; ".join(problems)
    if not active:
        return OK, "inactive"
    if unheard:
        return STALE, unheard
    for cause, advice in _ADVICE.items():
        if new[cause]:
            return WARN, f"{new[cause]} {cause}: {advice}"
    if stream.rate_hz and rate_hz is not None and rate_hz < SLOW * stream.rate_hz:
        return WARN, f"{rate_hz:.1f} Hz, but {stream.rate_hz:g} Hz is declared"
    return OK, "running"


SILENT_S = 5.0  # a topic with a publisher but without a message for this long is reported


@dataclass(eq=False)
class TopicChecks:
    """Checks the publishers of each topic; each problem is logged once and stored in `StreamState.problems`."""

    node: Node
    subscriptions: TopicSubscriptions
    limit: Limit | None  # of the transport; None: not known
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._short: dict[int, set[bytes]] = {}  # by topic: publishers that offer less than is requested
        self._published_since_s: dict[int, float] = {}  # by topic: since when there is a publisher and no message
        self._warned: set[int] = set()  # topics whose messages are too large for the transport

    def check(self, *, active: bool) -> None:
        """Compare every topic with its publishers; messages arrive only while the node is active."""
        for number, topic in enumerate(self.subscriptions.topics):
            publishers = self.node.get_publishers_info_by_topic(topic.name)
            if topic.auto and publishers:
                self._choose_reliability(topic, publishers)
            self._check_qos(number, topic, publishers)
            self._check_type(topic, publishers)
            self._check_arrival(number, topic, len(publishers), active)

    def _choose_reliability(self, topic: Topic, publishers: Sequence[Any]) -> None:
        """Request what all publishers offer. A topic whose messages arrive keeps its subscription."""
        lossy = middleware.any_best_effort(publisher.qos_profile for publisher in publishers)
        arrives = topic.largest_bytes and not self._exceeded(topic)
        lost = topic.large and not arrives and not lossy and topic.qos.reliability == "best_effort"
        if not lost and not (lossy and topic.qos.reliability == "reliable"):
            return
        topic.wanted = replace(topic.qos, reliability="best_effort" if lossy else "reliable")
        self.node.get_logger().info(
            f"{topic.streams[0].name}: subscribing to {printable(topic.name, 60)} as {topic.wanted.reliability}, "
            f"which all of its publishers offer"
        )

    def _check_type(self, topic: Topic, publishers: Sequence[Any]) -> None:
        others = sorted({entry.topic_type for entry in publishers} - {topic.streams[0].type})
        for stream in topic.streams:
            problems = self.subscriptions.states[stream.name].problems
            if not others:
                problems.pop("type", None)
                continue
            types = printable(", ".join(others))
            text = f"{printable(stream.topic, 60)} is published as {types}, the spec declares {stream.type}; change one"
            if problems.get("type") != text:
                self.node.get_logger().error(f"{stream.name}: type mismatch: {text}")
            problems["type"] = text

    def _check_qos(self, number: int, topic: Topic, publishers: Sequence[Any]) -> None:
        policies = {bytes(p.endpoint_gid): middleware.unmet(topic.qos, p.qos_profile) for p in publishers}
        short = {gid: policy for gid, policy in policies.items() if policy}
        new = short.keys() - self._short.get(number, set())
        self._short[number] = set(short)
        for stream in topic.streams:
            state = self.subscriptions.states[stream.name]
            state.events["incompatible_qos"] += len(new)
            if not short:
                state.problems.pop("qos", None)
                continue
            name = printable(stream.topic, 60)
            policy = next(iter(short.values()))
            forced = policy == "reliability" and not topic.auto and stream.qos.reliability != "reliable"
            advice = (
                "set the node's parameter reliable to false, which is for replays"
                if forced
                else f"set the stream's qos.{policy} to {'auto' if policy == 'reliability' else 'volatile'}"
            )
            text = f"a publisher of {name} offers less {policy} than the node requests; {advice}"
            if "qos" not in state.problems:
                self.node.get_logger().error(f"{stream.name}: {text}")
            state.problems["qos"] = text

    def _check_arrival(self, number: int, topic: Topic, publishers: int, active: bool) -> None:
        """Warn of a published topic from which nothing arrives, and of messages that the receiver's transport loses."""
        states = [self.subscriptions.states[stream.name] for stream in topic.streams]
        arrived = bool(topic.largest_bytes) or any(state.newest_arrival_ns is not None for state in states)
        if arrived or not active or not publishers:
            self._published_since_s.pop(number, None)
        since_s = self._published_since_s.setdefault(number, self.now_s())
        silent = publishers and active and not arrived and self.now_s() - since_s >= SILENT_S
        exceeded = self._exceeded(topic)
        for stream, state in zip(topic.streams, states, strict=True):
            state.publishers = publishers
            if not silent or state.problems.keys() & {"type", "qos"}:
                state.loss = exceeded
            elif not state.loss:
                lossy = self.limit if topic.large and topic.qos.reliability == "best_effort" else None
                advice = lossy.losses if lossy else "check that they publish (ros2 topic hz)"
                state.loss = f"nothing arrives from {publishers} publisher(s) of {printable(topic.name, 60)}; {advice}"
                self.node.get_logger().warning(f"{stream.name}: {state.loss}")
        if exceeded and self.limit and self.limit.at_receiver and number not in self._warned:
            self._warned.add(number)
            self.node.get_logger().warning(f"{topic.streams[0].name}: {exceeded}")

    def _exceeded(self, topic: Topic) -> str:
        """Why best effort loses messages of the size that the topic has; empty if it carries them."""
        if self.limit is None or not topic.large or topic.qos.reliability != "best_effort":
            return ""
        nbytes = topic.largest_bytes
        return f"messages have {nbytes / 2**20:.2f} MiB; {self.limit.losses}" if nbytes > self.limit.nbytes else ""


def not_received(node: Node, topic: str, type_name: str, fusion: str) -> str:
    """Why commands on a topic are not received; empty if a node subscribes to their type, and none to another one.

    The fusion node with the name `fusion` and the episode recorder do not count: they move no robot.
    """
    name = node.resolve_topic_name(topic)
    ignored = (fusion.rpartition("/")[2], "episode_recorder")
    receivers = [each for each in node.get_subscriptions_info_by_topic(name) if each.node_name not in ignored]
    shown = printable(name, 60)
    if others := sorted({each.topic_type for each in receivers} - {type_name}):
        types = printable(", ".join(others), 60)
        return (
            f"{shown} is subscribed to as {types}, not {type_name}; set the type that ros2 topic info -v {shown} shows"
        )
    if not receivers:
        advice = f"set the topic of the controller, see ros2 topic info -v {shown}"
        return f"nothing subscribes to {shown} ({type_name}); {advice}"
    return ""


MIN_TICKS = 150  # ticks that a share is computed from
INVALID_SHARE = 0.5  # share of the ticks above which a stream is reported
REPEAT_S = 30.0  # time between two warnings about a stream


class StreamWarnings:
    """Finds the streams that were invalid at most ticks since the last check."""

    def __init__(
        self,
        spec: FusionSpec,
        stats: TickStats,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = [stream.name for stream in spec.streams]
        self._optional = {stream.name for stream in spec.streams if stream.is_outcome}
        self._stats = stats
        self._began: dict[str, int] = {}  # by stream: ticks emitted when its first message was seen
        self._now_s = now_s
        self._ticks = stats.emitted
        self._invalid = stats.invalid.copy()
        self._next_s = dict.fromkeys(self._names, -np.inf)

    def check(self, reasons: Mapping[str, str], received: Container[str]) -> list[str]:
        """A warning for each stream that was invalid at most ticks, once enough ticks are counted.

        The ticks until a stream's first message are its start-up, and not counted.
        """
        for name in self._names:
            if name in received:
                self._began.setdefault(name, self._stats.emitted)
        begin = self._ticks
        ticks = self._stats.emitted - begin
        if ticks < MIN_TICKS:
            return []
        shares = (self._stats.invalid - self._invalid) / ticks
        self._ticks, self._invalid = self._stats.emitted, self._stats.invalid.copy()
        now_s = self._now_s()
        lines = []
        for name, share in zip(self._names, shares.tolist(), strict=True):
            if (
                name in self._optional
                or share <= INVALID_SHARE
                or now_s < self._next_s[name]
                or self._began.get(name, 0) > begin
            ):
                continue
            self._next_s[name] = now_s + REPEAT_S
            reason = reasons.get(name, "no reason known")
            lines.append(f"{name}: invalid at {share:.0%} of the last {ticks} ticks ({reason})")
        return lines
