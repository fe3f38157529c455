"""The export: recordings through the engine into one dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.bags.fuse import BagRun, without_cameras
from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.bags.stats import clock_notes
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.checksums import Checksums
from robocache_ros.export.dataset_writer import DatasetWriter, ExportOptions, load_writer
from robocache_ros.export.episode import Episode
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
    episodes: tuple[Episode, ...]
    seconds: float  # from the first look at a recording until the dataset is complete; libraries were loaded before
    notes: tuple[str, ...] = ()  # left-overs of earlier exports: removed, completed, or in need of a hand

    @property
    def frames(self) -> int:
        """Ticks in the dataset."""
        return sum(episode.frames for episode in self.episodes)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(episode.duration_s for episode in self.episodes) / self.seconds


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
    """Write recordings as one dataset, an episode each; no reader finds a dataset in `out` until it is complete.

    Errors:
        RoboCacheError: a recording that cannot be read, does not fit the spec or changes while it is read; a folder
            that is in use, or holds a dataset while `overwrite` is not set; an error of the file system.
    """
    paths = _paths(bags)
    options = options or ExportOptions()
    # Cameras take part in when an `eager` tick of a `deployed` export is computed: they are then read, but not stored.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = without_cameras(spec)
    writer_of = load_writer(options.format)
    begun = time.perf_counter()
    target = Path(os.path.abspath(out))
    with file_errors(target):
        check_recordings(paths, spec)
        with new_dataset(target, overwrite=overwrite) as new, Checksums(paths) as checksums:
            with closing(writer_of(new.folder, Layout(spec), options)) as writer:
                episodes = tuple(_episode(path, spec, options, writer, progress) for path in paths)
                writer.finish(_provenance(spec, options, episodes, checksums.result()))
            if report:
                write_report(episodes, new.folder / "report.html", dataset=target.name, media=options.media)
    return ExportResult(Path(out), episodes, time.perf_counter() - begun, tuple(new.notes))


def summarize(
    bag: str | Path, spec: FusionSpec, *, visibility: str = "ideal", progress: Progress | None = None
) -> Episode:
    """What a recording would give as an episode, for a report on it, without writing a dataset."""
    with file_errors(Path(bag)):
        check_recordings([Path(bag)], spec)
        return _episode(Path(bag), spec, ExportOptions(visibility=visibility, trim=False), None, progress)


def _paths(bags: Sequence[str | Path]) -> list[Path]:
    if isinstance(bags, (str, Path)):
        raise RoboCacheError(f"bags: {printable(bags)} is one path; give a list of recordings")
    paths = [Path(bag) for bag in bags]
    if not paths:
        raise RoboCacheError("bags: none given; name at least one recording")
    return paths


def _episode(
    path: Path, spec: FusionSpec, options: ExportOptions, writer: DatasetWriter | None, progress: Progress | None
) -> Episode:
    with Bag(path) as bag:
        run = BagRun(bag, spec, visibility=options.visibility, trim=options.trim)
        thumbnails = Thumbnails(spec, run.start_ns, run.stop_ns)
        if writer:
            writer.begin_episode()
        span = max(run.stop_ns - run.start_ns, 1)
        with closing(run.frames()) as parts:  # closed before the recording is, which a thread still reads ahead
            for frames in parts:
                thumbnails.watch(frames)
                if writer:
                    writer.write(frames)
                if progress and len(frames):
                    progress(path.name, (int(frames.ticks_ns[-1]) - run.start_ns) / span)
        topics = run.stats()
        episode = Episode(
            bag=path,
            spec=spec,
            visibility=options.visibility,
            start_ns=run.start_ns,
            stop_ns=run.stop_ns,
            ticks_ns=run.ticks_ns,
            valid=run.valid,
            leading=run.leading,
            trailing=run.trailing,
            counters=run.counters,
            topics=topics,
            notes=(*bag.notes, *clock_notes(topics.values())),
            integrity=bag.integrity,
            thumbnails=thumbnails,
        )
        if writer:
            if not episode.frames:
                raise RoboCacheError(f"{printable(path, 100)}: spans no tick at {spec.rate_hz} Hz; leave it out")
            writer.end_episode()
        if progress:
            progress(path.name, 1.0)
        return episode


def _provenance(
    spec: FusionSpec, options: ExportOptions, episodes: Sequence[Episode], checksums: Sequence[list[dict[str, Any]]]
) -> dict[str, Any]:
    """What it takes to make the dataset again, and to know that it is the same."""
    return {
        "robocache_ros": robocache_ros.__version__,
        "options": asdict(options),
        "spec": spec.to_dict(),
        "layout": Layout(spec).to_dict(),
        "episodes": [
            {
                "episode_index": index,
                "bag": printable(episode.bag, 4096),
                "files": files,
                "start_ns": episode.start_ns,
                "stop_ns": episode.stop_ns,
                "frames": episode.frames,
                "trimmed_leading": episode.leading,
                "trimmed_trailing": episode.trailing,
                "counters": {name: dict(counts) for name, counts in episode.counters.items()},
                "notes": list(episode.notes),
                "integrity": episode.integrity,
            }
            for index, (episode, files) in enumerate(zip(episodes, checksums, strict=True))
        ],
    }
