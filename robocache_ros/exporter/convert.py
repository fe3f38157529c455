"""Runs a recording through the engine, for one dataset or several in one pass: its episodes and their rows."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.shared_reading import ReadMessages, SharedReading
from robocache_ros.bags.stats import clock_notes
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.boundaries import Boundaries, SuccessValues, check_quality
from robocache_ros.exporter.episodes import EpisodeCutter, EpisodeTicks, Labels
from robocache_ros.exporter.piece_writer import PieceWriter
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Advanced, Event, Progress
from robocache_ros.formats.recording import VISIBILITIES, ExportedRecording, Thumbnails, Totals, ValueAges
from robocache_ros.spec import VIDEO_TYPES, FusionSpec
from robocache_ros.spec.dataset import DatasetOptions


class PartsDropped(Exception):  # noqa: N818 - not an error: the conversion is repeated without these parts
    """Rows were written of parts of the recording that are left out."""

    def __init__(self, parts: Collection[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)


def convert(
    recording: PlannedRecording, spec: FusionSpec, options: DatasetOptions, progress: Progress | None = None
) -> ExportedRecording:
    """Run a recording through the engine, and return the result, also of a recording that an export refuses."""
    with Bag(recording.path, whole=True, msg_path=options.msg_path) as bag:
        conversion = Conversion(bag, recording, spec, options)
        conversion.run(progress)
        return conversion.result()[0]


def preview_recording(
    recording: PlannedRecording, spec: FusionSpec, options: DatasetOptions
) -> tuple[ExportedRecording | None, str]:
    """Run a recording through the engine without converting images and clouds, and without writing.

    Returns:
        What a conversion would give, None if no ticks can be computed; and why it would refuse the recording, empty if
        it would not.
    """
    without: tuple[int, ...] = ()
    while True:
        try:
            with Bag(recording.path, whole=True, msg_path=options.msg_path) as bag:
                conversion = Conversion(bag, recording, spec, options, without=without, media=False)
                conversion.run()
                converted, refusal = conversion.result()
                return converted, str(refusal or "")
        except PartsDropped as dropped:
            without = dropped.parts
        except RoboCacheError as error:
            return None, str(error)


class Conversion:
    """The conversion of an open recording: `run` computes its rows, then `result` returns what was found.

    Args:
        bag: the recording.
        planned: the recording, or the part of it that is used.
        spec: its streams.
        options: of the export.
        writer: receives the rows; None: only the result is needed.
        without: parts of the recording to leave out.
        device: converts images and clouds.
        media: convert images and clouds.
    """

    def __init__(
        self,
        bag: Bag,
        planned: PlannedRecording,
        spec: FusionSpec,
        options: DatasetOptions,
        writer: PieceWriter | None = None,
        *,
        without: Collection[int] = (),
        device: str = "cpu",
        media: bool = True,
    ) -> None:
        self._bag, self._planned, self._spec, self._options = bag, planned, spec, options
        self._writer, self._media = writer, media
        if planned.is_part:
            _refuse_video(planned, spec)
        start_ns, stop_ns = planned.log_range(bag.start_ns, bag.stop_ns) if planned.is_part else (None, None)
        self._run = run = BagRun(
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
        self.reads = run.reads
        self._boundaries, self._labels = Boundaries(run, options), Labels(spec, options)
        self._cutter = EpisodeCutter(
            spec,
            options.min_frames + self._labels.first + self._labels.offset,
            max_frames=round(options.split_s * spec.rate_hz),
            parts=self._boundaries.parts,
            without=without,
        )
        self._success = SuccessValues(spec, len(self._boundaries.parts))
        self._thumbnails = Thumbnails(spec, run.start_ns, run.stop_ns)
        self._ages = ValueAges(len(spec.streams))

    def run(self, progress: Progress | None = None, source: ReadMessages | None = None) -> None:
        """Compute the rows, and write them.

        `source` returns the messages of each of `reads`; without it they are read from the recording.

        Errors:
            RoboCacheError: the recording cannot be read.
            PartsDropped: rows of other parts were written that have to be left out.
        """
        run, cutter, writer = self._run, self._cutter, self._writer
        span, done, started = max(run.stop_ns - run.start_ns, 1), 0, False
        with closing(run.frames(source)) as parts:  # closed before the recording, which a thread prefetches
            for frames in parts:
                if self._media:
                    self._thumbnails.watch(frames)
                at = run.leading + done
                done += len(frames)
                self._success.add(frames, at)
                self._ages.add(frames)
                for ticks in cutter.cut(frames, at):
                    if writer:
                        started = _write(writer, self._labels.rows(ticks), started)
                if progress and len(frames):
                    progress(Advanced(self._planned, (int(frames.ticks_ns[-1]) - run.start_ns) / span, done))
        cutter.finish()
        if (writer or not self._media) and cutter.incomplete:
            raise PartsDropped(cutter.dropped)
        if progress:
            progress(Advanced(self._planned, 1.0, done))

    def result(self) -> tuple[ExportedRecording, RoboCacheError | None]:
        """Return the result, and why an export refuses the recording; otherwise the rows are complete."""
        run, cutter, options = self._run, self._cutter, self._options
        topics = run.stats()
        episodes = self._boundaries.infos(cutter, self._labels, self._success)
        compared = options.compare_visibility and (self._writer or self._media)
        recording = ExportedRecording(
            bag=self._planned.path,
            spec=self._spec,
            visibility=options.visibility,
            start_ns=run.start_ns,
            stop_ns=run.stop_ns,
            ticks_ns=run.ticks_ns,
            valid=run.valid,
            episodes=tuple(episodes),
            counters=run.counters,
            topics=topics,
            notes=(
                *self._bag.notes,
                *filter(None, [run.timeline.note]),
                *clock_notes(topics.values()),
                *self._boundaries.notes,
                *cutter.notes,
            ),
            clocks=run.clocks(),
            integrity=self._bag.integrity,
            thumbnails=self._thumbnails,
            reasons=self._boundaries.left_out(cutter, episodes, run.valid),
            visibilities=_both(run, self._ages, options) if compared else {},
        )
        try:
            self._boundaries.check_kept(cutter, run, options)
            check_quality(recording)
        except RoboCacheError as error:
            return recording, error
        if self._writer:
            self._writer.end_episode()
        return recording, None


def _refuse_video(planned: PlannedRecording, spec: FusionSpec) -> None:
    """Refuse a part of a recording of video: pictures depend on others, which may be long before the part."""
    for stream in spec.streams:
        if stream.type in VIDEO_TYPES:
            raise RoboCacheError(
                f"{planned.where}: from and to are not for video, the type of {stream.name}; export the whole recording"
            )


def _both(run: BagRun, ages: ValueAges, options: DatasetOptions) -> dict[str, Totals]:
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


def _write(writer: PieceWriter, rows: Iterable[EpisodeTicks], started: bool) -> bool:
    """Write rows; `started`: whether an episode was started before them. Returns whether one was started after them."""
    for ticks in rows:
        if ticks.first:
            if started:
                writer.end_episode()
            writer.begin_episode()
            started = True
        writer.write(ticks.frames)
    return started


def run_together(
    bag: Bag, recording: PlannedRecording, conversions: Sequence[Conversion], progress: Progress | None
) -> list[BaseException | None]:
    """Run conversions of an open recording, each in a thread; return the error of each, None if it has none.

    The progress is that of the slowest conversion, with the ticks of all.
    """
    reading = SharedReading(bag, [conversion.reads for conversion in conversions])
    shares, ticks, lock = [0.0] * len(conversions), [0] * len(conversions), threading.Lock()

    def run(number: int) -> None:
        def tell(event: Event) -> None:
            if progress and isinstance(event, Advanced):
                with lock:
                    shares[number], ticks[number] = event.share, event.ticks
                    progress(Advanced(recording, min(shares), sum(ticks)))

        try:
            conversions[number].run(tell, lambda _read: reading.messages(number))
        finally:
            shares[number] = 1.0
            reading.leave(number)

    with ThreadPoolExecutor(len(conversions) + 1, "convert") as pool:
        pool.submit(reading.run)
        running = [pool.submit(run, number) for number in range(len(conversions))]
        try:
            wait(running)
        finally:  # also after Ctrl-C
            for number in range(len(conversions)):
                reading.leave(number)
    return [one.exception() for one in running]
