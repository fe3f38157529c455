"""Converts a recording to its piece with the engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import clock_notes
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.checksums import Checksums
from robocache_ros.export.episodes.cutter import EpisodeCutter
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces import recording_file
from robocache_ros.export.pieces.piece_writer import PieceWriter
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

Progress = Callable[[str, float], None]  # name of the recording, completed share in 0..1
_TARGET_ERRORS = (ENOSPC, EDQUOT, EFBIG, EROFS)  # errors that would also affect all other recordings


@dataclass(frozen=True)
class Outcome:
    """The outcome for a recording: its piece, or the error."""

    recording: Path
    piece: Path | None = None
    reused: bool = False  # an earlier export made the piece
    error: str = ""


def make_piece(plan: Plan, recording: Path, store: PieceStore, *, resumed: bool, progress: Progress | None) -> Outcome:
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
        with file_errors(recording, but=_TARGET_ERRORS), Checksums(recording) as checksums:
            found = store.find(plan.key(recording, checksums.result())) if resumed else None
            if found:
                if progress:
                    progress(recording.name, 1.0)
                return Outcome(recording, found, reused=True)
            return Outcome(recording, _make(plan, recording, store, checksums, progress))
    except RoboCacheError as error:
        return Outcome(recording, error=str(error))


def _make(plan: Plan, path: Path, store: PieceStore, checksums: Checksums, progress: Progress | None) -> Path:
    with store.draft() as folder:
        with closing(PieceWriter(folder, Layout(plan.spec), plan.encodings, plan.options.video_settings)) as writer:
            recording = convert(path, plan.spec, plan.options, writer, progress)
            writer.finish()
        files = checksums.result()
        recording_file.save(folder, recording, files)
        return store.commit(folder, plan.key(path, files))


def convert(
    path: Path, spec: FusionSpec, options: ExportOptions, writer: PieceWriter | None, progress: Progress | None
) -> ExportedRecording:
    """Run a recording through the engine; write the ticks of its episodes to `writer`."""
    with Bag(path) as bag:
        run = BagRun(
            bag, spec, visibility=options.visibility, trim=options.trim and masks_all(spec), channels_last=True
        )
        cutter = EpisodeCutter(spec, options.min_frames if writer else 1)
        thumbnails = Thumbnails(spec, run.start_ns, run.stop_ns)
        span = max(run.stop_ns - run.start_ns, 1)
        with closing(run.frames()) as parts:  # closed before the recording, which a thread prefetches
            for frames in parts:
                thumbnails.watch(frames)
                _write(cutter, frames, writer)
                if progress and len(frames):
                    progress(path.name, (int(frames.ticks_ns[-1]) - run.start_ns) / span)
        cutter.finish()
        topics = run.stats()
        recording = ExportedRecording(
            bag=path,
            spec=spec,
            visibility=options.visibility,
            start_ns=run.start_ns,
            stop_ns=run.stop_ns,
            ticks_ns=run.ticks_ns,
            valid=run.valid,
            episodes=tuple((start + run.leading, stop + run.leading) for start, stop in cutter.episodes),
            counters=run.counters,
            topics=topics,
            notes=(*bag.notes, *filter(None, [run.timeline.note]), *clock_notes(topics.values())),
            clocks=run.clocks(),
            integrity=bag.integrity,
            thumbnails=thumbnails,
        )
        if writer:
            _check_kept(recording, run, options)
            writer.end_episode()
        if progress:
            progress(path.name, 1.0)
        return recording


def masks_all(spec: FusionSpec) -> bool:
    """Whether ticks with missing values are always kept."""
    return all(stream.on_invalid == "mask" for stream in spec.streams)


def _write(cutter: EpisodeCutter, frames: Frames, writer: PieceWriter | None) -> None:
    for ticks in cutter.cut(frames):
        if writer:
            if ticks.first:
                if cutter.episodes:
                    writer.end_episode()
                writer.begin_episode()
            writer.write(ticks.frames)


def _check_kept(recording: ExportedRecording, run: BagRun, options: ExportOptions) -> None:
    """Refuse a recording with too few ticks in episodes."""
    where = printable(recording.bag, 60)
    if not recording.episodes:
        run.check_spans_ticks()
        if (recording.valid > 0).all(axis=1).any():
            raise RoboCacheError(
                f"{where}: no {options.min_frames} ticks in a row have every stream; raise max_age_ms of those with "
                "gaps, set on_invalid hold or mask for them, or lower --min-frames"
            )
        raise RoboCacheError(run.why_incomplete())
    expected = len(recording.ticks_ns) - recording.episodes[0][0]
    if recording.frames < options.min_valid * expected:
        shares = (recording.valid > 0).mean(axis=0)
        worst = int(shares.argmin())
        raise RoboCacheError(
            f"{where}: {recording.frames} of {expected} ticks have every stream, {recording.spec.streams[worst].name} "
            f"in {shares[worst]:.0%}; give it a larger max_age_ms, on_invalid hold or mask, or lower --min-valid"
        )
