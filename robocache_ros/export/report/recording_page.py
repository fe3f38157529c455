"""The section of a recording in the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from robocache_ros.bags.stats import GAP_PERIODS, TopicStats
from robocache_ros.errors import printable
from robocache_ros.export.exported_recording import ExportedRecording, drop_causes
from robocache_ros.export.report import figures
from robocache_ros.export.report.breaks import Break
from robocache_ros.export.report.summary import Summary
from robocache_ros.spec import StreamSpec

BREAKS_SHOWN = 12
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
        "breaks": [(anchor(one.index, moment), moment) for moment in shown],
        "more_breaks": one.interruptions - len(shown),
        "findings": _findings(one),
        "axis": figures.axis_marks(_span_s(recording)),
        "streams": [_stream(row, stream, recording) for row, stream in enumerate(recording.spec.streams)],
        "topics": [_topic(stats, recording) for stats in recording.topics.values()],
        "thumbnails": [
            (name, [(f"{recording.elapsed_s(tick):.1f} s", figures.jpeg_url(file)) for tick, file in images])
            for name, images in recording.thumbnails.images.items()
            if images
        ],
        "integrity": recording.integrity,
    }


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


def _span_s(recording: ExportedRecording) -> float:
    return max((len(recording.ticks_ns) - 1) / recording.spec.rate_hz, 1e-3)


def _stream(row: int, stream: StreamSpec, recording: ExportedRecording) -> dict[str, Any]:
    states = recording.valid[:, row]
    kept = states[recording.kept]
    counts = recording.counters[stream.name]
    shares = {word: float((kept == state).mean()) if len(kept) else 0.0 for state, word in figures.STATES.items()}
    return {
        "name": stream.name,
        "topic": stream.topic,
        "what": f"{' x '.join(map(str, stream.shape))} values" if stream.width else stream.kind,
        "align": stream.align,
        "role": stream.role,
        "bar": figures.state_bar(states, recording.leading, recording.trailing),
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
        "intervals": figures.histogram(
            stats.intervals_ms, unit="ms", mark=stats.period_ms, limit=GAP_PERIODS * stats.period_ms
        ),
        "delays": figures.histogram(delays, unit="ms", mark=float(np.median(delays)) if len(delays) else None),
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
            delay = f"{recording.spec.delay_ms:g}"
            found.append(("warn", f"{stream.name}: {counts['late']} samples arrive too late for delay_ms {delay}."))
    order = {"bad": 0, "warn": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding[0]])
