"""The quality report of recordings: report.json, with states of ticks, interruptions and advice, and report.html."""

from __future__ import annotations

import base64
import heapq
import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache_ros
from robocache_ros.bags.stats import GAP_PERIODS, TopicStats
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.exporter.boundaries import QualityLimit, limits_of
from robocache_ros.extras import need
from robocache_ros.formats.pieces import runs
from robocache_ros.formats.read import STATES
from robocache_ros.formats.recording import (
    VISIBILITIES,
    ExportedRecording,
    FailedRecording,
    drop_causes,
    quality,
    side_by_side,
)
from robocache_ros.json_values import plain
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.storage.errors import file_errors
from robocache_ros.storage.new_files import check_new, write_new


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
    """A recording in short. Shares are of the ticks in episodes, of observations and actions."""

    index: int  # number of the recording in the report
    recording: ExportedRecording
    first_episode: int  # number of its first episode in the dataset
    shares: dict[str, float]  # aligned, held and invalid: mean of those of its streams
    # complete, all_aligned: share of the ticks at which every stream has a value, or is aligned
    complete: float
    all_aligned: float
    usable: float  # share of all ticks of the recording, also of those left out, at which every stream has a value
    worst_stream: str  # the stream with the smallest share of aligned values; empty if all are aligned
    worst_aligned: float  # that share
    breaks: tuple[Break, ...]  # its longest interruptions, the longest first
    interruptions: int  # number of all its interruptions
    limits: tuple[QualityLimit, ...]  # the limits on quality in the spec, with its values

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


def worst_moments(found: Sequence[Summary]) -> list[tuple[Summary, Break]]:
    """Return the longest interruptions of all recordings, the longest first."""
    every = ((one, interruption) for one in found for interruption in one.breaks)
    return heapq.nsmallest(KEPT, every, key=lambda pair: (-pair[1].length_ms, pair[0].index, pair[1].tick_ns))


def _summary(index: int, recording: ExportedRecording, first_episode: int) -> Summary:
    inputs = np.flatnonzero(recording.spec.inputs)
    kept = recording.valid[recording.kept][:, inputs]
    aligned = (kept == 1).mean(axis=0) if len(kept) else np.zeros(len(inputs))
    worst = int(np.argmin(aligned))
    breaks: list[Break] = []
    count = 0
    for interruption in breaks_of(recording):
        count += 1
        breaks.append(interruption)
        if len(breaks) == 2 * KEPT:
            breaks = _longest(breaks)
    found = quality(kept)
    return Summary(
        index=index,
        recording=recording,
        first_episode=first_episode,
        shares={name: found[name] for name in STATES},
        complete=found["complete"],
        all_aligned=found["all_aligned"],
        usable=float((recording.valid[:, inputs] > 0).all(axis=1).mean()) if len(recording.valid) else 0.0,
        worst_stream=recording.spec.streams[inputs[worst]].name if aligned[worst] < 1 else "",
        worst_aligned=float(aligned[worst]),
        breaks=tuple(_longest(breaks)),
        interruptions=count,
        limits=tuple(limits_of(recording)),
    )


def _longest(breaks: list[Break]) -> list[Break]:
    return sorted(breaks, key=lambda one: (-one.length_ms, one.tick_ns))[:KEPT]


# The report for machines: report.json. docs/reference/report.md lists the keys.


VERSION = 1  # of the keys; it changes if one is removed or renamed


def report_document(
    found: Sequence[Summary], failed: Sequence[FailedRecording] = (), dataset: str | None = None
) -> dict[str, Any]:
    """Return the content of report.json: plain values without NaN."""
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
        "shares": one.shares,
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
        "episodes": recording.stated_episodes,
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


TRIMMED = 3
_WORST_FIRST = np.array(
    [3, 0, 2, 0]
)  # severity by state: invalid, then held, then aligned; trimmed ticks are drawn separately
COLUMNS = 1000  # columns of the timeline; a column shows the worst state of its ticks
SMALLEST = 2.5  # columns that a single bad tick takes: two pixels of a window of 1,100
BINS = 40
WIDTH, HEIGHT = 232, 84  # size of a histogram, including labels


