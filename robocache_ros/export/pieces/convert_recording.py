"""Runs a recording through the engine, and determines its episodes and their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import clock_notes
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.episodes.boundaries import Boundaries
from robocache_ros.export.episodes.cutter import EpisodeCutter, EpisodeTicks
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.episodes.quality_limits import refusal
from robocache_ros.export.episodes.success_values import SuccessValues
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.pieces.piece_writer import PieceWriter
from robocache_ros.export.pieces.progress import Advanced, Progress
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.export.report.tick_states import VISIBILITIES, Totals, ValueAges
from robocache_ros.spec import FusionSpec


class PartsDropped(Exception):  # noqa: N818 - not an error: the conversion is repeated without these parts
    """Rows were written of parts of the recording that are left out."""

    def __init__(self, parts: Collection[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)


def convert(
    recording: PlannedRecording,
    spec: FusionSpec,
    options: ExportOptions,
    writer: PieceWriter | None,
    progress: Progress | None,
    without: Collection[int] = (),
    device: str = "cpu",
) -> ExportedRecording:
    """Run a recording through the engine; write the rows of its episodes to `writer`.

    Args:
        recording: the recording, or a part of one.
        spec: its streams.
        options: of the export.
        writer: receives the rows; None: only the result is needed, also of a recording that an export refuses.
        progress: called with the progress.
        without: parts of the recording to leave out.
        device: converts images and clouds.

    Errors:
        RoboCacheError: the recording cannot be read, or an export refuses it.
        PartsDropped: rows of other parts were written that have to be left out.
    """
    converted, refused = _converted(recording, spec, options, writer, progress, without, device)
    if refused and writer:
        raise refused
    return converted


def foresee(
    recording: PlannedRecording, spec: FusionSpec, options: ExportOptions
) -> tuple[ExportedRecording | None, str]:
    """Run a recording through the engine without converting images and clouds, and without writing.

    Returns:
        What a conversion would give, None if no ticks can be computed; and why it would refuse the recording, empty if
        it would not.
    """
    without: tuple[int, ...] = ()
    while True:
        try:
            converted, refusal = _converted(recording, spec, options, None, None, without, media=False)
        except PartsDropped as dropped:
            without = dropped.parts
        except RoboCacheError as error:
            return None, str(error)
        else:
            return converted, str(refusal or "")


# More than 50 lines, because of the many values of its result.
def _converted(
    planned: PlannedRecording,
    spec: FusionSpec,
    options: ExportOptions,
    writer: PieceWriter | None,
    progress: Progress | None,
    without: Collection[int] = (),
    device: str = "cpu",
    *,
    media: bool = True,
) -> tuple[ExportedRecording, RoboCacheError | None]:
    """Return the result of a recording, and why an export refuses it."""
    with Bag(planned.path) as bag:
        start_ns, stop_ns = planned.log_range(bag.start_ns, bag.stop_ns) if planned.is_part else (None, None)
        run = BagRun(
            bag,
            spec,
            visibility=options.visibility,
            trim=options.trim and masks_all(spec),
            start_ns=start_ns,
            stop_ns=stop_ns,
            device=device,
            jpeg=options.jpeg if device != "cpu" else "cpu",
            channels_last=True,
            media=media,
        )
        boundaries, labels = Boundaries(run, options), Labels(spec, options)
        cutter = EpisodeCutter(
            spec,
            options.min_frames + labels.first + labels.offset,
            max_frames=round(options.split_s * spec.rate_hz),
            parts=boundaries.parts,
            without=without,
        )
        success = SuccessValues(spec, len(boundaries.parts))
        thumbnails = Thumbnails(spec, run.start_ns, run.stop_ns)
        ages = ValueAges(len(spec.streams))
        span, done, begun = max(run.stop_ns - run.start_ns, 1), 0, False
        with closing(run.frames()) as parts:  # closed before the recording, which a thread prefetches
            for frames in parts:
                if media:
                    thumbnails.watch(frames)
                at = run.leading + done
                done += len(frames)
                success.add(frames, at)
                ages.add(frames)
                for ticks in cutter.cut(frames, at):
                    if writer:
                        begun = _write(writer, labels.rows(ticks), begun)
                if progress and len(frames):
                    progress(Advanced(planned, (int(frames.ticks_ns[-1]) - run.start_ns) / span, done))
        cutter.finish()
        if (writer or not media) and cutter.incomplete:
            raise PartsDropped(cutter.dropped)
        topics = run.stats()
        episodes = boundaries.infos(cutter, labels, success)
        recording = ExportedRecording(
            bag=planned.path,
            spec=spec,
            visibility=options.visibility,
            start_ns=run.start_ns,
            stop_ns=run.stop_ns,
            ticks_ns=run.ticks_ns,
            valid=run.valid,
            episodes=tuple(episodes),
            counters=run.counters,
            topics=topics,
            notes=(
                *bag.notes,
                *filter(None, [run.timeline.note]),
                *clock_notes(topics.values()),
                *boundaries.notes,
                *cutter.notes,
            ),
            clocks=run.clocks(),
            integrity=bag.integrity,
            thumbnails=thumbnails,
            reasons=boundaries.left_out(cutter, episodes, run.valid),
            visibilities=_both(run, ages, options) if options.compare_visibility and (writer or media) else {},
        )
        refused = refusal(recording, boundaries, cutter, run, options)
        if writer and not refused:
            writer.end_episode()
        if progress:
            progress(Advanced(planned, 1.0, done))
        return recording, refused


def _both(run: BagRun, ages: ValueAges, options: ExportOptions) -> dict[str, Totals]:
    """Return the states and ages of values as computed, and those under the other visibility."""
    found = {options.visibility: ages.totals(run.valid)}
    (other,) = set(VISIBILITIES) - {options.visibility}
    start_ns, stop_ns = run.log_range
    again = BagRun(
        run.bag,
        run.spec,
        visibility=other,
        trim=False,
        start_ns=start_ns,
        stop_ns=stop_ns,
        timeline=run.timeline,
        media=False,
    )
    others = ValueAges(len(run.spec.streams))
    with closing(again.frames()) as parts:
        for frames in parts:
            others.add(frames)
    found[other] = others.totals(again.valid)
    return found


def masks_all(spec: FusionSpec) -> bool:
    """Whether ticks with missing values are always kept."""
    return all(stream.on_invalid == "mask" for stream in spec.streams if not stream.is_outcome)


def _write(writer: PieceWriter, rows: Iterable[EpisodeTicks], begun: bool) -> bool:
    """Write rows; `begun`: whether an episode was begun before them. Returns whether one was begun after them."""
    for ticks in rows:
        if ticks.first:
            if begun:
                writer.end_episode()
            writer.begin_episode()
            begun = True
        writer.write(ticks.frames)
    return begun
