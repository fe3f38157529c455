"""What is shown of a recording, of the log of a run, and of a dataset."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.decode.payloads import CloudPayload, DecodeError, DepthPayload, ImagePayload
from robocache_ros.decode.video import PacketDecoder
from robocache_ros.engine import FusionEngine, Ingest, tick_grid
from robocache_ros.engine.backends.media import image_tensor, sensor_pose, voxel_tensor
from robocache_ros.engine.frames import age_ms
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.extras import need
from robocache_ros.formats.images import VideoFrames, images_at, is_files
from robocache_ros.formats.read import EpisodeSource, Stream
from robocache_ros.formats.registry import open_source
from robocache_ros.ops.voxel.grid import voxel_points
from robocache_ros.recorder import run_log
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_S
from robocache_ros.untrusted_files import file_below
from robocache_ros.view.scene import EVENTS, MAX_POINTS, NUMBERS, Scene, Shown

MAX_EPISODES = 10  # of a dataset, that are shown if none are chosen
EPISODE_PAUSE_NS = NS_PER_S  # between two episodes on the timeline
MAX_VIDEO_BYTES = 256 << 20  # of a video file that becomes part of the recording; of larger ones frames are decoded
DECODED_IMAGES = 64  # at a time
MARGIN_NS = NS_PER_S // 10  # around the range that is shown, of raw samples
SAME_NS = 10**5  # an age of float32 ms gives a stamp this exactly
MAX_TICK = 2**62 // NS_PER_S  # index of a tick, of which the time is far from the limit of 64 bits
MAX_COLUMNS = 1024  # of an executed row
NO_BASE = "base"  # the frame of poses whose frame no stream names
FUSED_TOPIC_TYPE, TEXT_TYPE = "std_msgs/msg/Float32MultiArray", "std_msgs/msg/String"


# Makes a scene, given the streams that it shows, and what returns the columns of Rerun's timelines.
SceneOf: TypeAlias = "Callable[[Sequence[Shown], Callable[[NDArray[np.int64]], list[Any]]], Scene]"


def _stamps(times_ns: NDArray[np.int64]) -> list[Any]:
    """Return (M,) int64 times in ns since the epoch as Rerun's timeline `time`."""
    return [need("rerun", "view").TimeColumn("time", timestamp=times_ns.astype("datetime64[ns]"))]


def shown_streams(spec: FusionSpec) -> list[Shown]:
    """Return how the streams of a spec are drawn."""
    base = next((s.voxels.frame for s in spec.streams if s.voxels and s.voxels.frame), NO_BASE)
    found = []
    for stream in spec.streams:
        pose, frame = "", ""
        if stream.kind == "cloud" and stream.voxels:
            placed = base if stream.voxels.extrinsic else stream.voxels.frame
            frame = placed or f"sensor of {stream.name}"
        elif part := _part_of_pose(stream):
            pose, frame = part[0], stream.frames[0] if stream.frames else base
        found.append(Shown(stream.name, stream.kind, stream.components, stream.unit, pose, frame))
    return found


def _part_of_pose(stream: StreamSpec) -> tuple[str, str] | None:
    """Return the name of the pose that a stream belongs to, and what it has of it: position, orientation or both."""
    if stream.is_transform:
        return stream.name, "both"
    parent, _, last = stream.paths[0].rpartition(".") if len(stream.paths) == 1 else ("", "", "")
    kinds = {"position": "position", "translation": "position", "orientation": "orientation", "rotation": "orientation"}
    width = {"position": 3, "orientation": 4}
    if stream.rows or last not in kinds or stream.dim != width[kinds[last]] or stream.names:
        return None
    return "_".join(part for part in (*stream.topic.split("/"), *parent.split(".")) if part), kinds[last]


