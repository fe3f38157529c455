"""Messages into the engine: decoded, counted, and depth images joined with their cameras."""

from __future__ import annotations

import logging
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from robocache_ros.decode import (
    CameraPayload,
    CloudPayload,
    DecodeError,
    Decoder,
    DepthPayload,
    ImagePayload,
    Sample,
    decode_compressed,
    make_decoder,
)
from robocache_ros.decode.numeric_fields import VectorDecoder
from robocache_ros.decode.payloads import Matrix
from robocache_ros.decode.transforms import Transform, read_transforms
from robocache_ros.decode.video import check_live
from robocache_ros.engine.backends.interface import TooSlowError
from robocache_ros.engine.backends.media import DecodeThread, warm_up
from robocache_ros.engine.engine import FusionEngine, Outcome
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.engine.transforms import (
    MAX_CHAIN,
    MAX_MOVING_FRAMES,
    NO_TIME_NS,
    FrameTree,
    StaticTransforms,
    groups,
)
from robocache_ros.ops.resample.selection import ALIGNED, Rule
from robocache_ros.spec import TF, Extrinsic, FusionSpec, StreamSpec
from robocache_ros.units import NS_PER_S

# Joins a depth image with its camera_info and, where declared, with the colour image registered to it.
#
# The pairs depend only on the messages and the order of their arrival, so a recording gives the same pairs as the
# robot. A depth image is paired with the colour image of the nearest stamp, within `pair_ms`. It waits until a colour
# image with its stamp or a later one has arrived, because no later message can be nearer. The newest intrinsics are
# used.

log = logging.getLogger(__name__)

WAITING_IMAGES = 8  # maximum number of images kept, for depth and for color each
COLOR_ALIGNMENT = 16


class DepthSynchronizer:
    """Pairs the images of one depth stream.

    `counters`: `unpaired` counts dropped depth images, and `unpaired:<key>` counts them by the missing part.

    Args:
        stream: the depth stream.
        live: decompress in a separate thread, and drop an image that takes longer than a tick may wait.
    """

    def __init__(self, stream: StreamSpec, *, live: bool = False) -> None:
        self.name = stream.name
        self.counters: Counter[str] = Counter()
        self._stream = stream
        self._camera: CameraPayload | None = None
        self._depth: deque[Sample] = deque()
        self._color: deque[tuple[int, ImagePayload]] = deque(maxlen=WAITING_IMAGES)
        self._newest: dict[str, int] = {}
        compressed = live and stream.type.endswith("/CompressedImage")
        self._thread = (
            DecodeThread(stream.name, decode_compressed, lambda image: image.data.nbytes) if compressed else None
        )
        if compressed:
            warm_up(decode_compressed)

    def accepts_unstamped(self, sample: Sample) -> bool:
        """Whether a message without a header stamp can be used: intrinsics, or depth by receive time without colour."""
        by_arrival = self._stream.stamp in ("receive", "header_or_receive")
        return isinstance(sample.value, CameraPayload) or (by_arrival and not self._stream.color)

    def add(self, feed: str, sample: Sample) -> Iterator[Sample]:
        """Add a message; yields the samples that are now complete.

        Raises:
            DecodeError: during iteration, if the sizes of images and camera differ or an image is corrupt.
        """
        value: Any = sample.value
        stamp_ns = sample.stamp_ns
        if isinstance(value, CameraPayload):
            self._camera = value
        elif stamp_ns is not None:
            if stamp_ns < self._newest.get(feed, stamp_ns) - JUMP_BACK_NS:
                self._restart()
            self._newest[feed] = stamp_ns
            if feed == self.name:
                self._depth.append(sample)
                if len(self._depth) > WAITING_IMAGES:
                    self._drop(self._depth.popleft())
            else:
                self._color.append((stamp_ns, value))
        return self._complete()

    def _complete(self) -> Iterator[Sample]:
        camera = self._camera
        for depth in list(self._depth) if camera else ():
            color = None
            if self._stream.color:
                stamp_ns = depth.stamp_ns or 0
                if all(stamp < stamp_ns for stamp, _ in self._color):
                    continue  # a nearer image may arrive
                nearest, color = min(self._color, key=lambda one: (abs(one[0] - stamp_ns), one[0]))
                if abs(nearest - stamp_ns) > self._stream.pair_ns:
                    self._depth.remove(depth)
                    self._drop(depth)
                    continue
            self._depth.remove(depth)
            assert camera
            yield depth._replace(value=_join(self._decoded(depth.value), camera, color))

    def _decoded(self, image: Any) -> ImagePayload:
        if self._thread is None:
            return decode_compressed(image)
        self._thread.end_tick()  # each image may take as long as a tick may wait
        job = self._thread.submit(image)
        try:
            found: ImagePayload = self._thread.result(job)
        except TooSlowError as error:
            self._thread.discard(job)
            raise DecodeError("too_slow", str(error)) from None
        return found

    def _restart(self) -> None:
        """Drop all waiting images: they are from before the clock jumped back."""
        while self._depth:
            self._drop(self._depth.popleft())
        self._color.clear()
        self._newest.clear()

    def _drop(self, depth: Sample) -> None:
        missing = "color" if self._camera else "camera_info"
        if not self.counters[f"unpaired:{missing}"]:
            topic = getattr(self._stream, missing)
            log.warning("%s: a depth image is dropped: no message on %s matches it", self.name, topic)
        self.counters["unpaired"] += 1
        self.counters[f"unpaired:{missing}"] += 1


