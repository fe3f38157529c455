"""What an export would make: matching recordings, episodes, what exists already, and estimates of size and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from robocache_ros.bags.reader import Bag, storage_files
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.decode.transforms import read_transforms
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.convert import preview_recording
from robocache_ros.exporter.datasets import DatasetPlan, check_any_target
from robocache_ros.exporter.executors import available_cores
from robocache_ros.exporter.job import check_append, export_together
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.pieces import Checksums, Plan, files_in_key
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording, repeated
from robocache_ros.exporter.request import ExportRequest, Output
from robocache_ros.exporter.target import piece_store
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import TF, TF_STATIC, TF_TYPE, VIDEO_TYPES, FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import suggestion
from robocache_ros.storage.errors import file_errors
from robocache_ros.storage.paths import AnyPath, is_url
from robocache_ros.units import NS_PER_S

SAMPLES = 16  # messages of a topic that are decoded
TRANSFORMS = 2000  # messages of /tf and /tf_static that are searched for frames
_NAMED = 5  # joints and topics in a problem


@dataclass(frozen=True)
class StreamMatch:
    """How a stream of a spec matches a recording."""

    stream: str  # its name; `<stream>/color` and `<stream>/camera_info` for the companions of a depth image
    # topic, type: as in the spec
    topic: str
    type: str
    messages: int  # number of messages on the topic
    problems: tuple[str, ...]  # why it does not match, each `<what is wrong>; <what to do>`; empty if it matches


def match(bag: Bag, spec: FusionSpec) -> tuple[StreamMatch, ...]:
    """Compare a spec with an open recording. Reads its index, and the first messages of each topic."""
    frames = _frames(bag) if spec.framed or spec.transforms else frozenset()
    found = []
    for feed in bag.feeds(spec):
        topic = bag.topics.get(feed.topic)
        problems = [_topic(bag, feed)] if topic is None else list(_messages(bag, feed))
        if not any(problems):
            problems = list(_chain(feed, frames))
        found.append(StreamMatch(feed.name, feed.topic, feed.type, topic.count if topic else 0, tuple(problems)))
    return tuple(found)


def _topic(bag: Bag, feed: StreamSpec) -> str:
    """Describe a missing topic; a topic of the same type is the likelier one to be meant."""
    same_type = [name for name, topic in bag.topics.items() if topic.type == feed.type]
    meant = suggestion(feed.topic, same_type) or suggestion(feed.topic, bag.topics)
    if not meant and same_type:
        meant = f"of its type {'is' if len(same_type) == 1 else 'are'} {_listed(same_type)}"
    return f"no topic {printable(feed.topic, 80)}; {meant or 'remove the stream, or leave the recording out'}"


def _messages(bag: Bag, feed: StreamSpec) -> Iterator[str]:
    """Describe what is wrong with the messages of a stream."""
    topic = bag.topics[feed.topic]
    if topic.type != feed.type:
        yield f"type: {printable(topic.type)} in the recording, {feed.type} in the spec; change the spec"
        return
    if not topic.count:
        yield f"{printable(feed.topic, 80)} has no messages; remove the stream, or leave the recording out"
        return
    if feed.is_transform or feed.name == TF:
        return
    try:
        decoder = make_decoder(feed, bag.definitions)
    except RoboCacheError as error:
        yield str(error).removeprefix(f"streams.{feed.name}.")
        return
    samples = [bytes(message.data) for message in islice(bag.messages([feed.topic]), SAMPLES)]
    refused: Counter[str] = Counter()
    for data in samples:
        try:
            decoder.decode_cdr(data)
        except DecodeError as error:
            if error.cause == "no_key_frame":  # one may follow
                continue
            joints = _joints(bag, feed, data) if error.cause == "joint_missing" else ""
            refused[joints or f"{error}; correct the stream"] += 1
    if samples and refused.total() == len(samples):  # else some are read; an export counts the others
        yield refused.most_common(1)[0][0]


def _joints(bag: Bag, feed: StreamSpec, data: bytes) -> str:
    """Describe the joints that a message does not have."""
    try:
        held = list(read_message(message_type(feed.type, bag.definitions), data).name)
    except RoboCacheError:
        return ""
    missing = [name for name in feed.names if name not in held]
    meant = suggestion(missing[0], held) or f"{printable(feed.topic, 60)} has {_listed(held) or 'no joints'}"
    return f"names: no joint {_listed(missing)}; {meant}"


def _frames(bag: Bag) -> frozenset[str]:
    """Return the frames of the first transforms of a recording."""
    topics = sorted(topic.name for topic in bag.topics.values() if topic.type == TF_TYPE)
    known: set[str] = set()
    for message in chain.from_iterable(islice(bag.messages([name]), TRANSFORMS) for name in topics):
        try:
            known.update(*((t.parent, t.child) for t in read_transforms(message.data)))
        except DecodeError:
            continue
    return frozenset(known)


def _chain(feed: StreamSpec, frames: frozenset[str]) -> Iterator[str]:
    """Describe the frames of a stream that the recording does not have."""
    wanted = feed.frames if feed.is_transform else (feed.voxels.frame,) if feed.voxels and feed.voxels.frame else ()
    for frame in wanted:
        if frame and frame not in frames:
            meant = suggestion(frame, frames) or (f"the frames are {_listed(sorted(frames))}" if frames else "")
            hint = meant or f"the recording has no transforms on {TF} and {TF_STATIC}; remove the stream"
            yield f"frames: no frame {printable(frame, 60)!r}; {hint}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return printable(", ".join(names[:_NAMED]), 120) + more


@dataclass(frozen=True)
class Expected:
    """What is known of a recording before its export."""

    recording: PlannedRecording
    streams: tuple[StreamMatch, ...] = ()  # how the streams of the spec match it
    # The result of a conversion without images and clouds, whose validity follows from their times alone; None if the
    # recording does not match or was not fused
    result: ExportedRecording | None = None
    refusal: str = ""  # why an export refuses the recording, although it matches; also why it cannot be read

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the recording does not become part of a dataset; empty if it does."""
        wrong = tuple(f"streams.{s.stream}: {problem}" for s in self.streams for problem in s.problems)
        return wrong or ((self.refusal,) if self.refusal else ())

    @property
    def path(self) -> AnyPath:
        """The recording."""
        return self.recording.path


