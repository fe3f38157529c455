"""What an export would make: recordings, episodes, what is there already, and estimates of size and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from robocache_ros.bags.reader import storage_files
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.checksums import Checksums
from robocache_ros.export.engines.local_processes import available_cores
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.job import export
from robocache_ros.export.merge_pieces import needed_encodings
from robocache_ros.export.outputs.any_target import check_any_target
from robocache_ros.export.outputs.new_dataset import piece_store
from robocache_ros.export.pieces.any_pieces import AnyPieces
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.preview.expected import Expected, expect
from robocache_ros.export.recordings.moment import Moment
from robocache_ros.export.recordings.planned_recording import PlannedRecording, repeated
from robocache_ros.export.resolved_arguments import device_of, load_formats, resolved_spec
from robocache_ros.remote.any_path import any_path, is_url
from robocache_ros.spec import VIDEO_TYPES, FusionSpec
from robocache_ros.units import NS_PER_S

SAMPLE_NS = NS_PER_S, 4 * NS_PER_S  # of a recording, exported for the estimate: the shortest and longest part
SAMPLE_SHARE = 10  # of the length of all recordings, as long as the part is within these limits
START_SHARE = 8  # of this part, exported first: what a dataset of any length costs


@dataclass(frozen=True)
class Estimate:
    """Size and time of an export, extrapolated from the export of a part of one recording.

    Attributes:
        size_bytes: of the dataset in all formats, with its report. During the export, the pieces need as much again.
        seconds: of the export.
        jobs: processes.
        sample: the recording of which a part was exported.
        sample_frames: the frames in it.
    """

    size_bytes: int
    seconds: float
    jobs: int
    sample: PlannedRecording
    sample_frames: int


@dataclass(frozen=True)
class DryRun:
    """What an export would make.

    Attributes:
        expected: what is known of each recording, in the order of the episodes.
        converted: the recordings whose pieces an earlier export has made.
        estimate: size and time; None if no frames are expected, and of recordings of video.
        notes: on recordings that are the same one under two names.
    """

    expected: tuple[Expected, ...]
    converted: frozenset[PlannedRecording] = frozenset()
    estimate: Estimate | None = None
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> tuple[Expected, ...]:
        """The recordings that become part of the dataset."""
        return tuple(expected for expected in self.expected if not expected.problems)

    @property
    def frames(self) -> int:
        """Number of frames to expect."""
        return sum(expected.result.frames for expected in self.accepted if expected.result)

    @property
    def episodes(self) -> int:
        """Number of episodes to expect."""
        return sum(len(expected.result.episodes) for expected in self.accepted if expected.result)


def dry_run(
    recordings: Sequence[PlannedRecording],
    spec: FusionSpec,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    pieces: str | Path | None = None,
    device: str = "cpu",
    each: Callable[[Sequence[PlannedRecording]], Iterable[PlannedRecording]] = iter,
) -> DryRun:
    """Find what `export` with the same arguments would make. Nothing is written to `out`.

    All messages are read, and images and clouds are not converted. Size and time are measured on a few seconds of one
    recording, which are exported to a temporary folder.

    Args:
        recordings: as for `export`, like the other arguments.
        spec: the streams.
        out: the folder of the dataset.
        options: of the export.
        overwrite: whether a dataset in `out` would be replaced.
        jobs: number of processes.
        pieces: the folder of pieces, as for `export`.
        device: as for `export`.
        each: passes the recordings on one by one; a progress bar.

    Errors:
        RoboCacheError: an export would refuse the spec, the options or the target.
    """
    options, target = options or ExportOptions(), any_path(out, "datasets")
    resolved, selected = resolved_spec(spec, options), device_of(device, options)
    formats = load_formats(Labels(resolved, options).spec, options)
    with file_errors(target):
        check_any_target(target, overwrite=overwrite)
        store = piece_store(target, pieces)
    run = DryRun(tuple(expect(recording, resolved, options) for recording in each(recordings)))
    accepted = tuple(expected.recording for expected in run.accepted)
    plan = Plan(accepted, resolved, options, needed_encodings(formats, resolved, options), selected)
    run = replace(run, converted=frozenset(_converted(plan, store)))
    return replace(run, estimate=_estimate(run, spec, options, jobs, selected), notes=tuple(_repeated(accepted)))


def _repeated(recordings: Sequence[PlannedRecording]) -> list[str]:
    """Return notes on recordings with the same files. Only files of the same sizes are read for it."""
    by_size: dict[object, list[PlannedRecording]] = {}
    for each in recordings:
        if not is_url(each.path):  # which would be downloaded
            with suppress(RoboCacheError, OSError):
                by_size.setdefault(tuple(file.stat().st_size for file in storage_files(each.path)), []).append(each)
    found = []
    for each in (recording for group in by_size.values() if len(group) > 1 for recording in group):
        with suppress(RoboCacheError, OSError), Checksums(each.path) as checksums:
            found.append((each, [str(file["sha256"]) for file in checksums.result()]))
    return repeated(found)


def _converted(plan: Plan, store: AnyPieces) -> Iterable[PlannedRecording]:
    """Yield the recordings whose pieces exist. They are read for their checksums only if there are any pieces."""
    for recording in plan.distinct if store.used() else ():
        with suppress(RoboCacheError, OSError), Checksums(recording.path) as checksums:
            if store.find(plan.key(recording, checksums.result())):
                yield recording


def _estimate(run: DryRun, spec: FusionSpec, options: ExportOptions, jobs: int | None, device: str) -> Estimate | None:
    """Export a part of the recording of median length, and extrapolate."""
    frames_of = {expected.recording: expected.result.frames for expected in run.accepted if expected.result}
    if not run.frames or any(stream.type in VIDEO_TYPES for stream in spec.streams):  # video is not read in parts
        return None
    median = sorted(frames_of, key=frames_of.__getitem__)[len(frames_of) // 2]
    result = next(expected.result for expected in run.accepted if expected.recording is median)
    assert result
    options = replace(options, min_frames=1, min_valid=0.0)
    least_ns, most_ns = SAMPLE_NS
    sample_ns = min(max(run.frames * NS_PER_S // result.spec.rate_hz // SAMPLE_SHARE, least_ns), most_ns)
    with TemporaryDirectory(prefix="robocache-") as folder:
        made = [
            export([_part(median, result, length_ns)], spec, Path(folder) / str(length_ns), options, device=device)
            for length_ns in (sample_ns // START_SHARE, sample_ns)
        ]
        least, size = (sum(file.stat().st_size for file in one.out.rglob("*") if file.is_file()) for one in made)
    few, many = (one.frames for one in made)
    of_a_frame = (size - least) / (many - few) if many > few else size / many
    left = sum(frames for recording, frames in frames_of.items() if recording.frames_of not in run.converted)
    processes = max(1, min(jobs or available_cores(), len(frames_of)))
    return Estimate(
        size_bytes=round(max(0.0, least - of_a_frame * few) + of_a_frame * run.frames),
        seconds=_seconds(few, made[0].seconds, many, made[1].seconds, left / processes),
        jobs=processes,
        sample=median,
        sample_frames=many,
    )


def _seconds(few: int, of_few_s: float, many: int, of_many_s: float, frames: float) -> float:
    """Return the time of an export of `frames` frames, from those of two parts; the first one may include a warm-up."""
    of_a_frame = (of_many_s - of_few_s) / (many - few) if many > few and of_many_s > of_few_s else of_many_s / many
    return max(0.0, of_many_s - of_a_frame * many) + of_a_frame * frames


def _part(recording: PlannedRecording, result: ExportedRecording, length_ns: int) -> PlannedRecording:
    """Return a part at the start of the longest episode of a recording."""
    longest = max(result.episodes, key=lambda episode: episode.stop - episode.start)
    first, stop = longest.start, longest.stop
    start = recording.start or Moment(0, relative=True)
    start = start._replace(ns=start.ns + int(result.ticks_ns[first]) - result.start_ns)
    length_ns = min(length_ns, int(result.ticks_ns[stop - 1] - result.ticks_ns[first]) + 1)
    return replace(recording, start=start, stop=start._replace(ns=start.ns + length_ns))
