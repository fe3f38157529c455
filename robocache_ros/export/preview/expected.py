"""What an export makes of a recording: whether it matches the spec, and the episodes to expect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces.convert_recording import foresee
from robocache_ros.export.preview.matching import StreamMatch, match
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.spec import FusionSpec


@dataclass(frozen=True)
class Expected:
    """What is known of a recording before its export.

    Attributes:
        recording: the recording.
        streams: how the streams of the spec match it.
        result: the result of a conversion without images and clouds, whose validity follows from their times alone;
            None if the recording does not match or was not fused.
        refusal: why an export refuses the recording, although it matches; also why it cannot be read.
    """

    recording: PlannedRecording
    streams: tuple[StreamMatch, ...] = ()
    result: ExportedRecording | None = None
    refusal: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the recording does not become part of a dataset; empty if it does."""
        wrong = tuple(f"streams.{s.stream}: {problem}" for s in self.streams for problem in s.problems)
        return wrong or ((self.refusal,) if self.refusal else ())

    @property
    def path(self) -> Path:
        """The recording."""
        return self.recording.path


def expect(
    recording: PlannedRecording, spec: FusionSpec, options: ExportOptions | None = None, *, fuse: bool = True
) -> Expected:
    """Compare a recording with a spec, and fuse it without its images.

    Args:
        recording: the recording.
        spec: the streams, with the changes from the options.
        options: of the export.
        fuse: compute ticks and episodes, for which all messages are read; otherwise the index and a few messages.
    """
    streams: tuple[StreamMatch, ...] = ()
    options = options or ExportOptions()
    try:
        with file_errors(recording.path):
            with Bag(recording.path, msg_path=options.msg_path) as bag:
                recording.log_range(bag.start_ns, bag.stop_ns)
                streams = match(bag, spec)
            if not fuse or any(stream.problems for stream in streams):
                return Expected(recording, streams)
            result, refusal = foresee(recording, spec, options)
            return Expected(recording, streams, result, refusal)
    except RoboCacheError as error:
        return Expected(recording, streams, refusal=str(error))