def state_bar(states: NDArray[np.uint8], leading: int, trailing: int) -> str:
    """Draw the (T,) states of a stream over time as colored runs; trimmed ticks are pale."""
    total = len(states)
    drawn = states.astype(np.int64)
    drawn[:leading] = TRIMMED
    drawn[total - trailing :] = TRIMMED
    if total > COLUMNS:
        edges = np.linspace(0, total, COLUMNS + 1).astype(int)
        worst = [part[np.argmax(_WORST_FIRST[part])] for part in np.split(drawn, edges[1:-1])]
        drawn = np.array(worst)
    names = {**{state: name for name, state in STATES.items()}, TRIMMED: "trimmed"}
    scale = 1000 / max(len(drawn), 1)
    found = [(state, start * scale, (stop - start) * scale) for start, stop, state in runs(drawn) if state != 1]
    found.sort(key=lambda run: run[0] == 0)  # what is invalid covers its neighbors
    rects = [
        f'<rect class="{names[state]}" x="{min(x, 1000 - SMALLEST):.2f}" '
        f'width="{max(size, SMALLEST):.2f}" height="10"/>'
        for state, x, size in found
    ]
    ground = '<rect class="aligned" width="1000" height="10"/>'
    return f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none">{ground}{"".join(rects)}</svg>'


def histogram(values: NDArray[np.float64], *, unit: str, mark: float | None = None, limit: float | None = None) -> str:
    """Draw a histogram with logarithmic height, so that a single outlier among thousands of samples is visible.

    mark: a value to mark, such as the median. limit: values above it are counted in the last bar.
    """
    if not len(values):
        return ""
    low, high = float(values.min()), float(values.max())
    if limit is not None:
        high = min(high, limit)
    if high - low < 1e-6 * max(abs(high), 1e-3):
        low, high = low - 0.5, high + 0.5
    inside = values[values <= high]
    counts, edges = np.histogram(inside, BINS, (low, high))
    beyond = int((values > high).sum())
    ground, top = HEIGHT - 16, 4
    bars = [*counts.tolist(), *([0, beyond] if beyond else [])]
    step = WIDTH / len(bars)
    tallest = np.log1p(max(bars))
    parts = []
    for index, count in enumerate(bars):
        if count:
            height = max(2.0, (ground - top) * float(np.log1p(count)) / float(tallest))
            last = beyond and index == len(bars) - 1
            label = f"over {high:.4g} {unit}" if last else f"{edges[index]:.4g} to {edges[index + 1]:.4g} {unit}"
            parts.append(
                f'<rect class="{"over" if last else "count"}" x="{index * step + 0.4:.2f}" y="{ground - height:.2f}" '
                f'width="{step - 0.8:.2f}" height="{height:.2f}"><title>{label}: {count}</title></rect>'
            )
    end = len(counts) * step
    if mark is not None and low <= mark <= high:
        at = (mark - low) / (high - low) * end
        parts.append(f'<line class="mark" x1="{at:.2f}" x2="{at:.2f}" y1="0" y2="{ground}"/>')
    parts.append(f'<line class="ground" x1="0" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>')
    parts.append(f'<text x="0" y="{HEIGHT - 3}">{low:.4g} {unit}</text>')
    anchor = f"{high:.4g} {unit}" + (f"  ·  {beyond} beyond" if beyond else "")
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">{anchor}</text>')
    return f'<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


TIME_WIDTH, RATE_HEIGHT, DELAY_HEIGHT = 480, 44, 26  # of a plot over time
TIME_BINS = 120
SAMPLES_OF_BIN = 5  # at least, of a slow topic


