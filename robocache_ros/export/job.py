"""The export: recordings through the engine into a dataset, all or nothing."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache_ros
from robocache_ros.bags.fuse import BagRun, without_cameras
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.atomic import whole_folder
from robocache_ros.export.strip import Strip
from robocache_ros.export.writer import DatasetWriter, ExportOptions, make_writer
from robocache_ros.layout import Layout
from robocache_ros.spec import FusionSpec

Progress = Callable[[str, float], None]  # name of the recording, share of it that is done in 0..1


@dataclass(frozen=True)
class Episode:
    """What one recording gave, for the report and for whoever wants to make it again."""

    bag: Path
    spec: FusionSpec
    visibility: str
    start_ns: int
    stop_ns: int
    ticks_ns: NDArray[np.int64] = field(repr=False)  # (T,) every tick of the recording
    valid: NDArray[np.uint8] = field(repr=False)  # (T, N)
    leading: int  # ticks trimmed at either end
    trailing: int
    counters: dict[str, Counter[str]]
    topics: dict[str, TopicStats]
    notes: tuple[str, ...]
    strip: Strip = field(repr=False)

    @property
    def frames(self) -> int:
        """Ticks that were kept."""
        return len(self.ticks_ns) - self.leading - self.trailing

    @property
    def duration_s(self) -> float:
        """Length of the recording."""
        return (self.stop_ns - self.start_ns) / 1e9


@dataclass(frozen=True)
class ExportResult:
    """What an export made."""

    out: Path
    episodes: tuple[Episode, ...]
    seconds: float  # from opening the first recording until the dataset has its name

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
    begun = time.perf_counter()
    if options.media == "none":
        spec = without_cameras(spec)
    with whole_folder(Path(out), overwrite=overwrite) as folder:
        writer = make_writer(folder, Layout(spec), options)
        try:
            episodes = tuple(_episode(Path(bag), spec, options, writer, progress) for bag in bags)
            writer.finish(_provenance(spec, options, episodes))
        finally:
            writer.close()
        if report:
            from robocache_ros.export.report import write_report

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
        for frames in run.frames():
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


def _provenance(spec: FusionSpec, options: ExportOptions, episodes: Sequence[Episode]) -> dict[str, Any]:
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
                "files": _checksums(episode.bag),
                "start_ns": episode.start_ns,
                "stop_ns": episode.stop_ns,
                "frames": episode.frames,
                "trimmed_leading": episode.leading,
                "trimmed_trailing": episode.trailing,
                "counters": {name: dict(counts) for name, counts in episode.counters.items()},
                "notes": list(episode.notes),
            }
            for index, episode in enumerate(episodes)
        ],
    }


def _checksums(path: Path) -> list[dict[str, Any]]:
    with Bag(path) as bag:
        return [{"name": f.name, "size": f.stat().st_size, "sha256": _sha256(f)} for f in bag.files]


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
