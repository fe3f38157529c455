"""Decides whether a recording is refused, also by the limits on quality in a spec."""

from __future__ import annotations

from collections.abc import Iterator

from robocache_ros.bags.fuse import BagRun
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.episodes.boundaries import Boundaries
from robocache_ros.export.episodes.cutter import EpisodeCutter
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.spec import StreamQuality, StreamSpec


def refusal(
    recording: ExportedRecording, boundaries: Boundaries, cutter: EpisodeCutter, run: BagRun, options: ExportOptions
) -> RoboCacheError | None:
    """Return why a recording is refused: too few of its ticks are in episodes, or its quality is below the spec's."""
    try:
        boundaries.check_kept(cutter, run, options)
        check_quality(recording)
    except RoboCacheError as error:
        return error
    return None


def check_quality(recording: ExportedRecording) -> None:
    """Raise a RoboCacheError that names what exceeds the limits in a spec: stream, value and limit.

    Shares are of all ticks of the recording, as in the report. Intervals are between messages of a topic.
    """
    where, quality = printable(recording.bag, 50), recording.spec.quality
    exceeded = []
    for index, stream in enumerate(recording.spec.streams):
        limits = stream.quality or (quality if not stream.is_outcome else None)
        if limits:
            exceeded += [f"{stream.name} {text}" for text in _exceeded(recording, index, stream, limits)]
    if quality and quality.min_frames is not None and recording.frames < quality.min_frames:
        exceeded.append(f"{recording.frames} frames are below quality.min_frames, {quality.min_frames}")
    if exceeded:
        more = f" (and {len(exceeded) - 1} more)" if len(exceeded) > 1 else ""
        raise RoboCacheError(f"{where}: {exceeded[0]}{more}; leave the recording out, or change the limit")


def _exceeded(recording: ExportedRecording, index: int, stream: StreamSpec, limits: StreamQuality) -> Iterator[str]:
    valid = recording.valid[:, index]
    for name, state, text in (("max_invalid", 0, "has no value"), ("max_held", 2, "has a held value")):
        limit, share = getattr(limits, name), float((valid == state).mean())
        if limit is not None and share > limit:
            yield f"{text} at {share:.2%} of the ticks, above quality.{name}, {limit:.2%}"
    topic = recording.topics.get(stream.topic)
    longest_ms = float(topic.intervals_ms.max()) if topic and len(topic.intervals_ms) else 0.0
    if limits.max_gap_ms is not None and longest_ms > limits.max_gap_ms:
        yield f"has no message for {longest_ms:.4g} ms, above quality.max_gap_ms, {limits.max_gap_ms:g} ms"
    rate_hz = topic.rate_hz if topic else 0.0
    if limits.min_rate_hz is not None and rate_hz < limits.min_rate_hz:
        yield f"has {rate_hz:.4g} messages/s, below quality.min_rate_hz, {limits.min_rate_hz:g} Hz"
