"""The report for machines: report.json. docs/reference/report.md lists the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache_ros
from robocache_ros.errors import printable
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.report.breaks import Break
from robocache_ros.export.report.plain_values import plain
from robocache_ros.export.report.summary import Summary, worst_moments
from robocache_ros.export.report.tick_states import side_by_side
from robocache_ros.spec import FusionSpec

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
        "worst_moments": [{"recording": one.index, **_moment(moment)} for one, moment in worst_moments(found)],
        "visibility_comparison": compared or None,
    }
    told: dict[str, Any] = plain(document)
    return told


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
        "longest_interruption": _moment(one.breaks[0]) if one.breaks else None,
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


def _moment(moment: Break) -> dict[str, Any]:
    return {
        "stream": moment.stream,
        "tick_ns": moment.tick_ns,
        "at_s": moment.at_s,
        "length_ms": moment.length_ms,
        "held": moment.held,
        "invalid": moment.invalid,
        "cause": moment.cause,
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