def expect(
    recording: PlannedRecording, spec: FusionSpec, options: DatasetOptions | None = None, *, fuse: bool = True
) -> Expected:
    """Compare a recording with a spec, and fuse it without its images.

    Without `fuse`, its index and a few messages are read; with it all messages, for ticks and episodes.
    """
    streams: tuple[StreamMatch, ...] = ()
    options = options or DatasetOptions()
    try:
        with file_errors(recording.path):
            with Bag(recording.path, msg_path=options.msg_path) as bag:
                recording.log_range(bag.start_ns, bag.stop_ns)
                streams = match(bag, spec)
            if not fuse or any(stream.problems for stream in streams):
                return Expected(recording, streams)
            result, refusal = preview_recording(recording, spec, options)
            return Expected(recording, streams, result, refusal)
    except RoboCacheError as error:
        return Expected(recording, streams, refusal=str(error))


SAMPLE_NS = NS_PER_S, 4 * NS_PER_S  # of a recording, exported for the estimate: the shortest and longest part
SAMPLE_SHARE = 10  # of the length of all recordings, as long as the part is within these limits
START_SHARE = 8  # of this part, exported first: what a dataset of any length costs


@dataclass(frozen=True)
class Estimate:
    """Size and time of an export, extrapolated from the export of a part of one recording."""

    size_bytes: int  # of the dataset in all formats, with its report. During the export, the pieces need as much again
    seconds: float  # of the export
    jobs: int  # processes
    sample: PlannedRecording  # the recording of which a part was exported
    sample_frames: int  # the frames in it


@dataclass(frozen=True)
class DryRun:
    """What an export would make."""

    expected: tuple[Expected, ...]  # what is known of each recording, in the order of the episodes
    converted: frozenset[PlannedRecording] = frozenset()  # the recordings whose pieces an earlier export has made
    estimate: Estimate | None = None  # size and time; None if no frames are expected, and of recordings of video
    notes: tuple[str, ...] = ()  # on recordings that are the same one under two names

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
    request: ExportRequest,
    each: Callable[[Sequence[PlannedRecording], str], Iterable[PlannedRecording]] = lambda found, _name: found,
) -> tuple[DryRun, ...]:
    """Find what an export would make of a request, for each of its datasets. Nothing is written to its target.

    All messages are read, and images and clouds are not converted. Size and time are measured on a few seconds of one
    recording, which are exported to a temporary folder.

    Args:
        request: of the export.
        each: passes the recordings of a dataset on one by one, given its name; a progress bar.
    """
    return tuple(_dry_run(request, output, each(request.recordings, output.name)) for output in request.outputs)


def _dry_run(request: ExportRequest, output: Output, recordings: Iterable[PlannedRecording]) -> DryRun:
    options = request.options
    plan = DatasetPlan(output, request.recordings, options.device).plan
    with file_errors(request.target):
        if options.append:
            check_append(request)
        else:
            check_any_target(request.target, overwrite=options.overwrite)
        store = piece_store(request.target, options.pieces)
    run = DryRun(tuple(expect(recording, plan.spec, plan.options) for recording in recordings))
    accepted = tuple(expected.recording for expected in run.accepted)
    run = replace(run, converted=frozenset(_converted(replace(plan, recordings=accepted), store)))
    estimate = _estimate(run, output.spec, plan.options, options.jobs, plan.device)
    return replace(run, estimate=estimate, notes=tuple(_repeated(accepted)))


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


def _converted(plan: Plan, store: PieceStore) -> Iterable[PlannedRecording]:
    """Yield the recordings whose pieces exist. Local ones are read for their checksums, if there are any pieces."""
    for recording in plan.distinct if store.used() else ():
        with suppress(RoboCacheError, OSError), Checksums(recording.path) as checksums:
            if store.find(plan.key(recording, files_in_key(recording, checksums))):
                yield recording


def _estimate(run: DryRun, spec: FusionSpec, options: DatasetOptions, jobs: int | None, device: str) -> Estimate | None:
    """Export a part of the recording of median length, and extrapolate."""
    frames_of = {expected.recording: expected.result.frames for expected in run.accepted if expected.result}
    if not run.frames or any(stream.type in VIDEO_TYPES for stream in spec.streams):  # video is not read in parts
        return None
    median = sorted(frames_of, key=frames_of.__getitem__)[len(frames_of) // 2]
    result = next(expected.result for expected in run.accepted if expected.recording is median)
    assert result
    sample = Output("", spec, replace(options, min_frames=1, min_valid=0.0))
    least_ns, most_ns = SAMPLE_NS
    sample_ns = min(max(run.frames * NS_PER_S // result.spec.rate_hz // SAMPLE_SHARE, least_ns), most_ns)
    with TemporaryDirectory(prefix="robocache-") as folder:
        made = [
            export_together([_part(median, result, length_ns)], [sample], Path(folder) / str(length_ns), device=device)[
                0
            ]
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
