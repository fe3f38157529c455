"""The export: recordings through the engine into one dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.bags.fuse import BagRun, without_cameras
from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.bags.stats import clock_notes
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.checksums import Checksums
from robocache_ros.export.dataset_writer import DatasetWriter, ExportOptions, load_writer
from robocache_ros.export.episode_cutter import EpisodeCutter
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.report.page import write_report
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.export.target import new_dataset
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

Progress = Callable[[str, float], None]  # name of the recording, share of it that is done in 0..1


@dataclass(frozen=True)
class ExportResult:
    """What an export made."""

    out: Path
    recordings: tuple[ExportedRecording, ...]
    seconds: float  # from the first look at a recording until the dataset is complete; libraries were loaded before
    notes: tuple[str, ...] = ()  # left-overs of earlier exports: removed, completed, or in need of a hand

    @property
    def frames(self) -> int:
        """Ticks in the dataset."""
        return sum(recording.frames for recording in self.recordings)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(recording.duration_s for recording in self.recordings) / self.seconds


def export(
    bags: Sequence[str | Path],
    spec: FusionSpec,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    report: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Write recordings as one dataset; no reader finds a dataset in `out` until it is complete.

    Errors:
        RoboCacheError: a recording that cannot be read, does not fit the spec or changes while it is read; a folder
            that is in use, or holds a dataset while `overwrite` is not set; an error of the file system.
    """
    paths = _paths(bags)
    options = options or ExportOptions()
    # Cameras take part in when an `eager` tick of a `deployed` export is computed: they are then read, but not stored.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = without_cameras(spec)
    spec = _with_policy(spec, options)
    writer_of = load_writer(options.format)
    begun = time.perf_counter()
    target = Path(os.path.abspath(out))
    with file_errors(target):
        check_recordings(paths, spec)
        with new_dataset(target, overwrite=overwrite) as new, Checksums(paths) as checksums:
            with closing(writer_of(new.folder, Layout(spec), options)) as writer:
                recordings = tuple(_convert(path, spec, options, writer, progress) for path in paths)
                writer.finish(_provenance(spec, options, recordings, checksums.result()))
                stored = writer.stored
            if report:
                write_report(recordings, new.folder / "report.html", dataset=target.name, stored=stored)
    return ExportResult(Path(out), recordings, time.perf_counter() - begun, tuple(new.notes))


def summarize(
    bag: str | Path, spec: FusionSpec, *, visibility: str = "ideal", progress: Progress | None = None
) -> ExportedRecording:
    """What an export would make of a recording, for a report on it, without writing a dataset."""
    with file_errors(Path(bag)):
        check_recordings([Path(bag)], spec)
        options = ExportOptions(visibility=visibility, on_invalid="mask", trim=False)
        return _convert(Path(bag), spec, options, None, progress)


def _paths(bags: Sequence[str | Path]) -> list[Path]:
    if isinstance(bags, (str, Path)):
        raise RoboCacheError(f"bags: {printable(bags)} is one path; give a list of recordings")
    paths = [Path(bag) for bag in bags]
    if not paths:
        raise RoboCacheError("bags: none given; name at least one recording")
    return paths


def _with_policy(spec: FusionSpec, options: ExportOptions) -> FusionSpec:
    """The spec with the `on_invalid` that the options ask for."""
    if options.on_invalid != "spec":
        spec = replace(spec, streams=tuple(replace(s, on_invalid=options.on_invalid) for s in spec.streams))
    if not options.trim and not _masks_all(spec):
        raise RoboCacheError("trim: ticks without values are kept only where on_invalid is mask; use on_invalid mask")
    return spec


def _masks_all(spec: FusionSpec) -> bool:
    return all(stream.on_invalid == "mask" for stream in spec.streams)


def _convert(
    path: Path, spec: FusionSpec, options: ExportOptions, writer: DatasetWriter | None, progress: Progress | None
) -> ExportedRecording:
    with Bag(path) as bag:
        run = BagRun(bag, spec, visibility=options.visibility, trim=options.trim and _masks_all(spec))
        cutter = EpisodeCutter(spec, options.min_frames if writer else 1)
        thumbnails = Thumbnails(spec, run.start_ns, run.stop_ns)
        span = max(run.stop_ns - run.start_ns, 1)
        with closing(run.frames()) as parts:  # closed before the recording is, which a thread still reads ahead
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


def _write(cutter: EpisodeCutter, frames: Frames, writer: DatasetWriter | None) -> None:
    for piece in cutter.cut(frames):
        if writer:
            if piece.first:
                if cutter.episodes:
                    writer.end_episode()
                writer.begin_episode()
            writer.write(piece.frames)


def _check_kept(recording: ExportedRecording, run: BagRun, options: ExportOptions) -> None:
    """Refuse a recording that gives too little."""
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


def _provenance(
    spec: FusionSpec,
    options: ExportOptions,
    recordings: Sequence[ExportedRecording],
    checksums: Sequence[list[dict[str, Any]]],
) -> dict[str, Any]:
    """What it takes to make the dataset again, and to know that it is the same."""
    return {
        "robocache_ros": robocache_ros.__version__,
        "options": asdict(options),
        "spec": spec.to_dict(),
        "layout": Layout(spec).to_dict(),
        "recordings": [
            {
                "bag": printable(recording.bag, 4096),
                "files": files,
                "start_ns": recording.start_ns,
                "stop_ns": recording.stop_ns,
                "ticks": len(recording.ticks_ns),
                "frames": recording.frames,
                "counters": {name: dict(counts) for name, counts in recording.counters.items()},
                "notes": list(recording.notes),
                "integrity": recording.integrity,
                **recording.clocks,
            }
            for recording, files in zip(recordings, checksums, strict=True)
        ],
        "episodes": [
            {
                "recording": index,
                "first_tick_ns": int(recording.ticks_ns[start]),
                "last_tick_ns": int(recording.ticks_ns[stop - 1]),
                "frames": stop - start,
            }
            for index, recording in enumerate(recordings)
            for start, stop in recording.episodes
        ],
    }
