"""/diagnostics: one status per stream and one for the ticks, with every counter by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.errors import printable
from robocache_ros.nodes.subscriptions.topics import StreamState
from robocache_ros.nodes.tick_loop import TickStats
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


@dataclass
class _Seen:
    """A stream's counters at the last report."""

    counters: Counter[str]
    arrival_ns: int | None


class Diagnostics:
    """Reports the counters of all messages, and derives a level from those that have grown since the last report.

    Args:
        spec: the streams.
        name: the node's name with its namespace, with which the name of each status begins.
    """

    def __init__(self, spec: FusionSpec, name: str) -> None:
        self._spec = spec
        self._name = name
        self._seen = {stream.name: _Seen(Counter(), None) for stream in spec.streams}
        self._jumps = 0

    def report(
        self,
        ingest: Ingest,
        states: dict[str, StreamState],
        stats: TickStats,
        active: bool,
        outputs: Mapping[str, int] = MappingProxyType({}),
    ) -> list[DiagnosticStatus]:
        """One status for each stream, and one for the ticks with the counters of the outputs."""
        streams = [
            self._stream(stream, index, ingest, states, stats, active)
            for index, stream in enumerate(self._spec.streams)
        ]
        return [*streams, self._ticks(ingest.engine, stats, active, outputs)]

    def _stream(
        self,
        stream: StreamSpec,
        index: int,
        ingest: Ingest,
        states: dict[str, StreamState],
        stats: TickStats,
        active: bool,
    ) -> DiagnosticStatus:
        state = states[stream.name]
        parts = [feed for feed in self._spec.feeds if feed in stream.companions or self._places(feed, stream)]
        problems = [text for s in (stream, *parts) for text in states[s.name].problems.values()]
        counters = Counter(dict(ingest.counters[stream.name]))
        for feed in parts:
            part = feed.name.rpartition("/")[2]
            counters.update({f"{part}:{key}": count for key, count in ingest.counters[feed.name].items()})
        counters.update(ingest.engine.lost(stream.name))
        counters["dropped"] += state.crashed
        counters["dropped:internal"] += state.crashed
        seen = self._seen[stream.name]
        new = counters - seen.counters
        rate_hz = _rate(new["received"], seen.arrival_ns, state.newest_arrival_ns)
        self._seen[stream.name] = _Seen(counters, state.newest_arrival_ns)

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
        return self._status(stream.name, level, message, values)

    def _places(self, feed: StreamSpec, stream: StreamSpec) -> bool:
        """Whether a feed is /tf and the stream's clouds are placed with it."""
        return feed.name == TF and stream in self._spec.framed

    def _ticks(
        self, engine: FusionEngine, stats: TickStats, active: bool, outputs: Mapping[str, int]
    ) -> DiagnosticStatus:
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
            return self._status("ticks", OK, "inactive", values)
        if not stats.emitted:
            return self._status("ticks", WARN, "no tick yet; in sim time there are no ticks without /clock", values)
        return self._status("ticks", WARN if jumped else OK, "the clock jumped" if jumped else "running", values)

    def _status(self, part: str, level: bytes, message: str, values: dict[str, str]) -> DiagnosticStatus:
        pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
        return DiagnosticStatus(
            level=level, name=f"{self._name}: {part}", message=message, hardware_id=self._name, values=pairs
        )


def array(statuses: list[DiagnosticStatus], stamp: object) -> DiagnosticArray:
    """The message that contains the statuses."""
    message = DiagnosticArray(status=statuses)
    message.header.stamp = stamp
    return message


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