def _join(depth: ImagePayload, camera: CameraPayload, color: ImagePayload | None) -> DepthPayload:
    for name, wide, high in (
        ("camera_info", camera.width or depth.width, camera.height or depth.height),
        *([("color", color.width, color.height)] if color else []),
    ):
        if (wide, high) != (depth.width, depth.height):
            raise DecodeError(
                f"{name}_size",
                f"{name}: has {wide}x{high} pixels, but depth has {depth.width}x{depth.height}; name the topic that "
                f"belongs to the depth image",
            )
    layout = (depth.encoding, depth.width, depth.height, depth.step, depth.big_endian, camera.intrinsics)
    if color is None:
        return DepthPayload(depth.data, *layout)
    offset = -(-depth.data.nbytes // COLOR_ALIGNMENT) * COLOR_ALIGNMENT
    data = np.zeros(offset + color.data.nbytes, np.uint8)
    data[: depth.data.nbytes] = depth.data
    data[offset:] = color.data
    return DepthPayload(data, *layout, color.encoding, color.step, offset)


# Messages of /tf and /tf_static: streams of poses, and clouds of moving sensors.

MAX_POSITION_M = 1e9  # larger than the distance between any two frames on earth
QUATERNION_TOLERANCE = 0.01  # on the squared length, as in tf2
MAX_LOGGED = 8  # maximum number of parent changes that are logged for a stream
_NO_VALUE = np.empty(0, np.float32)


class Checked(NamedTuple):
    """A transform of a message, and why it cannot be used, if so."""

    transform: Transform
    error: DecodeError | None


@dataclass(eq=False)
class TransformIngest:
    """Pushes the transforms of /tf messages.

    `received` and `decoded` count messages. The other counters count transforms in a stream's own chain: the outcomes,
    `dropped:<cause>`, `static_frame` (/tf_static also has the frame and takes precedence) and `reparented` (the parent
    differs from that in the previous transform).
    """

    engine: FusionEngine
    counters: dict[str, Counter[str]]  # of each feed
    count: Callable[[str, Outcome, Sample, int], Outcome]  # counts and logs an outcome of `push`
    dropped: Callable[[str, DecodeError], Outcome]  # counts and logs an error

    def __post_init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        for streams in groups(self.engine.spec):
            group = _Group(streams, self.engine)
            self._groups |= {stream.name: group for stream in streams}
        self._data: object = None
        self._checked: list[Checked] = []
        self._logged: Counter[str] = Counter()

    def __contains__(self, feed: str) -> bool:
        return feed in self._groups

    def decode(self, data: bytes | memoryview) -> list[Checked]:
        """The transforms of a message, decoded once for all streams that get it in a row; raises DecodeError."""
        if self._data is not data:
            self._data, self._checked = None, [Checked(t, _problem(t)) for t in read_transforms(data)]
            self._data = data
        return self._checked

    def message(self, feed: str, data: bytes | memoryview, arrival_ns: int) -> tuple[Outcome, int | None]:
        """Push a message for a stream; returns the outcome and the stamp of its last transform in the chain."""
        counters, group = self.counters[feed], self._groups[feed]
        counters["received"] += 1
        try:
            checked = self.decode(data)
        except DecodeError as error:
            return self.dropped(feed, error), None
        counters["decoded"] += 1
        outcome, stamp_ns = Outcome.ACCEPTED, None
        for transform, result, before in group.push(feed, data, checked, arrival_ns):
            if isinstance(result, DecodeError):
                if transform.child in group.chain(feed) or result.cause == "frames":
                    outcome = self.dropped(feed, result)
            elif transform.child in group.chain(feed):
                if before:
                    self._note_parent(feed, transform, before)
                stamp_ns = transform.stamp_ns
                if result is None:
                    counters["static_frame"] += 1
                else:
                    outcome = self.count(feed, result, Sample(stamp_ns, _NO_VALUE), arrival_ns)
        return outcome, stamp_ns

    def _note_parent(self, feed: str, transform: Transform, before: str) -> None:
        self.counters[feed]["reparented"] += 1
        self._logged[feed] += 1
        if self._logged[feed] <= MAX_LOGGED:
            text = "%s: the parent of %s is now %s, not %s; its transform from the old parent ends"
            log.warning(text, feed, transform.child, transform.parent, before)


# A transform, its outcome (None: the frame is static), and the frame's previous parent if it has changed.
_Pushed = tuple[Transform, "Outcome | DecodeError | None", str]


class _Group:
    """The streams that share a tree; each message is pushed once for all of them."""

    def __init__(self, streams: Sequence[StreamSpec], engine: FusionEngine) -> None:
        self._leader = streams[0].name
        self._ends = {s.name: tuple(frame.lstrip("/") for frame in s.frames) for s in streams}
        self._engine = engine
        self._static: StaticTransforms = engine.static_transforms
        self._parents: dict[str, str] = {}  # of each frame, from its latest transform
        self._chains: dict[str, frozenset[str]] = {}
        self._known = -1  # version of the static transforms that the cached chains use
        self._pushed: tuple[object, int, list[_Pushed]] = (None, 0, [])
        self._served: set[str] = set()  # streams that have counted `_pushed`

    def push(self, feed: str, data: object, checked: Sequence[Checked], arrival_ns: int) -> list[_Pushed]:
        """Push a message, unless another stream of the group has just pushed it."""
        if self._pushed[0] is not data or self._pushed[1] != arrival_ns or feed in self._served:
            self._pushed = data, arrival_ns, [self._push(*one, arrival_ns) for one in checked]
            self._served = set()
        self._served.add(feed)
        return self._pushed[2]

    def chain(self, feed: str) -> frozenset[str]:
        """The frames on the path between the stream's two frames, or above either one, by the latest transforms."""
        if self._known != self._static.version:
            self._known = self._static.version
            self._chains.clear()
        if feed not in self._chains:
            target, source = (self._upwards(frame) for frame in self._ends[feed])
            common = set(target) & set(source)
            self._chains[feed] = frozenset((*target, *source)) - common if common else frozenset((*target, *source))
        return self._chains[feed]

    def _push(self, transform: Transform, error: DecodeError | None, arrival_ns: int) -> _Pushed:
        child = transform.child
        if error:
            return transform, error, ""
        before = self._parents.pop(child, "")
        self._parents[child] = transform.parent  # keeps the frames in the order of their latest transforms
        if before != transform.parent:
            self._chains.clear()
            if len(self._parents) > MAX_MOVING_FRAMES:
                del self._parents[next(iter(self._parents))]
        changed = before if before != transform.parent else ""
        if self._static.edge(child):
            return transform, None, ""
        try:
            return transform, self._engine.push(self._leader, transform.stamp_ns, arrival_ns, transform), changed
        except DecodeError as too_many:
            return transform, too_many, ""

    def _upwards(self, frame: str) -> list[str]:
        path = [frame]
        while len(path) <= MAX_CHAIN:
            static = self._static.edge(path[-1])
            parent = static[0] if static else self._parents.get(path[-1])
            if parent is None or parent in path:
                break
            path.append(parent)
        return path


def _problem(transform: Transform) -> DecodeError | None:
    """Why a transform cannot be used, by the rules of tf2; None if it can be used."""
    parent, child = transform.parent, transform.child
    length = math.fsum(value * value for value in transform.rotation_xyzw if math.isfinite(value))
    if not parent or not child:
        return DecodeError("no_frame", "a transform has an empty frame name")
    if parent == child:
        return DecodeError("one_frame", f"a transform from {child} to itself")
    if not all(map(math.isfinite, (*transform.translation_m, *transform.rotation_xyzw))):
        return DecodeError("not_finite", f"the transform from {parent} to {child} is not finite")
    if max(map(abs, transform.translation_m)) > MAX_POSITION_M:
        return DecodeError("too_far", f"{child} is more than {MAX_POSITION_M:g} m from {parent}")
    if abs(length - 1) > QUATERNION_TOLERANCE:
        return DecodeError("rotation", f"the rotation from {parent} to {child} is not a unit quaternion")
    return None


# Clouds and depth images of moving sensors: each one waits for the transforms at its stamp.
#
# A cloud is placed once every transform between its frame and the grid's frame has a sample at or after the cloud's
# stamp. All transforms are then interpolated, and none is extrapolated. The placement depends only on the messages and
# the order of their arrival, so a recording gives the same placement as the robot. A cloud counts as arrived when the
# last of its transforms arrives.

WAIT_NS = NS_PER_S // 2  # after the arrival of a cloud; the cloud is then dropped
WAITING = 8  # maximum number of waiting clouds of a stream
HISTORY_NS = 2 * NS_PER_S  # transforms are kept for this long before the newest one of each frame
MAX_TRANSFORMS_KEPT = 1024  # maximum number of transforms kept for a frame


class Placed(NamedTuple):
    """A cloud that no longer waits."""

    stream: str
    sample: Sample
    pose: Matrix | DecodeError | None  # T_grid_sensor, or the error if there is none; None for a cloud without a stamp


class _Waiting(NamedTuple):
    stream: str
    sample: Sample
    arrival_ns: int


class CloudPlacement:
    """The waiting clouds of all streams with a `voxels.frame`, and the transforms that they wait for."""

    def __init__(self, spec: FusionSpec, static: StaticTransforms) -> None:
        self._static = static
        self._tree = FrameTree(static, MAX_TRANSFORMS_KEPT)
        self._streams = {s.name: s for s in spec.framed}
        self._frames = {s.name: s.voxels.frame for s in spec.framed if s.voxels}
        self._waiting: list[_Waiting] = []
        self._full = False  # a frame was refused because there are too many, and the warning was logged

    def __contains__(self, stream: str) -> bool:
        return stream in self._frames

    def add_transforms(self, transforms: Iterable[Transform], arrival_ns: int) -> Iterator[Placed]:
        """Add the transforms of a message by their header stamps; yields the clouds that waited for them."""
        for transform in transforms:
            child, stamp_ns = transform.child, transform.stamp_ns
            if not stamp_ns:
                continue
            newest_ns = self._tree.newest_ns(child)
            if stamp_ns < newest_ns - JUMP_BACK_NS:  # the clock jumped back: drop the samples from before the jump
                self._tree.prune(NO_TIME_NS, child)
                newest_ns = stamp_ns
            try:
                self._tree.add(transform, stamp_ns, arrival_ns)
            except DecodeError as error:
                if not self._full:
                    log.warning("/tf: a transform is ignored: %s", error)
                self._full = True
                continue
            self._tree.prune(max(stamp_ns, newest_ns) - HISTORY_NS, child)
        yield from self._ready(arrival_ns)

    def add(self, stream: str, sample: Sample, arrival_ns: int) -> Iterator[Placed]:
        """Add a cloud; yields the clouds that no longer wait."""
        frame = self._frames[stream]
        pose = self._static.lookup(frame, sample.frame_id)
        if pose is not None:
            yield Placed(stream, sample, pose)
        elif not len(self._tree):
            text = f"/tf_static has no transform from {sample.frame_id or 'no frame_id'} to {frame} (yet)"
            yield Placed(stream, sample, DecodeError("no_transform", text))
        elif not sample.stamp_ns:
            yield Placed(stream, sample, None)
        else:
            self._waiting.append(_Waiting(stream, sample, arrival_ns))
            yield from self._ready(arrival_ns)

    def _ready(self, arrival_ns: int) -> Iterator[Placed]:
        """The clouds that can be placed when a message arrives, and the clouds that have waited too long."""
        waiting, self._waiting = self._waiting, []
        behind = Counter(entry.stream for entry in waiting)
        for entry in waiting:
            behind[entry.stream] -= 1
            pose, missing = self._pose(entry)
            if pose is not None:
                yield Placed(entry.stream, entry.sample, pose)
            elif arrival_ns - entry.arrival_ns > WAIT_NS or behind[entry.stream] >= WAITING:
                yield Placed(entry.stream, entry.sample, DecodeError("no_transform", missing))
            elif arrival_ns < entry.arrival_ns - JUMP_BACK_NS:
                yield Placed(entry.stream, entry.sample, DecodeError("no_transform", "the clock jumped back"))
            else:
                self._waiting.append(entry)

    def _pose(self, entry: _Waiting) -> tuple[Matrix | None, str]:
        """T_grid_sensor at the time of a cloud, or None and what is missing."""
        stream, sample = self._streams[entry.stream], entry.sample
        assert sample.stamp_ns
        ticks = np.array([sample.stamp_ns - stream.latency_ns])
        rule = Rule("linear", stream.max_gap_ns, 0)
        target, source = self._frames[entry.stream].lstrip("/"), sample.frame_id.lstrip("/")
        found = self._tree.poses(target, source, ticks, rule)
        if found.valid[0] != ALIGNED:
            return None, f"{next(iter(found.missing), 'no transform')}, at its stamp"
        x, y, z, *rotation = found.values[0].tolist()
        return Extrinsic((x, y, z), tuple(rotation)).matrix, ""


MAX_COMPARED = 512  # maximum number of messages that are compared with one message at once
_MIN_ALIKE = 16  # if fewer messages than this are alike,
_DECODED_SINGLY = 64  # this many of the next messages are decoded one by one


class Ingest:
    """Decodes messages by stream and pushes them into an engine.

    `counters[stream]` counts `received`, `decoded`, each `Outcome` by name, `dropped:<cause>` for each cause,
    `unmatched` messages (with joints that the spec does not name), `joint_sets_changed` (messages whose joints
    differ from those of the previous message) and `filled` (messages with NaN or infinite values, which `fill`
    replaced). A depth image, its colour image and its camera_info are received under
    the names in `FusionSpec.feeds`. Their outcomes are counted with the stream, and so are `unpaired` depth images and,
    as `unpaired:<key>`, the missing part.
    `dropped:no_transform` counts clouds that no transform connects to `voxels.frame` in time. In streams with header
    stamps, `unstamped` counts messages whose stamp is not set, and `skewed` those whose stamp is too far from their
    arrival. `by_arrival` counts unset stamps with `stamp: header_or_receive`, and `device_jumps` jumps of a device's
    clock.

    Args:
        spec: the streams.
        engine: receives the samples.
        definitions: message definitions by type, for types that are not built in (bags contain them).
        live: drop compressed depth images that take longer to decode than a tick may wait, as `dropped:too_slow`.
    """

    def __init__(
        self,
        spec: FusionSpec,
        engine: FusionEngine,
        definitions: Mapping[str, str] | None = None,
        *,
        live: bool = False,
    ) -> None:
        if live:
            check_live(spec)
        self.engine = engine
        self.counters: dict[str, Counter[str]] = {feed.name: Counter() for feed in spec.feeds}
        self.stamps_ns: dict[str, int | None] = {}  # stamp of the newest decoded message, by feed
        self._decoders = {f.name: make_decoder(f, definitions) for f in spec.feeds if not f.is_transform}
        self.transforms = engine.static_transforms
        weak = weakref.proxy(self)  # so that the engine with its buffers is freed at once
        self._tf = TransformIngest(
            engine, self.counters, lambda *counted: weak._count_pushed(*counted), lambda *error: weak._dropped(*error)
        )
        self._placement = CloudPlacement(spec, self.transforms)
        self._or_receive = {stream.name for stream in spec.streams if stream.stamp == "header_or_receive"}
        self._synchronizers: dict[str, DepthSynchronizer] = {}  # by feed
        for stream in spec.streams:
            if stream.camera_info:
                synchronizer = DepthSynchronizer(stream, live=live)
                self._synchronizers |= {feed.name: synchronizer for feed in (stream, *stream.companions)}

    def serialized(self, stream: str, data: bytes | memoryview, arrival_ns: int) -> Outcome:
        """Decode and push the CDR bytes of a message; an image or a cloud refers to them without a copy."""
        if stream in self._tf:
            outcome, self.stamps_ns[stream] = self._tf.message(stream, data, arrival_ns)
            return outcome
        if stream == TF:
            return self._take_transforms(data, arrival_ns)
        return self._take(stream, self._decoders[stream], data, arrival_ns)

    @property
    def vectors(self) -> frozenset[str]:
        """The feeds for `serialized_run`: vector feeds, which do not wait for other feeds."""
        return frozenset(
            name
            for name, decoder in self._decoders.items()
            if isinstance(decoder, VectorDecoder) and name not in {**self._synchronizers, **self.engine.device_clocks}
        )

    def serialized_run(self, stream: str, data: Sequence[bytes], arrivals_ns: Sequence[int]) -> None:
        """Push recorded messages of one stream in order; messages with the same structure are decoded together."""
        decoder = self._decoders[stream]
        at = singly = 0
        while at < len(data):
            self.serialized(stream, data[at], arrivals_ns[at])
            at += 1
            if singly:
                singly -= 1
            elif len(data) - at >= _MIN_ALIKE and isinstance(decoder, VectorDecoder):
                upto = min(at + MAX_COMPARED, len(data))
                count = self._push_alike(stream, decoder, data[at - 1], data[at:upto], arrivals_ns[at:upto])
                at += count
                singly = 0 if count >= _MIN_ALIKE else _DECODED_SINGLY

    def _push_alike(
        self, stream: str, decoder: VectorDecoder, first: bytes, data: Sequence[bytes], arrivals_ns: Sequence[int]
    ) -> int:
        """Decode and push the leading messages with the same structure as `first`; returns their number."""
        try:
            alike = decoder.decode_alike(first, data)
        except DecodeError:  # `first` was dropped
            return 0
        if alike is None or not len(alike.values):
            return 0
        arrivals = np.array(arrivals_ns[: len(alike.values)], np.int64)
        count, late = self.engine.extend(stream, alike.stamps_ns, arrivals, alike.values)
        counters = self.counters[stream]
        counts = {
            "received": count,
            "decoded": count,
            "unmatched": count if alike.unmatched else 0,
            Outcome.ACCEPTED.value: count - late,
            Outcome.LATE.value: late,
        }
        counters.update({name: number for name, number in counts.items() if number})
        if count:
            self.stamps_ns[stream] = None if alike.stamps_ns is None else int(alike.stamps_ns[count - 1])
        return count

    def static_transforms(self, data: bytes) -> None:
        """Add the transforms of a serialized message of /tf_static."""
        try:
            for transform in read_transforms(data):
                self.transforms.add(transform)
        except DecodeError as error:
            log.warning("/tf_static: a message is dropped: %s", error)

    def _take_transforms(self, data: bytes | memoryview, arrival_ns: int) -> Outcome:
        """Add the transforms of a message for clouds of moving sensors, and push the clouds that waited for them."""
        self.counters[TF]["received"] += 1
        try:
            usable = [transform for transform, error in self._tf.decode(data) if error is None]
        except DecodeError as error:
            return self._dropped(TF, error)
        self.counters[TF]["decoded"] += 1
        self._push_placed(self._placement.add_transforms(usable, arrival_ns), arrival_ns)
        return Outcome.ACCEPTED

    def _take(self, feed: str, decoder: Decoder, data: bytes | memoryview, arrival_ns: int) -> Outcome:
        counters = self.counters[feed]
        counters["received"] += 1
        try:
            sample = decoder.decode_cdr(data)
        except DecodeError as error:
            return self._dropped(feed, error)
        counters["decoded"] += 1
        self.stamps_ns[feed] = sample.stamp_ns
        if sample.unmatched:
            counters["unmatched"] += 1
        if decoder.changed_sets:
            counters["joint_sets_changed"] = decoder.changed_sets
        if decoder.filled:
            counters["filled"] = decoder.filled
        synchronizer = self._synchronizers.get(feed)
        if synchronizer is None:
            return self._push(feed, sample, arrival_ns)
        if not sample.stamp_ns and not synchronizer.accepts_unstamped(sample):
            return self._count(feed, Outcome.UNSTAMPED, sample, arrival_ns)
        outcome = Outcome.WAITING
        try:
            for complete in synchronizer.add(feed, sample):
                outcome = self._push(synchronizer.name, complete, arrival_ns)
        except DecodeError as error:
            outcome = self._dropped(synchronizer.name, error)
        self.counters[synchronizer.name] |= synchronizer.counters  # the larger of each: both only increase
        return outcome

    def _push(self, stream: str, sample: Sample, arrival_ns: int) -> Outcome:
        if stream not in self._placement:
            return self._push_value(stream, sample, arrival_ns)
        placed = self._placement.add(stream, sample, arrival_ns)
        return self._push_placed(placed, arrival_ns).get(stream, Outcome.WAITING)

    def _push_placed(self, placed: Iterable[Placed], arrival_ns: int) -> dict[str, Outcome]:
        """Push the clouds whose sensor pose is now known; returns the last outcome by stream."""
        outcomes = {}
        for name, sample, pose in placed:
            if isinstance(pose, DecodeError):
                outcomes[name] = self._dropped(name, pose)
            elif pose is None:
                outcomes[name] = self._count(name, Outcome.UNSTAMPED, sample, arrival_ns)
            else:
                assert isinstance(sample.value, (CloudPayload, DepthPayload))
                sample = sample._replace(value=replace(sample.value, transform=pose))
                outcomes[name] = self._push_value(name, sample, arrival_ns)
        return outcomes

    def _push_value(self, stream: str, sample: Sample, arrival_ns: int) -> Outcome:
        outcome = self.engine.push(stream, sample.stamp_ns, arrival_ns, sample.value)
        return self._count_pushed(stream, outcome, sample, arrival_ns)

    def _count_pushed(self, stream: str, outcome: Outcome, sample: Sample, arrival_ns: int) -> Outcome:
        self._count(stream, outcome, sample, arrival_ns)
        self._count_clock(stream, sample)
        return outcome

    def _count_clock(self, stream: str, sample: Sample) -> None:
        """Count events that concern the time of a pushed sample."""
        counters = self.counters[stream]
        if not sample.stamp_ns and stream in self._or_receive:
            counters["by_arrival"] += 1
        clock = self.engine.device_clocks.get(stream)
        if clock and clock.jumps > counters["device_jumps"]:
            if not counters["device_jumps"]:
                log.warning("%s: the device's clock jumped; the translation of its stamps restarts", stream)
            counters["device_jumps"] = clock.jumps

    def _count(self, feed: str, outcome: Outcome, sample: Sample, arrival_ns: int) -> Outcome:
        counters = self.counters[feed]
        counters[outcome.value] += 1
        if counters[outcome.value] > 1:  # log once per cause: at 500 Hz, one line per message would hide the others
            return outcome
        if outcome is Outcome.UNSTAMPED:
            log.warning(
                "%s: a message is dropped: its header stamp is not set; "
                "set it in the publisher, or set stamp: header_or_receive",
                feed,
            )
        elif outcome is Outcome.SKEWED:
            off_ns = (sample.stamp_ns or 0) - arrival_ns
            log.warning(
                "%s: a message is dropped: its stamp is %.3f s %s its arrival, more than max_skew_ms allows; "
                "synchronize the clocks, or set stamp: device",
                feed,
                abs(off_ns) / 1e9,
                "after" if off_ns > 0 else "before",
            )
        return outcome

    def _dropped(self, feed: str, error: DecodeError) -> Outcome:
        counters, cause = self.counters[feed], f"dropped:{error.cause}"
        if not counters[cause]:  # log once per cause: at 500 Hz, one line per message would hide the others
            log.warning("%s: a message is dropped: %s", feed, error)
        counters[cause] += 1
        counters[Outcome.DROPPED.value] += 1
        return Outcome.DROPPED