def over_time(stats: TopicStats, start_ns: int, stop_ns: int) -> tuple[str, str]:
    """Draw the rate of a topic over the time of its recording, its gaps, and below the longest delays.

    Returns:
        The caption, with the largest values, and the drawing.
    """
    span = max(stop_ns - start_ns, 1)
    times = (stats.start_ns - start_ns + np.cumsum([0.0, *(stats.intervals_ms * 1e6)])) / span
    bins = int(np.clip(len(times) // SAMPLES_OF_BIN, 1, TIME_BINS))
    counts = np.histogram(times, bins, (0.0, 1.0))[0]
    rates = counts * bins / (span / 1e9)
    highest = float(rates.max()) or 1.0
    step = TIME_WIDTH / bins
    levels = [f"{RATE_HEIGHT - (RATE_HEIGHT - 4) * rate / highest:.1f}" for rate in rates.tolist()]
    line = "".join(f"V{level}h{step:.2f}" for level in levels)
    parts = [f'<path class="count" d="M0 {RATE_HEIGHT}{line}V{RATE_HEIGHT}z"/>']
    for gap in sorted(stats.gaps, key=lambda gap: -gap.length_ns)[:TIME_BINS]:
        x, width = (TIME_WIDTH * ns / span for ns in (gap.start_ns - start_ns, gap.length_ns))
        label = f"silent for {gap.length_ns / 1e6:.0f} ms at {(gap.start_ns - start_ns) / 1e9:.2f} s"
        parts.append(
            f'<rect class="over" x="{min(x, TIME_WIDTH - 2):.1f}" width="{max(width, 2):.1f}" height="{RATE_HEIGHT}">'
            f"<title>{label}</title></rect>"
        )
    caption = f"rate over time, up to {highest:.4g} Hz"
    bottom = RATE_HEIGHT + 4 + DELAY_HEIGHT
    if len(stats.delays_ms):
        delays, slow = stats.delays_ms, float(stats.delays_ms.max()) or 1.0
        # In the order of the messages: at their times, unless duplicates or a wrong order hide which is which.
        at = times if len(delays) == len(times) else np.linspace(times[0], times[-1], len(delays))
        longest = np.zeros(bins)
        np.maximum.at(longest, np.clip((at * bins).astype(int), 0, bins - 1), delays)
        points = [
            f"{(index + 0.5) * step:.1f},{bottom - DELAY_HEIGHT * delay / slow:.1f}"
            for index, delay in enumerate(longest.tolist())
            if counts[index]
        ]
        parts.append(f'<polyline class="delay" points="{" ".join(points)}"/>')
        caption += f"; below the longest delays, up to {slow:.4g} ms"
    parts.append(f'<line class="ground" x1="0" x2="{TIME_WIDTH}" y1="{RATE_HEIGHT}" y2="{RATE_HEIGHT}"/>')
    parts.append(f'<line class="ground" x1="0" x2="{TIME_WIDTH}" y1="{bottom}" y2="{bottom}"/>')
    marks = axis_marks(span / 1e9)
    for index in sorted({0, len(marks) // 2, len(marks) - 1}):
        place, label = marks[index]
        anchor = "start" if not index else "end" if place > 95 else "middle"
        parts.append(
            f'<text x="{place * TIME_WIDTH / 100:.1f}" y="{bottom + 12}" text-anchor="{anchor}">{label}</text>'
        )
    return caption, f'<svg class="histogram over-time" viewBox="0 0 {TIME_WIDTH} {bottom + 15}">{"".join(parts)}</svg>'


def axis_marks(duration_s: float) -> list[tuple[float, str]]:
    """Return (position in percent, label) of about eight round times."""
    round_steps = (m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5))
    step = next((s for s in round_steps if duration_s / s <= 10), duration_s)
    count = int(duration_s / step + 1e-9)
    return [(100 * i * step / duration_s, f"{i * step:g} s") for i in range(count + 1)]


BREAKS_SHOWN = 12
MOMENTS_SHOWN = 10  # of all recordings, with the commands that show them
AROUND_S = 1.0  # before and after a moment
EPISODES_SHOWN = 50
COUNTERS = ("late", "duplicate", "dropped", "filled", "skewed", "unstamped", "unmatched", "corrupt", "window_overflow")


def anchor(index: int, moment: Break | None = None) -> str:
    """Return the id of the section of a recording, or of an interruption in it."""
    return f"recording-{index}" + (f"-{moment.stream}-{moment.tick_ns}" if moment else "")


def recording_page(one: Summary) -> dict[str, Any]:
    """Return what the template shows of a recording."""
    recording, shown = one.recording, one.breaks[:BREAKS_SHOWN]
    return {
        "index": one.index,
        "anchor": anchor(one.index),
        "name": printable(recording.bag.name, 200),
        "duration": f"{recording.duration_s:.1f} s",
        "ticks": recording.frames,
        "left_out": len(recording.valid) - recording.frames,
        "episodes": _episodes(one),
        "more_episodes": max(0, len(recording.episodes) - EPISODES_SHOWN),
        "share": {"all": one.complete, "aligned": one.all_aligned},
        "interruptions": one.interruptions,
        "breaks": [(anchor(one.index, moment), moment, view_command(recording, moment)) for moment in shown],
        "more_breaks": one.interruptions - len(shown),
        "findings": _findings(one),
        "axis": axis_marks(max((len(recording.ticks_ns) - 1) / recording.spec.rate_hz, 1e-3)),
        "streams": [_stream(row, stream, recording) for row, stream in enumerate(recording.spec.streams)],
        "topics": [_topic(stats, recording) for stats in recording.topics.values()],
        "thumbnails": [
            (
                name,
                [
                    (_caption(one, tick), f"data:image/jpeg;base64,{base64.b64encode(file).decode()}")
                    for tick, file in images
                ],
            )
            for name, images in recording.thumbnails.images.items()
            if images
        ],
        "integrity": recording.integrity,
    }


def _caption(one: Summary, tick_ns: int) -> str:
    """Return the time of an image, and the episode that it is in if there are several."""
    recording, ticks = one.recording, one.recording.ticks_ns
    shown = f"{recording.elapsed_s(tick_ns):.1f} s"
    if len(recording.episodes) < 2:
        return shown
    numbers = (n for n, e in enumerate(recording.episodes) if ticks[e.start] <= tick_ns <= ticks[e.stop - 1])
    number = next(numbers, None)
    return f"{shown} · {'no episode' if number is None else f'episode {one.first_episode + number}'}"


def _episodes(one: Summary) -> list[dict[str, Any]]:
    recording = one.recording
    return [
        {
            "number": one.first_episode + index,
            "from_s": recording.elapsed_s(int(recording.ticks_ns[episode.start])),
            "to_s": recording.elapsed_s(int(recording.ticks_ns[episode.stop - 1])),
            "frames": episode.stop - episode.start,
            "task": printable(episode.task or recording.task, 120),
            "success": {None: "", True: "yes", False: "no"}[
                recording.success if episode.success is None else episode.success
            ],
        }
        for index, episode in enumerate(recording.episodes[:EPISODES_SHOWN])
    ]


def _stream(row: int, stream: StreamSpec, recording: ExportedRecording) -> dict[str, Any]:
    states = recording.valid[:, row]
    kept = states[recording.kept]
    counts = recording.counters[stream.name]
    shares = {word: float((kept == state).mean()) if len(kept) else 0.0 for word, state in STATES.items()}
    return {
        "name": stream.name,
        "topic": stream.topic,
        "what": f"{' x '.join(map(str, stream.shape))} values" if stream.width else stream.kind,
        "align": stream.align,
        "role": stream.role,
        "bar": state_bar(states, recording.leading, recording.trailing),
        "shares": shares,
        "received": counts["received"],
        "counters": [(name, counts[name]) for name in COUNTERS if counts[name]],
    }


def _topic(stats: TopicStats, recording: ExportedRecording) -> dict[str, Any]:
    declared = next((s.rate_hz for s in recording.spec.streams if s.topic == stats.topic and s.rate_hz), 0.0)
    delays = stats.delays_ms
    return {
        "name": stats.topic,
        "type": stats.type.replace("/msg/", "/"),
        "rate": f"{stats.rate_hz:.1f} Hz",
        "declared": f"{declared:g} Hz" if declared else "",
        "gaps": bool(stats.gaps),
        "off_rate": bool(declared) and abs(stats.rate_hz - declared) > 0.1 * declared,
        "facts": [
            ("messages", f"{stats.count}", False),
            ("size", _size(stats.size), False),
            ("period", f"{stats.period_ms:.2f} ms", False),
            ("jitter", f"± {stats.jitter_ms:.2f} ms", False),
            ("missing", str(stats.missing), stats.missing > 0),
            ("gaps", str(len(stats.gaps)), bool(stats.gaps)),
            ("longest gap", f"{stats.longest_gap_ms:.0f} ms" if stats.gaps else "-", bool(stats.gaps)),
            ("duplicates", str(stats.duplicates), stats.duplicates > 0),
            ("out of order", str(stats.out_of_order), stats.out_of_order > 0),
            *(
                (f"delay {word}", f"{stats.delay_ms(share):.1f} ms", False)
                for word, share in (("median", 0.5), ("p95", 0.95), ("max", 1.0))
                if stats.stamped
            ),
        ],
        "over_time": over_time(stats, recording.start_ns, recording.stop_ns) if stats.count > 1 else None,
        "intervals": histogram(
            stats.intervals_ms, unit="ms", mark=stats.period_ms, limit=GAP_PERIODS * stats.period_ms
        ),
        "delays": histogram(delays, unit="ms", mark=float(np.median(delays)) if len(delays) else None),
    }


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def _findings(one: Summary) -> list[tuple[str, str]]:
    """Return (weight, sentence) findings for the user, the most severe first."""
    recording = one.recording
    found: list[tuple[str, str]] = [("bad", f"{limit.text}.") for limit in one.limits if limit.exceeded]
    found += [("warn", note) for note in recording.notes]
    for stats in recording.topics.values():
        if stats.gaps:
            worst = max(stats.gaps, key=lambda gap: gap.length_ns)
            at = recording.elapsed_s(worst.start_ns)
            more = f", and {len(stats.gaps) - 1} shorter times" if len(stats.gaps) > 1 else ""
            found.append(("bad", f"{stats.topic} was silent for {worst.length_ns / 1e6:.0f} ms at {at:.2f} s{more}."))
        scattered = stats.missing - sum(round(g.length_ns / 1e6 / stats.period_ms) - 1 for g in stats.gaps)
        if scattered > 0:
            share = 100 * scattered / (stats.count + scattered)
            found.append(("warn", f"{stats.topic} misses {scattered} single samples ({share:.1f} %)."))
        if stats.duplicates:
            found.append(("note", f"{stats.topic} has {stats.duplicates} duplicate stamps; the first of each is used."))
        if stats.out_of_order:
            found.append(("note", f"{stats.topic} has {stats.out_of_order} messages out of order; they were sorted."))
    for stream in recording.spec.streams:
        counts = recording.counters[stream.name]
        for name in ("dropped", "skewed", "unstamped", "corrupt"):
            if counts[name]:
                causes = drop_causes(counts) if name == "dropped" else ""
                found.append(
                    ("bad", f"{stream.name}: {counts[name]} messages {name}{f' ({causes})' if causes else ''}.")
                )
        if counts["filled"]:
            found.append(("note", f"{stream.name}: {counts['filled']} messages had NaN or infinite values filled."))
        if counts["late"]:
            late = number_of(counts["late"], "sample")
            found.append(("warn", f"{stream.name}: {late} too late for delay_ms {recording.spec.delay_ms:g}."))
    order = {"bad": 0, "warn": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding[0]])


LIMITS_SHOWN = 100  # near or exceeded limits listed


def overview(found: Sequence[Summary], detailed: Collection[int], compared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the template shows above the recordings, of which those in `detailed` have a section."""
    near = [(one, limit) for one in found for limit in one.limits if limit.near or limit.exceeded]
    near.sort(key=lambda pair: pair[1].near)  # exceeded ones first
    return {
        "index": [_row(one, detailed) for one in found],
        "detailed": len(detailed),
        "moments": [_moment(one, moment, detailed) for one, moment in worst_moments(found)[:MOMENTS_SHOWN]],
        "interruptions": sum(one.interruptions for one in found),
        "limits_given": any(one.limits for one in found),
        "limits": [
            {
                "recording": _name(one),
                "link": anchor(one.index) if one.index in detailed else "",
                "stream": limit.stream,
                "name": limit.name,
                "value": _amount(limit.name, limit.value),
                "limit": _amount(limit.name, limit.limit),
                "exceeded": limit.exceeded,
            }
            for one, limit in near[:LIMITS_SHOWN]
        ],
        "more_limits": max(0, len(near) - LIMITS_SHOWN),
        "compared": list(_compared(compared)) if compared else [],
    }


def _name(one: Summary) -> str:
    return f"{one.index} · {printable(one.recording.bag.name, 200)}"


def _row(one: Summary, detailed: Collection[int]) -> dict[str, Any]:
    recording = one.recording
    first, count = one.first_episode, len(recording.episodes)
    return {
        "link": anchor(one.index) if one.index in detailed else "",
        "name": _name(one),
        "task": printable(recording.task, 80),
        "success": {None: "", True: "yes", False: "no"}[recording.success],
        "episodes": f"{first}" if count == 1 else f"{first} to {first + count - 1}" if count else "none",
        "frames": recording.frames,
        "duration": f"{recording.duration_s:.1f} s",
        **one.shares,
        "worst": f"{one.worst_stream} ({_percent(one.worst_aligned)})" if one.worst_stream else "",
        "longest": f"{one.longest_ms:.0f} ms" if one.breaks else "",
    }


def _moment(one: Summary, moment: Break, detailed: Collection[int]) -> dict[str, Any]:
    has_row = moment in one.breaks[:BREAKS_SHOWN]
    link = anchor(one.index, moment if has_row else None) if one.index in detailed else ""
    return {"recording": _name(one), "link": link, "of": moment, "command": view_command(one.recording, moment)}


def view_command(recording: ExportedRecording, moment: Break) -> str:
    """Return the command that shows a moment of a recording, with the time around it."""
    first = max(0.0, moment.at_s - AROUND_S)
    last = moment.at_s + moment.length_ms / 1000 + AROUND_S
    place = shlex.quote(printable(recording.bag, 400))
    return f"robocache view {place} --from {first:.1f} --to {last:.1f}"


def _compared(compared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    ideal, deployed = (compared[visibility] for visibility in VISIBILITIES)
    for name in ideal:
        pair = (ideal[name], deployed[name])
        cells = {key: [_percent(one[key]) for one in pair] for key in ("aligned", "held", "invalid")}
        ages = [one["mean_age_ms"] for one in pair]
        yield {
            "stream": name,
            **cells,
            "age": ["-" if age is None else f"{age:.1f} ms" for age in ages],
            "lost": pair[1]["invalid"] > pair[0]["invalid"] + 0.001,
        }


def _percent(share: float) -> str:
    """Return a share in percent, that is 0 or 100 only where it is exact."""
    shown = f"{100 * share:.1f}"
    if (shown == "100.0" and share < 1) or (shown == "0.0" and share > 0):
        return f"{100 * share:.3f} %"
    return f"{shown} %"


def _amount(limit: str, value: float) -> str:
    if limit in ("max_invalid", "max_held"):
        return f"{100 * value:.2f} %"
    unit = {"max_gap_ms": "ms", "min_rate_hz": "Hz", "min_frames": "frames"}[limit]
    return f"{value:.4g} {unit}"


TEMPLATE = "report.html.j2"
SHOWN = 20  # recordings shown in full, the worst ones; the index lists all


def write_report(
    recordings: Sequence[ExportedRecording],
    out: Path,
    *,
    dataset: str | None = None,
    stored: Mapping[str, str] | None = None,
    failed: Sequence[FailedRecording] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the report of recordings, and its JSON document beside it with the ending .json, both atomically.

    `stored` describes how the dataset, if one was made, stores each stream of images or voxels.

    Returns:
        The JSON document.

    Errors:
        RoboCacheError: `out` exists, or cannot be written.
    """
    document_file = json_file(out)
    check_new(out, document_file, overwrite=overwrite)
    found = summaries(recordings)
    document = report_document(found, failed, dataset)
    with file_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_new(document_file, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
        write_new(out, _html(found, dataset, stored or {}, failed, document))
    return document


def json_file(out: Path) -> Path:
    """Return the path of the JSON document of a report."""
    if out.suffix == ".json":
        raise RoboCacheError(f"{printable(out)}: is the name of the JSON document; give a name that ends in .html")
    return out.with_suffix(".json")


@cache
def _templates() -> Any:
    jinja2 = need("jinja2", "export")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _html(
    found: Sequence[Summary],
    dataset: str | None,
    stored: Mapping[str, str],
    failed: Sequence[FailedRecording],
    document: Mapping[str, Any],
) -> str:
    worst_first = sorted(found, key=lambda one: (one.usable, -one.longest_ms, one.index))
    shown = sorted(worst_first[:SHOWN], key=lambda one: one.index)
    first = found[0].recording
    html: str = (
        _templates()
        .get_template(TEMPLATE)
        .render(
            title=printable(dataset or first.bag.name, 200),
            is_dataset=dataset is not None,
            pages=[recording_page(one) for one in shown],
            several=len(found) > 1,
            failed=[(printable(loss.bag.name, 200), printable(loss.reason, 400)) for loss in failed],
            spec=first.spec,
            visibility=first.visibility,
            lossy={name: how for name, how in stored.items() if how.endswith("lossy")},
            version=robocache_ros.__version__,
            **overview(found, {one.index for one in shown}, document["visibility_comparison"]),
        )
    )
    return html
