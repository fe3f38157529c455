"""The export: recordings through the engine into a dataset, all or nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.bags.fuse import BagRun, without_cameras
from robocache_ros.bags.reader import Bag, storage_files
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.atomic import whole_folder
from robocache_ros.export.episode import Episode
from robocache_ros.export.report import write_report
from robocache_ros.export.strip import Strip
from robocache_ros.export.writer import DatasetWriter, ExportOptions, load_writer
from robocache_ros.layout import Layout
from robocache_ros.spec import FusionSpec

Progress = Callable[[str, float], None]  # name of the recording, share of it that is done in 0..1


@dataclass(frozen=True)
class ExportResult:
    """What an export made."""

    out: Path
    episodes: tuple[Episode, ...]
    seconds: float  # from the first look at a recording until the dataset has its name; libraries were loaded before

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
    """Write recordings as one dataset, an episode each; `out` is there when it is whole, and not before.

    Errors:
        RoboCacheError: a recording that cannot be read or does not fit the spec, a folder that is taken.
    """
    if not bags:
        raise RoboCacheError("bags: none given; name at least one recording")
    options = options or ExportOptions()
    # Where ticks go out once every stream has passed them, the cameras decide when: then they are read all the same.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = without_cameras(spec)
    writer_of = load_writer(options.format)
    begun = time.perf_counter()
    with whole_folder(Path(out), overwrite=overwrite) as folder, ThreadPoolExecutor(1) as aside:
        checksums = [aside.submit(_checksums, Path(bag)) for bag in bags]
        writer = writer_of(folder, Layout(spec), options)
        try:
            episodes = tuple(_episode(Path(bag), spec, options, writer, progress) for bag in bags)
            writer.finish(_provenance(spec, options, episodes, [files.result() for files in checksums]))
        finally:
            writer.close()
        if report:
            write_report(episodes, folder / "report.html", dataset=Path(out).name)
    return ExportResult(Path(out), episodes, time.perf_counter() - begun)


def survey(
    bag: str | Path, spec: FusionSpec, *, visibility: str = "ideal", progress: Progress | None = None
) -> Episode:
    """What a recording would give, for a report on it, without writing a dataset."""
    return _episode(Path(bag), spec, ExportOptions(visibility=visibility, trim=False), None, progress)


def _episode(
    path: Path, spec: FusionSpec, options: ExportOptions, writer: DatasetWriter | None, progress: Progress | None
) -> Episode:
    with Bag(path) as bag:
        run = BagRun(bag, spec, visibility=options.visibility, trim=options.trim)
        strip = Strip(spec, run.start_ns, run.stop_ns)
        if writer:
            writer.begin_episode()
        span = max(run.stop_ns - run.start_ns, 1)
        with closing(run.frames()) as parts:  # closed before the recording is, which a thread still reads ahead
            for frames in parts:
                strip.watch(frames)
                if writer:
                    writer.write(frames)
                if progress and len(frames):
                    progress(path.name, (int(frames.ticks_ns[-1]) - run.start_ns) / span)
        if writer:
            writer.end_episode()
        if progress:
            progress(path.name, 1.0)
        return Episode(
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
            topics=run.stats(),
            notes=tuple(bag.notes),
            strip=strip,
        )


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
                "bag": str(episode.bag),
                "files": files,
                "start_ns": episode.start_ns,
                "stop_ns": episode.stop_ns,
                "frames": episode.frames,
                "trimmed_leading": episode.leading,
                "trimmed_trailing": episode.trailing,
                "counters": {name: dict(counts) for name, counts in episode.counters.items()},
                "notes": list(episode.notes),
            }
            for index, (episode, files) in enumerate(zip(episodes, checksums, strict=True))
        ],
    }


def _checksums(path: Path) -> list[dict[str, Any]]:
    return [{"name": f.name, "size": f.stat().st_size, "sha256": _sha256(f)} for f in storage_files(path)]


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
