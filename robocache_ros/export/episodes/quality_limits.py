"""Decides whether a recording is refused, also by the limits on quality in a spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from robocache_ros.bags.fuse import BagRun
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.episodes.boundaries import Boundaries
from robocache_ros.export.episodes.cutter import EpisodeCutter
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.spec import StreamQuality, StreamSpec

NEAR = 0.8  # share of a limit from which on a value is near it


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
    """Raise a RoboCacheError that names what exceeds the limits in a spec: stream, value and limit."""
    exceeded = [limit.text for limit in limits_of(recording) if limit.exceeded]
    if exceeded:
        more = f" (and {len(exceeded) - 1} more)" if len(exceeded) > 1 else ""
        where = printable(recording.bag, 50)
        raise RoboCacheError(f"{where}: {exceeded[0]}{more}; leave the recording out, or change the limit")


@dataclass(frozen=True)
class QualityLimit:
    """A limit on quality in a spec, and the value of a recording.

    Attributes:
        name: of the limit, such as max_invalid.
        stream: the stream; empty: the limit is of the recording.
        value, limit: shares, ms, messages/s or frames.
        text: the value and the limit as a sentence.
    """

    name: str
    stream: str
    value: float
    limit: float
    text: str

    @property
    def exceeded(self) -> bool:
        """Whether an export refuses the recording."""
        return self.value < self.limit if self._is_minimum else self.value > self.limit

    @property
    def near(self) -> bool:
        """Whether the value is within a fifth of the limit, but does not exceed it."""
        if self.exceeded:
            return False
        if self._is_minimum:
            return self.value * NEAR <= self.limit
        return 0 < self.value >= NEAR * self.limit

    @property
    def _is_minimum(self) -> bool:
        return self.name.startswith("min_")


def limits_of(recording: ExportedRecording) -> Iterator[QualityLimit]:
    """Yield all limits on quality in the spec of a recording, each with its value.

    Shares are of all ticks of the recording, as in the report. Intervals are between messages of a topic.
    """
    quality = recording.spec.quality
    for index, stream in enumerate(recording.spec.streams):
        limits = stream.quality or (quality if not stream.is_outcome else None)
        if limits:
            for name, value, text in _values(recording, index, stream, limits):
                limit = getattr(limits, name)
                if limit is not None:
                    yield QualityLimit(name, stream.name, value, limit, f"{stream.name} {text}")
    if quality and quality.min_frames is not None:
        text = f"{recording.frames} frames are below quality.min_frames, {quality.min_frames}"
        yield QualityLimit("min_frames", "", recording.frames, quality.min_frames, text)


def _values(
    recording: ExportedRecording, index: int, stream: StreamSpec, limits: StreamQuality
) -> Iterator[tuple[str, float, str]]:
    """Yield the name of each limit, the value of the stream, and how it is said that the limit is exceeded."""
    valid = recording.valid[:, index]
    for name, state, text in (("max_invalid", 0, "has no value"), ("max_held", 2, "has a held value")):
        share = float((valid == state).mean())
        yield name, share, f"{text} at {share:.2%} of the ticks, above quality.{name}, {getattr(limits, name) or 0:.2%}"
    topic = recording.topics.get(stream.topic)
    longest_ms = float(topic.intervals_ms.max()) if topic and len(topic.intervals_ms) else 0.0
    above = f"above quality.max_gap_ms, {limits.max_gap_ms or 0:g} ms"
    yield "max_gap_ms", longest_ms, f"has no message for {longest_ms:.4g} ms, {above}"
    rate_hz = topic.rate_hz if topic else 0.0
    below = f"below quality.min_rate_hz, {limits.min_rate_hz or 0:g} Hz"
    yield "min_rate_hz", rate_hz, f"has {rate_hz:.4g} messages/s, {below}"
