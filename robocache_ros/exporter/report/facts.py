"""The facts of an export: states of ticks, interruptions of topics, and advice; report.json has them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache_ros
from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import printable
from robocache_ros.exporter.boundaries import QualityLimit, limits_of
from robocache_ros.formats.pieces import runs
from robocache_ros.formats.recording import ExportedRecording, FailedRecording, side_by_side
from robocache_ros.json_values import plain
from robocache_ros.spec import FusionSpec, StreamSpec


@dataclass(frozen=True)
class Break:
    """Consecutive ticks at which a stream was not aligned; report.json has these keys."""

    stream: str
    tick_ns: int  # the first of the ticks
    at_s: float
    length_ms: float
    held: int
    invalid: int
    cause: str


def breaks_of(recording: ExportedRecording) -> Iterator[Break]:
    """Yield runs of ticks at which a stream was held or had no value, within and between episodes."""
    stop = len(recording.valid) - recording.trailing
    period_ns = 1e9 / recording.spec.rate_hz
    for row, stream in enumerate(recording.spec.streams):
        states = recording.valid[recording.leading : stop, row]
        for begin, end, bad in runs((states != 1).astype(np.int64)):
            if bad:
                tick = int(recording.ticks_ns[recording.leading + begin])
                invalid = int((states[begin:end] == 0).sum())
                yield Break(
                    stream.name,
                    tick,
                    recording.elapsed_s(tick),
                    (end - begin) * period_ns / 1e6,
                    end - begin - invalid,
                    invalid,
                    _cause(recording.topics.get(stream.topic), stream, tick, int(tick + (end - begin) * period_ns)),
                )


def _cause(stats: TopicStats | None, stream: StreamSpec, start_ns: int, stop_ns: int) -> str:
    if stats is None:
        return "the topic has no message"
    longest = max(
        (g for g in stats.gaps if g.start_ns < stop_ns + stream.latency_ns and g.start_ns + g.length_ns > start_ns),
        key=lambda gap: gap.length_ns,
        default=None,
    )
    if longest:
        return f"{stream.topic} was silent for {longest.length_ns / 1e6:.0f} ms"
    if start_ns <= stats.start_ns:
        return f"{stream.topic} had not begun"
    if stop_ns >= stats.stop_ns:
        return f"{stream.topic} had ended"
    return "lost or late samples"


KEPT = 50  # longest interruptions kept of a recording, and of a dataset


@dataclass(frozen=True)
class Summary:
    """A recording in short. Shares are of the ticks in episodes, of observations and actions.

    Attributes:
        index: number of the recording in the report.
        first_episode: number of its first episode in the dataset.
        aligned, held, invalid: mean of the shares of its streams.
        complete, all_aligned: share of the ticks at which every stream has a value, or is aligned.
        usable: share of all ticks of the recording, also of those left out, at which every stream has a value.
        worst_stream: the stream with the smallest share of aligned values; empty if all are aligned.
        worst_aligned: that share.
        breaks: its longest interruptions, the longest first.
        interruptions: number of all its interruptions.
        broken: number of values that are held or missing in them.
        limits: the limits on quality in the spec, with its values.
    """

    index: int
    recording: ExportedRecording
    first_episode: int
    aligned: float
    held: float
    invalid: float
    complete: float
    all_aligned: float
    usable: float
    worst_stream: str
    worst_aligned: float
    breaks: tuple[Break, ...]
    interruptions: int
    broken: int
    limits: tuple[QualityLimit, ...]

    @property
    def longest_ms(self) -> float:
        """Length of the longest interruption in ms; 0 without one."""
        return self.breaks[0].length_ms if self.breaks else 0.0


def summaries(recordings: Iterable[ExportedRecording]) -> list[Summary]:
    """Summarize recordings, in their order."""
    found: list[Summary] = []
    episodes = 0
    for recording in recordings:
        found.append(_summary(len(found), recording, episodes))
        episodes += len(recording.episodes)
    return found


def worst_first(found: Sequence[Summary]) -> list[Summary]:
    """Sort by the share of all ticks at which every stream has a value, then by the longest interruption."""
    return sorted(found, key=lambda one: (one.usable, -one.longest_ms, one.index))


def worst_moments(found: Sequence[Summary]) -> list[tuple[Summary, Break]]:
    """Return the longest interruptions of all recordings, the longest first."""
    every = ((one, interruption) for one in found for interruption in one.breaks)
    return heapq.nsmallest(KEPT, every, key=lambda pair: (-pair[1].length_ms, pair[0].index, pair[1].tick_ns))


def _summary(index: int, recording: ExportedRecording, first_episode: int) -> Summary:
    inputs = np.flatnonzero(recording.spec.inputs)
    kept = recording.valid[recording.kept][:, inputs]
    shares = [(kept == state).mean(axis=0) if len(kept) else np.zeros(len(inputs)) for state in (1, 2, 0)]
    worst = int(np.argmin(shares[0]))
    breaks: list[Break] = []
    count = broken = 0
    for interruption in breaks_of(recording):
        count += 1
        broken += interruption.held + interruption.invalid
        breaks.append(interruption)
        if len(breaks) == 2 * KEPT:
            breaks = _longest(breaks)
    return Summary(
        index=index,
        recording=recording,
        first_episode=first_episode,
        aligned=float(shares[0].mean()),
        held=float(shares[1].mean()),
        invalid=float(shares[2].mean()),
        complete=float((kept > 0).all(axis=1).mean()) if len(kept) else 0.0,
        all_aligned=float((kept == 1).all(axis=1).mean()) if len(kept) else 0.0,
        usable=float((recording.valid[:, inputs] > 0).all(axis=1).mean()) if len(recording.valid) else 0.0,
        worst_stream=recording.spec.streams[inputs[worst]].name if shares[0][worst] < 1 else "",
        worst_aligned=float(shares[0][worst]),
        breaks=tuple(_longest(breaks)),
        interruptions=count,
        broken=broken,
        limits=tuple(limits_of(recording)),
    )


def _longest(breaks: list[Break]) -> list[Break]:
    return sorted(breaks, key=lambda one: (-one.length_ms, one.tick_ns))[:KEPT]


# The report for machines: report.json. docs/reference/report.md lists the keys.


STATES = {"aligned": 1, "held": 2, "invalid": 0}
VERSION = 1  # of the keys; it changes if one is removed or renamed


def report_document(
    found: Sequence[Summary], failed: Sequence[FailedRecording] = (), dataset: str | None = None
) -> dict[str, Any]:
    """Return the content of report.json: plain values without NaN.

    Args:
        found: the recordings.
        failed: recordings that are not in the dataset.
        dataset: the name of the dataset, if one was made.
    """
    first = found[0].recording
    compared = side_by_side([one.recording.visibilities for one in found], _names(first.spec))
    document = {
        "robocache_report": VERSION,
        "robocache_ros": robocache_ros.__version__,
        "dataset": None if dataset is None else printable(dataset, 200),
        "rate_hz": first.spec.rate_hz,
        "delay_ms": first.spec.delay_ms,
        "visibility": first.visibility,
        "frames": sum(one.recording.frames for one in found),
        "episodes": sum(len(one.recording.episodes) for one in found),
        "recordings": [_facts(one) for one in found],
        "failed": [{"path": loss.bag, "reason": loss.reason} for loss in failed],
        "interruptions": sum(one.interruptions for one in found),
        "worst_moments": [{"recording": one.index, **asdict(moment)} for one, moment in worst_moments(found)],
        "visibility_comparison": compared or None,
    }
    values: dict[str, Any] = plain(document)
    return values


def _facts(one: Summary) -> dict[str, Any]:
    return {
        "index": one.index,
        **recording_facts(one.recording),
        "duration_s": one.recording.duration_s,
        "first_episode": one.first_episode,
        "shares": {"aligned": one.aligned, "held": one.held, "invalid": one.invalid},
        "complete": one.complete,
        "all_aligned": one.all_aligned,
        "usable": one.usable,
        "worst_stream": one.worst_stream or None,
        "interruptions": one.interruptions,
        "longest_interruption": asdict(one.breaks[0]) if one.breaks else None,
        "limits": [
            {
                "name": limit.name,
                "stream": limit.stream or None,
                "value": limit.value,
                "limit": limit.limit,
                "state": "exceeded" if limit.exceeded else "near" if limit.near else "met",
            }
            for limit in one.limits
        ],
        "visibility_comparison": side_by_side([one.recording.visibilities], _names(one.recording.spec)) or None,
    }


def _names(spec: FusionSpec) -> tuple[str, ...]:
    return tuple(stream.name for stream in spec.streams)


def recording_facts(recording: ExportedRecording) -> dict[str, Any]:
    """Return what report.json and `--json` state about a converted recording."""
    ticks = len(recording.ticks_ns)
    validity = shares(recording.valid[recording.kept], recording.spec)
    return {
        "path": recording.bag,
        "task": recording.task or None,
        "success": recording.success,
        "start_ns": recording.start_ns,
        "stop_ns": recording.stop_ns,
        "ticks": ticks,
        "frames": recording.frames,
        "left_out": {
            "start": recording.leading,
            "between": ticks - recording.leading - recording.trailing - recording.frames,
            "end": recording.trailing,
            "reasons": recording.reasons,
        },
        "episodes": [
            {
                "first_tick_ns": recording.ticks_ns[episode.start],
                "last_tick_ns": recording.ticks_ns[episode.stop - 1],
                "frames": episode.stop - episode.start,
                "task": episode.task,
                "success": episode.success,
            }
            for episode in recording.episodes
        ],
        "streams": {name: {**states, "messages": dict(recording.counters[name])} for name, states in validity.items()},
        "notes": recording.notes,
        "integrity": recording.integrity,
    }


def shares(valid: NDArray[np.uint8], spec: FusionSpec) -> dict[str, dict[str, float]]:
    """Return the shares of aligned, held and invalid ticks by stream, of the (T, N) states of ticks."""
    return {
        stream.name: {state: float((valid[:, row] == number).mean()) for state, number in STATES.items()}
        for row, stream in enumerate(spec.streams if len(valid) else ())
    }