class Drawn:
    """Draws the raw samples and the ticks of an engine."""

    def __init__(self, scene: Scene, layout: Layout, start_ns: int, stop_ns: int) -> None:
        self.scene, self.layout = scene, layout
        self._range = start_ns, stop_ns
        self._streams = {stream.name: stream for stream in layout.spec.streams}
        self._raw: dict[str, tuple[list[int], list[NDArray[Any]]]] = {}
        self._clouds: dict[str, list[tuple[int, Any]]] = {s.name: [] for s in layout.spec.media if s.kind == "cloud"}
        self._used: dict[str, int] = {}  # stamp of the cloud whose voxels are shown
        self.unreadable = 0  # images that cannot be shown

    def take(self, name: str, stamps_ns: NDArray[np.int64], value: Any) -> None:
        """Take samples of an engine: (M,) stamps with (M, D) values, or one stamp with a payload."""
        inside = (stamps_ns >= self._range[0]) & (stamps_ns < self._range[1])
        stream = self._streams.get(name)
        if stream is None or not inside.any():
            return
        if isinstance(value, np.ndarray):
            self.scene.samples(name, stamps_ns[inside], value.reshape(len(stamps_ns), -1)[inside])
        elif isinstance(value, ImagePayload):
            self._image(stream, int(stamps_ns[0]), value)
        elif isinstance(value, (CloudPayload, DepthPayload)):
            self._clouds[name].append((int(stamps_ns[0]), value))
            if isinstance(value, CloudPayload) and (points := _points(value, stream)) is not None:
                self.scene.cloud(name, int(stamps_ns[0]), points)

    def _image(self, stream: StreamSpec, stamp_ns: int, image: ImagePayload) -> None:
        if stream.type in VIDEO_TYPES:
            return  # its packets are shown
        if image.encoding in ("jpeg", "png"):
            self.scene.encoded_image(stream.name, stamp_ns, image.data.tobytes())
            return
        try:
            pixels = image_tensor(image, stream, channels_last=True).permute(1, 2, 0).numpy()
            self.scene.pixels(stream.name, stamp_ns, pixels)
        except RoboCacheError:
            self.unreadable += 1

    def ticks(self, ticks_ns: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Draw ticks: (T,) times and (T, C) rows."""
        layout, count = self.layout, len(self.layout.names)
        poses: dict[str, dict[str, tuple[NDArray[Any], NDArray[Any]]]] = {}
        for number, stream in enumerate(layout.spec.streams):
            valid, ages = rows[:, layout.width + number], rows[:, layout.width + count + number]
            values = rows[:, layout.slots[stream.name]][:, -stream.dim :] if stream.kind == "vector" else None
            self.scene.fused(stream.name, ticks_ns, values, valid, ages)
            if values is not None and (part := _part_of_pose(stream)):
                poses.setdefault(part[0], {})[part[1]] = values, valid > 0
            if stream.kind == "cloud":
                self._voxels(stream, ticks_ns, valid, ages)
        for name, parts in poses.items():
            has = np.logical_and.reduce([valid for _, valid in parts.values()])
            both = parts.get("both")
            position = both[0][:, :3] if both else parts["position"][0] if "position" in parts else None
            turned = both[0][:, 3:] if both else parts["orientation"][0] if "orientation" in parts else None
            self.scene.pose(
                name,
                ticks_ns[has],
                None if position is None else position[has],
                None if turned is None else turned[has],
            )

    def _voxels(self, stream: StreamSpec, ticks_ns: NDArray[np.int64], valid: NDArray[Any], ages: NDArray[Any]) -> None:
        """Show the grid of each cloud at the first tick that uses it, and none where there is no value."""
        clouds, grid = self._clouds[stream.name], stream.voxels
        assert grid is not None
        for tick_ns, state, age in zip(ticks_ns.tolist(), valid.tolist(), ages.tolist(), strict=True):
            wanted, used = tick_ns - round(age * 1e6), self._used.get(stream.name, 0)
            if abs(wanted - used) < SAME_NS if state else not used:
                continue
            stamp_ns, payload = min(clouds, key=lambda one: abs(one[0] - wanted), default=(0, None))
            if not state or payload is None:
                stamp_ns = 0
            if stamp_ns == used:
                continue
            self._used[stream.name] = stamp_ns
            centres = np.empty((0, 3), np.float32)
            if stamp_ns and payload is not None:
                centres = voxel_points(voxel_tensor(payload, stream).numpy(), grid)[1][:, :3]
            self.scene.voxels(stream.name, tick_ns, centres, grid.size_m)
            clouds[:] = [one for one in clouds if one[0] >= stamp_ns]


def _points(cloud: CloudPayload, stream: StreamSpec) -> NDArray[np.float32] | None:
    """Return finite points of a cloud in the frame of the grid, (N, 3), every n-th of many; None if not float32."""
    fields = {field.name: field for field in cloud.fields if field.datatype == 7}
    if not {"x", "y", "z"} <= set(fields) or not cloud.width * cloud.height:
        return None
    order, every = ">f4" if cloud.big_endian else "<f4", -(-cloud.width * cloud.height // MAX_POINTS)
    shape, strides = (cloud.height, cloud.width), (cloud.row_step, cloud.point_step)
    raw = [np.ndarray(shape, order, cloud.data, fields[axis].offset, strides) for axis in "xyz"]
    axes = [axis.reshape(-1)[::every].astype(np.float32) for axis in raw]
    points = np.stack(axes, axis=1)[np.logical_and.reduce([np.isfinite(axis) for axis in axes])]
    pose = sensor_pose(cloud.transform, stream)
    if pose is not None:
        points = points @ pose[:, :3].numpy().T + pose[:, 3].numpy()
    return points


def show_recording(
    path: str | AnyPath,
    scene_of: SceneOf,
    spec: FusionSpec,
    start_s: float = 0.0,
    stop_s: float | None = None,
    msg_path: Sequence[str] = (),
) -> list[str]:
    """Draw a recording: its raw samples, and the ticks that the engine computes from them.

    Args:
        path: of the recording.
        scene_of: makes the scene.
        spec: the streams.
        start_s: first second that is shown, from the start of the recording.
        stop_s: second at which it ends; None: the end of the recording.
        msg_path: as for `Bag`.

    Returns:
        Notes on what is not shown.

    Errors:
        RoboCacheError: the recording cannot be read, or does not match the spec.
    """
    with Bag(path, msg_path=msg_path) as bag:
        first, last = _range(path, bag.start_ns, bag.stop_ns, start_s, stop_s)
        scene = scene_of(shown_streams(spec), _stamps)
        drawn = Drawn(scene, Layout(spec), first - MARGIN_NS, last + MARGIN_NS)
        whole = start_s <= 0 and stop_s is None
        run = BagRun(
            bag,
            spec,
            trim=False,
            start_ns=None if whole else first,
            stop_ns=None if whole else last,
            media=False,
            watch=drawn.take,
        )
        for part in run.frames():
            drawn.ticks(part.ticks_ns, part.rows().numpy())
        for stream in spec.media:
            if stream.type in VIDEO_TYPES:
                _packets(scene, bag, stream, first, last)
        _executed(scene, bag, spec, first, last)
        scene.close()
        notes = bag.notes
        if drawn.unreadable:
            notes.append(f"{number_of(drawn.unreadable, 'image')} cannot be shown")
        return notes


def _range(path: Any, start_ns: int, stop_ns: int, start_s: float, stop_s: float | None) -> tuple[int, int]:
    """Return the range of times that seconds from the start select."""
    first = start_ns + round(max(start_s, 0.0) * NS_PER_S)
    last = stop_ns if stop_s is None else min(stop_ns, start_ns + round(stop_s * NS_PER_S))
    if first >= last:
        length = (stop_ns - start_ns) / NS_PER_S
        raise RoboCacheError(
            f"{printable(path, 60)}: nothing from {start_s:g} s to {'its end' if stop_s is None else f'{stop_s:g} s'}; "
            f"it has {length:.1f} s"
        )
    return first, last


def _packets(scene: Scene, bag: Bag, stream: StreamSpec, start_ns: int, stop_ns: int) -> None:
    """Show the packets of a stream of video."""
    decoder = PacketDecoder(stream, message_type(stream.type, bag.definitions))
    for message in bag.messages([stream.topic], start_ns, stop_ns):
        try:
            stamp_ns, value, *_ = decoder.decode_cdr(message.data)
        except DecodeError:
            continue
        time_ns = message.log_ns if stream.stamp == "receive" or not stamp_ns else stamp_ns
        if isinstance(value, ImagePayload):
            scene.packet(stream.name, time_ns - stream.latency_ns, value.data.tobytes(), value.encoding)


def _executed(scene: Scene, bag: Bag, spec: FusionSpec, start_ns: int, stop_ns: int) -> None:
    """Draw the rows that policy runners published on `~/executed`, and the chunks that came on `~/chunk`."""
    for name, topic in bag.topics.items():
        node, _, last = name.rpartition("/")
        columns = f"{node}/columns"
        if last != "executed" or topic.type != FUSED_TOPIC_TYPE or columns not in bag.topics:
            continue
        texts = [_message(bag, TEXT_TYPE, message.data) for message in bag.messages([columns])]
        described = described_columns(texts[0].data) if texts and texts[0] else None
        if described is None:
            continue
        arrays = (_message(bag, topic.type, message.data) for message in bag.messages([name], start_ns, stop_ns))
        rows = [row for array in arrays if array and (row := _labelled(array)) and row[1].shape[1] >= len(described[0])]
        if rows:
            times = np.array([tick_ns for tick_ns, _ in rows], np.int64)
            table = np.stack([values[-1, : len(described[0])] for _, values in rows])
            draw_executed(scene, spec, *described, times, table)
        chunks = f"{node}/chunk"
        if chunks in bag.topics and bag.topics[chunks].type == FUSED_TOPIC_TYPE:
            for message in bag.messages([chunks], start_ns, stop_ns):
                array = _message(bag, FUSED_TOPIC_TYPE, message.data)
                if array and (found := _labelled(array)):
                    draw_chunk(scene, spec, *found)


def _message(bag: Bag, kind: str, data: Any) -> Any:
    """Return a message; None if it is damaged."""
    try:
        return read_message(message_type(kind, bag.definitions), data)
    except RoboCacheError:
        return None


def _labelled(array: Any) -> tuple[int, NDArray[Any]] | None:
    """Return the tick and the (H, C) values of an array labelled as `~/fused`; None if it is another."""
    dims, values = array.layout.dim, np.asarray(array.data)
    label = dims[0].label.removeprefix("tick_ns=") if dims else ""
    if len(dims) != 2 or not label.isdecimal() or len(label) > 19 or dims[0].size * dims[1].size != len(values):
        return None
    return (int(label), values.reshape(dims[0].size, dims[1].size)) if len(values) else None


def described_columns(text: str) -> tuple[list[str], list[str], list[str]] | None:
    """Return the columns of `~/executed`, and the names of its states and origins; None if the text is another."""
    try:
        raw = json.loads(text)
        found = tuple([str(each) for each in raw[key]] for key in ("columns", "states", "origins"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return found if max(map(len, found)) <= MAX_COLUMNS else None  # type: ignore[return-value]  # three lists


def draw_executed(
    scene: Scene,
    spec: FusionSpec,
    columns: Sequence[str],
    states: Sequence[str],
    origins: Sequence[str],
    ticks_ns: NDArray[np.int64],
    rows: NDArray[Any],
) -> None:
    """Draw executed rows over their action streams, and the states and steps at seams of the run.

    Args:
        scene: what is drawn into.
        spec: has the action streams.
        columns: of a row, such as `action.joint1`, `state`, `origin`, `seam_step`.
        states: names of the numbers in `state`.
        origins: names of the numbers in `origin`.
        ticks_ns: (T,) int64.
        rows: (T, C).
    """
    place = {name: index for index, name in enumerate(columns)}
    for stream in spec.vectors:
        at = [place.get(f"{stream.name}.{component}") for component in stream.components]
        if stream.role == "action" and None not in at:
            scene.executed(
                stream.name, ticks_ns, rows[:, [index for index in at if index is not None]], stream.components
            )
    for key, names in (("state", states), ("origin", origins)):
        if key in place:
            numbers = np.nan_to_num(rows[:, place[key]]).astype(int).tolist()
            shown = [names[n] if 0 <= n < len(names) and names[n] else "none" for n in numbers]
            scene.states(f"{EVENTS}/{key}", ticks_ns, shown)
    if "seam_step" in place:
        steps = rows[:, place["seam_step"]]
        scene.scalar(f"{NUMBERS}/seam_step", ticks_ns, steps)


def draw_chunk(scene: Scene, spec: FusionSpec, tick_ns: int, actions: NDArray[Any]) -> None:
    """Draw a chunk of (H, A) actions, whose first row belongs to a tick, over the action streams."""
    first = tick_grid.first_at_or_after(tick_ns, spec.rate_hz)
    ticks = tick_grid.ticks_ns(first, len(actions), spec.rate_hz)
    start = 0
    for stream in spec.vectors:
        if stream.role == "action" and not stream.rows:
            part = actions[:, start : start + stream.dim]
            start += stream.dim
            if part.shape[1] == stream.dim:
                scene.chunk(stream.name, ticks, part, stream.components)


def show_run(
    path: str | Path,
    scene_of: SceneOf,
    start_s: float = 0.0,
    stop_s: float | None = None,
) -> list[str]:
    """Draw the log of a run: the messages as the node took them, the rows that it computed, and the plans of a policy.

    Args and errors as of `show_recording`; seconds are from the first tick.
    """
    run = run_log.RunReader(path)
    spec = run.spec
    scene = scene_of(shown_streams(spec), _stamps)
    engine = FusionEngine(spec, "cpu", unbounded=True, media=False)
    drawn: Drawn | None = None
    ingest: Ingest | None = None
    steps: list[run_log.Event] = []
    waiting: list[run_log.Tick] = []
    start_ns = stop_ns = 0

    def shows(tick_ns: int) -> bool:
        """Whether a tick is in the part that is shown, which the first tick begins."""
        nonlocal drawn, start_ns, stop_ns
        if drawn is None:
            start_ns = tick_ns + round(start_s * NS_PER_S)
            stop_ns = 2**62 if stop_s is None else tick_ns + round(stop_s * NS_PER_S)
            drawn = Drawn(scene, run.layout, start_ns, stop_ns)
            engine.watch = drawn.take
        return start_ns <= tick_ns < stop_ns

    def draw() -> None:
        if waiting and drawn:
            drawn.ticks(np.array([t.tick_ns for t in waiting], np.int64), np.stack([t.row for t in waiting]))
            engine.prune(waiting[-1].tick_ns - NS_PER_S)
            waiting.clear()

    for record in run.records():
        ingest = ingest or Ingest(spec, engine, run.definitions)
        if record.topic == run_log.CALLS.name:
            waiting += [tick for tick in run.ticks(record.data) if shows(tick.tick_ns)]
            if len(waiting) >= DECODED_IMAGES:
                draw()
        elif record.topic == run_log.EVENTS.name:
            event = run.event(record.data)
            tick = event.facts.get("tick") if event else None
            tick_ns = tick_grid.tick_ns(tick, spec.rate_hz) if type(tick) is int and 0 <= tick < MAX_TICK else None
            if event and tick_ns is not None and shows(tick_ns):
                if event.name == "step":
                    steps.append(event)
                elif event.name in ("reply", "chunk"):
                    _draw_plan(scene, spec, event, tick_ns)
        else:
            run.push(record, ingest)
        if drawn and record.log_ns > stop_ns + NS_PER_S:
            break
    draw()
    _draw_steps(scene, spec, steps)
    scene.close()
    if drawn is None:
        raise RoboCacheError(f"{printable(path, 60)}: the run has no tick; record it while the node is active")
    return run.notes


def _draw_plan(scene: Scene, spec: FusionSpec, event: run_log.Event, tick_ns: int) -> None:
    """Draw the chunk of an event of a runner: from the tick that its policy observed, or as it came."""
    actions, observed = event.arrays.get("actions"), event.facts.get("observed")
    if actions is None or actions.ndim != 2 or not len(actions):
        return
    if type(observed) is int and 0 <= observed < MAX_TICK:
        tick_ns = tick_grid.tick_ns(observed, spec.rate_hz)
    draw_chunk(scene, spec, tick_ns, actions)


def _draw_steps(scene: Scene, spec: FusionSpec, steps: Sequence[run_log.Event]) -> None:
    """Draw the steps of a runner: the rows that it sent, its states, and the steps at seams."""
    actions = [s for s in spec.vectors if s.role == "action" and not s.rows]
    columns = [f"{stream.name}.{component}" for stream in actions for component in stream.components]
    names: dict[str, list[str]] = {"state": [], "origin": []}
    ticks, rows = [], []
    for step in steps:
        row = step.arrays.get("row")
        values = np.full(len(columns), np.nan) if row is None or row.shape != (len(columns),) else row
        numbers = []
        for key, known in names.items():
            name = printable(step.facts.get(key, ""), 40)
            if name not in known:
                known.append(name)
            numbers.append(known.index(name))
        seam = step.facts.get("seam_step")
        rows.append([*values, *numbers, seam if isinstance(seam, (int, float)) else 0.0])
        ticks.append(tick_grid.tick_ns(step.facts["tick"], spec.rate_hz))
    if rows:
        described = [*columns, "state", "origin", "seam_step"]
        draw_executed(
            scene, spec, described, names["state"], names["origin"], np.array(ticks, np.int64), np.array(rows)
        )


class EpisodeTimes:
    """The times of episodes, one after the other, as Rerun's timelines `time` and `episode`."""

    def __init__(self) -> None:
        self.index = 0
        self._first_ns = self._stop_ns = self._offset_ns = 0

    def begin(self, index: int, span_ns: tuple[int, int]) -> None:
        """Begin the next episode."""
        self._offset_ns = self._stop_ns
        self.index, self._first_ns = index, span_ns[0]
        self._stop_ns = self._offset_ns + span_ns[1] - span_ns[0] + EPISODE_PAUSE_NS

    def __call__(self, times_ns: NDArray[np.int64]) -> list[Any]:
        """Return the columns of (M,) int64 stamps of the episode."""
        rr = need("rerun", "view")
        elapsed = (times_ns - self._first_ns + self._offset_ns).astype("timedelta64[ns]")
        episodes = np.full(len(times_ns), self.index, np.int64)
        return [rr.TimeColumn("time", duration=elapsed), rr.TimeColumn("episode", sequence=episodes)]


def show_dataset(
    path: AnyPath,
    format_name: str,
    scene_of: SceneOf,
    first: int = 0,
    stop: int | None = None,
    **options: Any,
) -> list[str]:
    """Draw episodes of a dataset, one after the other: from `first` to before `stop`; None: MAX_EPISODES are shown.

    Errors:
        RoboCacheError: the dataset cannot be read, or has no such episode.
    """
    source: EpisodeSource = open_source(format_name, path, **options)
    last = min(len(source), first + MAX_EPISODES if stop is None else stop)
    if not 0 <= first < last:
        raise RoboCacheError(f"{printable(path, 60)}: no episode from {first} on; it has {len(source):,}")
    notes, times, scene = [], EpisodeTimes(), None
    for index in range(first, last):
        episode = source.read(index)
        if scene is None:
            scene = scene_of([_shown(_renamed(stream)) for stream in episode.streams.values()], times)
        times.begin(index, episode.span_ns())
        start_ns = np.array(episode.span_ns()[:1], np.int64)
        scene.states(f"{EVENTS}/episode", start_ns, [f"{index}: {printable(episode.task, 80)}"])
        for stream in map(_renamed, episode.streams.values()):
            if stream.name in scene.streams:
                _draw_stream(scene, stream, episode.source)
                scene.interrupt(stream.name, int(stream.stamps_ns[-1]) + 1)
        scene.flush()
    if last < len(source) and stop is None:
        notes.append(f"episodes {first} to {last - 1} of {len(source):,} are shown; choose others with --from and --to")
    if scene is not None:
        scene.close()
    return notes


def _renamed(stream: Stream) -> Stream:
    """Return a stream with a name that is also an entity path."""
    return replace(stream, name=re.sub(r"[^\w./-]", "_", stream.name))


def _shown(stream: Stream) -> Shown:
    if stream.is_image:
        return Shown(stream.name, "image" if stream.modality != "voxels" else "")
    values = np.asarray(stream.values)
    width = values.reshape(len(values), -1).shape[1]
    return Shown(stream.name, "vector", stream.columns or tuple(map(str, range(width))))


def _draw_stream(scene: Scene, stream: Stream, where: str) -> None:
    times, count = stream.stamps_ns, len(stream.stamps_ns)
    values = None if stream.is_image else np.asarray(stream.values).reshape(count, -1)
    ages = None if stream.age_ns is None else age_ms(stream.age_ns)
    scene.fused(stream.name, times, values, stream.valid, ages)
    if not stream.is_image:
        return
    rows = np.arange(count) if stream.valid is None else np.flatnonzero(stream.valid > 0)
    if stream.modality == "voxels" or not len(rows):
        return
    if is_files(stream.values):
        for row in rows.tolist():
            scene.encoded_image(stream.name, int(times[row]), bytes(stream.values[row]))
    elif isinstance(stream.values, VideoFrames) and (file := _local_video(stream.values)):
        middle_s = stream.values.start_s + (rows + 0.5) / stream.values.fps  # never the frame before
        scene.video_file(stream.name, file, times[rows], (middle_s * 1e9).astype(np.int64))
    else:
        for part in np.array_split(rows, -(-len(rows) // DECODED_IMAGES)):
            for row, image in zip(part.tolist(), images_at(stream, part, where), strict=True):
                scene.pixels(stream.name, int(times[row]), image)


def _local_video(video: VideoFrames) -> str | None:
    """Return the path of a video file that can become part of a recording; None if it cannot."""
    if not isinstance(video.root, Path):
        return None
    file_below(video.root, video.name)
    path = video.root / video.name
    return str(path) if path.stat().st_size <= MAX_VIDEO_BYTES else None
