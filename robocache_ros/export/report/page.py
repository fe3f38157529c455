"""The quality report of recordings, as one self-contained HTML file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import robocache_ros
from robocache_ros.bags.stats import GAP_PERIODS, TopicStats
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.report import figures
from robocache_ros.export.report.breaks import breaks_of
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec

TEMPLATE = "report.html.j2"
SHOWN = 20  # recordings shown in full, most broken ticks first; the overview lists all
BREAKS_SHOWN = 12
COUNTERS = ("late", "duplicate", "dropped", "skewed", "unstamped", "unmatched", "corrupt", "window_overflow")


def write_report(
    recordings: Sequence[ExportedRecording],
    out: Path,
    *,
    dataset: str | None = None,
    stored: Mapping[str, str] | None = None,
    failed: Sequence[FailedRecording] = (),
    overwrite: bool = False,
) -> None:
    """Write the report of recordings.

    Args:
        recordings: the export results of the recordings.
        out: the file; it is written atomically.
        dataset: the name of the dataset, if one was made.
        stored: description of how the dataset stores each stream of images or voxels.
        failed: recordings that are not in the dataset.
        overwrite: replace a report in `out`.

    Errors:
        RoboCacheError: `out` exists, or cannot be written.
    """
    with file_errors(out):
        if out.is_dir() or (out.exists() and not overwrite):
            raise RoboCacheError(f"{printable(out)}: exists; choose another file, or replace it with --overwrite")
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(".html", ".robocache-report-", out.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                os.fchmod(handle, 0o644)
                file.write(_html(recordings, dataset, stored or {}, failed))
            os.replace(draft, out)
        except BaseException:
            os.unlink(draft)
            raise


def _html(
    recordings: Sequence[ExportedRecording],
    dataset: str | None,
    stored: Mapping[str, str],
    failed: Sequence[FailedRecording],
) -> str:
    jinja2 = need("jinja2", "export")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    pages = [_page(index, recording) for index, recording in enumerate(recordings)]
    shown = sorted(sorted(pages, key=lambda page: page["share"]["all"])[:SHOWN], key=lambda page: page["index"])
    return environment.get_template(TEMPLATE).render(  # type: ignore[no-any-return]
        title=printable(dataset or recordings[0].bag.name, 200),
        is_dataset=dataset is not None,
        pages=shown,
        overview=pages if len(pages) > 1 else [],
        failed=[(printable(loss.bag.name, 200), printable(loss.reason, 400)) for loss in failed],
        spec=recordings[0].spec,
        visibility=recordings[0].visibility,
        lossy={name: how for name, how in stored.items() if how.endswith("lossy")},
        version=robocache_ros.__version__,
    )


def _page(index: int, recording: ExportedRecording) -> dict[str, Any]:
    kept = recording.valid[recording.kept]
    breaks = list(breaks_of(recording))
    return {
        "index": index,
        "name": printable(recording.bag.name, 200),
        "duration": f"{recording.duration_s:.1f} s",
        "ticks": len(kept),
        "left_out": len(recording.valid) - recording.frames,
        "episodes": len(recording.episodes),
        "share": {
            "all": float((kept > 0).all(axis=1).mean()) if len(kept) else 0.0,
            "aligned": float((kept == 1).all(axis=1).mean()) if len(kept) else 0.0,
        },
        "broken": sum(b.held + b.invalid for b in breaks),
        "breaks": sorted(breaks, key=lambda b: b.length_ms, reverse=True)[:BREAKS_SHOWN],
        "more_breaks": max(0, len(breaks) - BREAKS_SHOWN),
        "findings": _findings(recording),
        "axis": figures.axis_marks(_span_s(recording)),
        "streams": [_stream(row, stream, recording) for row, stream in enumerate(recording.spec.streams)],
        "topics": [_topic(stats, recording) for stats in recording.topics.values()],
        "thumbnails": [
            (name, [(f"{(tick - recording.start_ns) / 1e9:.1f} s", figures.jpeg_url(file)) for tick, file in images])
            for name, images in recording.thumbnails.images.items()
            if images
        ],
        "integrity": recording.integrity,
    }


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


def _findings(recording: ExportedRecording) -> list[tuple[str, str]]:
    """Return (weight, sentence) findings for the user, the most severe first."""
    found: list[tuple[str, str]] = [("warn", note) for note in recording.notes]
    for stats in recording.topics.values():
        if stats.gaps:
            worst = max(stats.gaps, key=lambda gap: gap.length_ns)
            at = (worst.start_ns - recording.start_ns) / 1e9
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
                causes = ", ".join(key.split(":", 1)[1] for key in counts if key.startswith(f"{name}:"))
                found.append(
                    ("bad", f"{stream.name}: {counts[name]} messages {name}{f' ({causes})' if causes else ''}.")
                )
        if counts["late"]:
            delay = f"{recording.spec.delay_ms:g}"
            found.append(("warn", f"{stream.name}: {counts['late']} samples arrive too late for delay_ms {delay}."))
    order = {"bad": 0, "warn": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding[0]])
