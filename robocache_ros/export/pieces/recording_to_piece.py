"""Makes the piece of a recording."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path

from torch.cuda import OutOfMemoryError

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.checksums import Checksums
from robocache_ros.export.episodes.boundaries import EpisodesDropped
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces import recording_file
from robocache_ros.export.pieces.convert_recording import PartsDropped, convert
from robocache_ros.export.pieces.piece_writer import PieceWriter
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording

_TARGET_ERRORS = (ENOSPC, EDQUOT, EFBIG, EROFS)  # errors that would also affect all other recordings


@dataclass(frozen=True)
class Outcome:
    """The outcome for a recording: its piece, or the error."""

    recording: PlannedRecording
    piece: Path | None = None
    reused: bool = False  # an earlier export made the piece
    error: str = ""
    dropped: bool = False  # the error is the one that `on_invalid: drop` asks for


def make_piece(
    plan: Plan, recording: PlannedRecording, store: PieceStore, *, resumed: bool, progress: Progress | None
) -> Outcome:
    """Make the piece of a recording, or find an existing one.

    Args:
        plan: the plan of the export.
        recording: one of its recordings.
        store: the store of the pieces.
        resumed: whether pieces of an earlier export exist. Only in this case, the function waits for the checksums of
            the recording, which name its piece, before the conversion.
        progress: called with the progress of the recording.

    Errors:
        OSError: an error of the target, such as a full disk. Errors of the recording itself are in the outcome.
    """
    try:
        with file_errors(recording.path, but=_TARGET_ERRORS), Checksums(recording.path) as checksums:
            found = store.find(plan.key(recording, checksums.result())) if resumed else None
            if found:
                return Outcome(recording, found, reused=True)
            return Outcome(recording, _make(plan, recording, store, checksums, progress))
    except OutOfMemoryError:
        where = printable(recording.path)
        return Outcome(recording, error=f"{where}: not enough GPU memory; use fewer --jobs, or --device cpu")
    except RoboCacheError as error:
        return Outcome(recording, error=str(error), dropped=isinstance(error, EpisodesDropped))


def _make(
    plan: Plan, recording: PlannedRecording, store: PieceStore, checksums: Checksums, progress: Progress | None
) -> Path:
    without: tuple[int, ...] = ()
    video, points = plan.options.video_settings, plan.options.points
    while True:
        with store.draft() as folder:
            try:
                with closing(PieceWriter(folder, plan.layout, plan.encodings, video, points)) as writer:
                    converted = convert(recording, plan.spec, plan.options, writer, progress, without, plan.device)
                    writer.finish()
            except PartsDropped as dropped:  # after some of their rows were written
                without = dropped.parts
                continue
            files = checksums.result()
            recording_file.save(folder, converted, files)
            return store.commit(folder, plan.key(recording, files))
