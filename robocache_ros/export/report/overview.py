"""The top of the report: the index of the recordings, the worst moments, limits, and ideal against deployed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from robocache_ros.errors import printable
from robocache_ros.export.report.breaks import Break
from robocache_ros.export.report.recording_page import BREAKS_SHOWN, anchor
from robocache_ros.export.report.summary import Summary, worst_moments
from robocache_ros.export.report.tick_states import VISIBILITIES

LIMITS_SHOWN = 100  # near or exceeded limits listed


def overview(found: Sequence[Summary], detailed: Collection[int], compared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the template shows above the recordings.

    Args:
        found: the recordings.
        detailed: the numbers of those with a section in the report.
        compared: the coverage of each stream by visibility, None if it was not computed.
    """
    near = [(one, limit) for one in found for limit in one.limits if limit.near or limit.exceeded]
    near.sort(key=lambda pair: pair[1].near)  # exceeded ones first
    return {
        "index": [_row(one, detailed) for one in found],
        "detailed": len(detailed),
        "moments": [_moment(one, moment, detailed) for one, moment in worst_moments(found)],
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
        "aligned": one.aligned,
        "held": one.held,
        "invalid": one.invalid,
        "worst": f"{one.worst_stream} ({_percent(one.worst_aligned)})" if one.worst_stream else "",
        "longest": f"{one.longest_ms:.0f} ms" if one.breaks else "",
    }


def _moment(one: Summary, moment: Break, detailed: Collection[int]) -> dict[str, Any]:
    has_row = moment in one.breaks[:BREAKS_SHOWN]
    link = anchor(one.index, moment if has_row else None) if one.index in detailed else ""
    return {"recording": _name(one), "link": link, "of": moment}


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
