"""A Rerun recording: what a viewer shows of streams, and how the views are laid out.

Entities: `cameras/<stream>`; `streams/<stream>/samples`, `/fused`, `/executed` and `/chunks/<n>`; `validity/<stream>`;
`age/<stream>`; `world/<stream>/points` and `/voxels`, `world/poses` and `world/paths`; `events`. Rerun's columns are
sent in batches.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.recording import grey_levels

Int64 = NDArray[np.int64]

APPLICATION = "robocache"
MAX_LINES = 32  # columns of a stream that are drawn
MAX_SIDE = 640  # of an image that is compressed here
MAX_POINTS = 5_000  # of a cloud
MAX_VOXELS = 20_000
VOXEL_ALPHA = 150
JPEG_QUALITY = 80
BATCH_BYTES = 4 << 20  # of images or points that are sent together
VALIDITY, EVENTS, NUMBERS = "validity", "events/states", "events/numbers"
PLOTS, STRIPS, PLOT_SHARE = 4, 6, 3.0  # in a tab of several streams
CHUNK_LANES = 8  # chunks whose ticks overlap are lines of their own
AXES_M, AXES_SHARE = 0.1, 0.15  # length of the axes of poses: at least, and of the span of the paths
PATH_RADIUS = -1.0  # negative: in points of the screen, so that a path of any length is seen
EYE = np.array((1.0, -1.4, 0.9))  # from the middle of poses, in spans
PATH_GAP_NS = 10**8  # a path is interrupted where a pose is missing for longer
STATES = {0: "invalid", 1: "aligned", 2: "held"}
COLORS = {"invalid": 0xCF4A5BFF, "aligned": 0x2F9E8FFF, "held": 0xE5A93DFF}  # as in the report
PALETTE = (
    *((66, 133, 214), (230, 126, 34), (39, 174, 96), (192, 57, 43), (155, 89, 182), (22, 160, 133), (214, 162, 16)),
    *((127, 140, 141), (233, 84, 141), (120, 94, 60)),
)
EXECUTED, PLANNED = (235, 60, 160), (140, 140, 140)  # seen on a light and on a dark ground


@dataclass(frozen=True)
class Shown:
    """A stream as it is drawn.

    Attributes:
        name: of its entities.
        kind: vector, image or cloud.
        components: names of the columns of a vector.
        unit: of its values.
        pose: of a vector in space: the name of the pose that it belongs to; empty if it is none.
        frame: of a pose or a cloud; those with one frame share a view.
    """

    name: str
    kind: str
    components: tuple[str, ...] = ()
    unit: str = ""
    pose: str = ""
    frame: str = ""


@dataclass
class _Batch:
    """Items of one entity that are sent together."""

    times: list[Int64] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    nbytes: int = 0


class Scene:
    """Writes streams into a Rerun recording.

    Args:
        recording: of Rerun.
        streams: what is drawn.
        times: returns the columns of Rerun's timelines, given (M,) int64 times in ns.
    """

    def __init__(self, recording: Any, streams: Sequence[Shown], times: Callable[[Int64], list[Any]]) -> None:
        self.rr: Any = need("rerun", "view")
        self.recording, self.times = recording, times
        self.streams = {stream.name: stream for stream in streams}
        self._batches: defaultdict[tuple[str, str], _Batch] = defaultdict(_Batch)
        self._states: dict[str, str] = {}  # the newest of each strip
        self._changes: Counter[str] = Counter()  # of each strip
        self._static: set[str] = set()
        self._lane = 0
        for stream in streams:
            if stream.kind == "vector":
                self._series(stream)
        self._trails: dict[str, list[NDArray[np.float32]]] = {s.pose: [] for s in streams if s.pose}
        self._axes()

    def _axes(self) -> None:
        for stream in self.streams.values():
            if stream.pose:
                length = max(AXES_M, AXES_SHARE * self._extent(stream.frame)[1])
                self.recording.log(f"world/poses/{stream.pose}", self.rr.TransformAxes3D(length), static=True)

    def _extent(self, frame: str) -> tuple[NDArray[Any], float]:
        """Return the middle and the span of the paths in a frame."""
        names = {stream.pose for stream in self.streams.values() if stream.pose and stream.frame == frame}
        points = np.concatenate([np.zeros((0, 3)), *(strip for name in names for strip in self._trails[name])])
        points = points[np.isfinite(points).all(axis=1)]
        if not len(points):
            return np.zeros(3), 0.0
        return (points.min(axis=0) + points.max(axis=0)) / 2, float(np.ptp(points, axis=0).max())

    def _series(self, stream: Shown) -> None:
        rr, count = self.rr, min(len(stream.components), MAX_LINES)
        names = list(stream.components[:count])
        colors = [PALETTE[index % len(PALETTE)] for index in range(count)]
        pale = [tuple((channel + 160) // 3 for channel in color) for color in colors]
        at = f"streams/{stream.name}"
        dots = rr.SeriesPoints(colors=pale, names=[f"{name} (raw)" for name in names], marker_sizes=[1.0] * count)
        self.recording.log(f"{at}/samples", dots, static=True)
        self.recording.log(f"{at}/fused", rr.SeriesLines(colors=colors, names=names, widths=[1.5] * count), static=True)
        self.recording.log(
            f"age/{stream.name}", rr.SeriesLines(names=[stream.name], colors=[colors[0] if colors else 0]), static=True
        )

    def _send(self, entity: str, times_ns: Int64, columns: Any) -> None:
        if len(times_ns):
            self.recording.send_columns(entity, self.times(times_ns), columns)

    def samples(self, name: str, times_ns: Int64, values: NDArray[Any]) -> None:
        """Draw (M, D) raw samples as points."""
        self._scalars(f"streams/{name}/samples", times_ns, values)

    def _scalars(self, entity: str, times_ns: Int64, values: NDArray[Any]) -> None:
        """Send (M, D) numbers, of at most MAX_LINES columns."""
        drawn = np.ascontiguousarray(values[:, :MAX_LINES], np.float64)
        if drawn.size:
            self._add("scalars", entity, times_ns, drawn, drawn.nbytes)

    def fused(
        self,
        name: str,
        ticks_ns: Int64,
        values: NDArray[Any] | None,
        valid: NDArray[Any] | None,
        age_ms: NDArray[Any] | None,
    ) -> None:
        """Draw the ticks of a stream: (T, D) values as lines with gaps, (T,) states as a strip, and (T,) ages."""
        has = np.ones(len(ticks_ns), bool) if valid is None else valid > 0
        if valid is not None:
            self.states(f"{VALIDITY}/{name}", ticks_ns, [STATES.get(state, "invalid") for state in valid.tolist()])
        if age_ms is not None:
            self._scalars(f"age/{name}", ticks_ns, np.where(has, age_ms, np.nan)[:, None])
        if values is not None:
            self._scalars(f"streams/{name}/fused", ticks_ns, np.where(has[:, None], values, np.nan))

    def interrupt(self, name: str, time_ns: int) -> None:
        """End the lines of a stream, which continue in another episode."""
        at, stream = np.array([time_ns], np.int64), self.streams[name]
        self._scalars(f"age/{name}", at, np.full((1, 1), np.nan))
        if stream.kind == "vector":
            self._scalars(f"streams/{name}/fused", at, np.full((1, len(stream.components)), np.nan))

    def states(self, entity: str, times_ns: Int64, states: Sequence[str]) -> None:
        """Draw states as a strip; only their changes are stored."""
        rr, last = self.rr, self._states.get(entity)
        if last is None and entity.startswith(VALIDITY):
            colors = np.array(list(COLORS.values()), np.uint32)
            self.recording.log(entity, rr.StateConfiguration(values=list(COLORS), colors=colors), static=True)
        changes = [index for index, state in enumerate(states) if state != (states[index - 1] if index else last)]
        self._changes[entity] += len(changes)
        if changes:
            self._send(entity, times_ns[changes], rr.StateChange.columns(state=[states[index] for index in changes]))
        if states:
            self._states[entity] = states[-1]

    def pose(
        self, name: str, times_ns: Int64, positions: NDArray[Any] | None, quaternions: NDArray[Any] | None
    ) -> None:
        """Draw (T, 3) positions and (T, 4) xyzw quaternions in 3D as axes, and the path of the positions as a line."""
        columns = self.rr.Transform3D.columns(
            **({} if positions is None else {"translation": positions}),
            **({} if quaternions is None else {"quaternion": quaternions}),
        )
        self._send(f"world/poses/{name}", times_ns, columns)
        if positions is not None and len(positions):
            cuts = np.flatnonzero(np.diff(times_ns) > PATH_GAP_NS) + 1
            self._trails[name] += np.split(positions.astype(np.float32), cuts)

    def encoded_image(self, name: str, time_ns: int, file: bytes) -> None:
        """Show the jpeg or png file of a camera, as it is."""
        self._add("image", f"cameras/{name}", time_ns, file, len(file))

    def pixels(self, name: str, time_ns: int, image: NDArray[Any]) -> None:
        """Show an (H, W, C) image as a small jpeg; other numbers than 8-bit ones become grey levels."""
        image = grey_levels(image)
        step = -(-max(image.shape[:2]) // MAX_SIDE)
        small = np.ascontiguousarray(image[::step, ::step, 0 if image.shape[2] != 3 else slice(None)])
        file = io.BytesIO()
        need("PIL.Image", "view").fromarray(small).save(file, "jpeg", quality=JPEG_QUALITY)
        self.encoded_image(name, time_ns, file.getvalue())

    def packet(self, name: str, time_ns: int, packet: bytes, codec: str) -> None:
        """Show a packet of H.264 or H.265 video (h264, hevc), as it is."""
        entity, rr = f"cameras/{name}", self.rr
        kind = rr.VideoCodec.H264 if codec == "h264" else rr.VideoCodec.H265
        self._once(entity, lambda: rr.VideoStream(codec=kind))
        self._add("video", entity, time_ns, packet, len(packet))

    def cloud(self, name: str, time_ns: int, points: NDArray[np.float32]) -> None:
        """Show (N, 3) points in metres; at most MAX_POINTS are expected."""
        self._add("points", f"world/{name}/points", time_ns, points, points.nbytes)

    def voxels(self, name: str, time_ns: int, centres: NDArray[np.float32], size_m: tuple[float, ...]) -> None:
        """Show occupied voxels by their (N, 3) centres; none clears them."""
        centres = centres[:: -(-len(centres) // MAX_VOXELS) or 1]
        entity = f"world/{name}/voxels"
        self._once(entity, lambda: self.rr.Boxes3D.from_fields(fill_mode=self.rr.components.FillMode.Solid))
        self._add("voxels", entity, time_ns, (centres, size_m), 3 * centres.nbytes)

    def video_file(self, name: str, path: str, times_ns: Int64, frames_ns: Int64) -> None:
        """Show the frames of a video file, which becomes part of the recording once."""
        asset = f"videos/{printable(path, 200)}"
        self._once(asset, lambda: self.rr.AssetVideo(path=path))
        reference = self.rr.VideoFrameReference
        columns = [
            *reference.columns_nanos(frames_ns),
            *reference.columns(video_reference=[asset] * len(frames_ns)),
        ]
        self._send(f"cameras/{name}", times_ns, columns)

    def executed(self, name: str, ticks_ns: Int64, rows: NDArray[Any], components: Sequence[str]) -> None:
        """Draw (T, D) executed commands over a stream; NaN where none was sent."""
        entity = f"streams/{name}/executed"
        self._line_style(entity, [f"{each} (executed)" for each in components[:MAX_LINES]], EXECUTED, 1.5)
        self._scalars(entity, ticks_ns, rows)

    def chunk(self, name: str, ticks_ns: Int64, actions: NDArray[Any], components: Sequence[str]) -> None:
        """Draw a predicted chunk of (H, D) actions over a stream, as a line of its own."""
        self._lane = (self._lane + 1) % CHUNK_LANES
        entity = f"streams/{name}/chunks/{self._lane}"
        self._line_style(entity, [f"{each} (chunk)" for each in components[:MAX_LINES]], PLANNED, 0.75)
        ending = np.full((1, actions.shape[1]), np.nan)  # the next chunk in this entity does not continue the line
        self._scalars(entity, np.append(ticks_ns, ticks_ns[-1] + 1), np.concatenate([actions, ending]))

    def scalar(self, entity: str, times_ns: Int64, values: NDArray[Any]) -> None:
        """Draw (M,) numbers as points."""
        style = {"names": [entity.rpartition("/")[2]], "colors": [PALETTE[3]], "marker_sizes": [3.0]}
        self._once(entity, lambda: self.rr.SeriesPoints(**style))
        self._scalars(entity, times_ns, values[:, None])

    def _line_style(self, entity: str, names: Sequence[str], color: tuple[int, ...], width: float) -> None:
        count = len(names)
        self._once(entity, lambda: self.rr.SeriesLines(names=names, colors=[color] * count, widths=[width] * count))

    def _once(self, entity: str, make: Callable[[], Any]) -> None:
        """Log what does not change of an entity, unless it is logged."""
        if entity not in self._static:
            self._static.add(entity)
            self.recording.log(entity, make(), static=True)

    def _add(self, kind: str, entity: str, times_ns: int | Int64, item: Any, nbytes: int) -> None:
        batch = self._batches[kind, entity]
        batch.times.append(np.atleast_1d(np.asarray(times_ns, np.int64)))
        batch.items.append(item)
        batch.nbytes += nbytes
        if batch.nbytes > BATCH_BYTES:
            self._flush(kind, entity)

    def _flush(self, kind: str, entity: str) -> None:
        batch, rr = self._batches.pop((kind, entity)), self.rr
        if kind == "scalars":
            columns = rr.Scalars.columns(scalars=np.concatenate(batch.items))
        elif kind == "image":
            columns = rr.EncodedImage.columns(blob=batch.items)
        elif kind == "video":
            columns = rr.VideoStream.columns(sample=batch.items)
        elif kind == "points":
            points = np.concatenate(batch.items)
            colors = _by_height(points, (90, 120, 160), (235, 235, 235))
            columns = rr.Points3D.columns(positions=points, colors=colors).partition(
                [len(each) for each in batch.items]
            )
        else:
            centres = np.concatenate([each for each, _ in batch.items])
            halves = np.concatenate([np.tile(np.array(size) / 2, (len(each), 1)) for each, size in batch.items])
            colors = _by_height(centres, (31, 82, 120, VOXEL_ALPHA), (255, 193, 84, VOXEL_ALPHA))
            made = rr.Boxes3D.columns(centers=centres, half_sizes=halves.astype(np.float32), colors=colors)
            columns = made.partition([len(each) for each, _ in batch.items])
        self._send(entity, np.concatenate(batch.times), columns)

    def flush(self) -> None:
        """Send what waits for more."""
        for key in list(self._batches):
            self._flush(*key)

    def close(self) -> None:
        """Send what is left."""
        self.flush()
        for name, strips in self._trails.items():
            path = self.rr.LineStrips3D(strips, colors=[PALETTE[6]], radii=[PATH_RADIUS])
            self.recording.log(f"world/paths/{name}", path, static=True)
        self._axes()  # of the length that fits the paths

    def blueprint(self) -> Any:
        """Return the layout: cameras and 3D on the left, streams on the right, with a tab of their own each."""
        rrb = need("rerun.blueprint", "view")
        cameras = [
            rrb.Spatial2DView(origin=f"cameras/{s.name}", name=s.name)
            for s in self.streams.values()
            if s.kind == "image"
        ]
        left = [rrb.Grid(*cameras, name="cameras")] if cameras else []
        left += [
            rrb.Spatial3DView(
                origin="world",
                contents=[f"+ {name}" for name in names],
                name=frame or "3D",
                eye_controls=self._eye(rrb, frame),
            )
            for frame, names in self._spaces().items()
        ]
        vectors = [s for s in self.streams.values() if s.kind == "vector"]
        known = (
            [name for name in self.streams if f"{VALIDITY}/{name}" in self._states] if self._states else self.streams
        )
        uneven = [name for name in known if self._changes[f"{VALIDITY}/{name}"] > 1] or list(known)
        tabs = [
            self._stack(
                rrb,
                f"streams {first + 1} to {min(first + PLOTS, len(vectors))}",
                [self._plot(rrb, f"streams/{s.name}", s.name) for s in vectors[first : first + PLOTS]],
                uneven[:STRIPS],
                "age",
            )
            for first in range(0, len(vectors), PLOTS)
        ]
        tabs += [
            self._stack(
                rrb,
                s.name,
                [self._plot(rrb, f"streams/{s.name}", f"{s.name} ({s.unit})" if s.unit else s.name)],
                [s.name] if s.name in known else [],
                f"age/{s.name}",
            )
            for s in vectors
        ]
        right = rrb.Tabs(*tabs, active_tab=0) if tabs else self._strip(rrb, VALIDITY, "validity")
        drawn = {*self._static, *self._states}
        events = [self._strip(rrb, EVENTS, "events")] if any(each.startswith(EVENTS) for each in drawn) else []
        events += [self._plot(rrb, NUMBERS, "steps")] if any(each.startswith(NUMBERS) for each in drawn) else []
        if events:
            right = rrb.Vertical(right, *events, row_shares=[5, *(1 for _ in events)])
        body = rrb.Horizontal(rrb.Vertical(*left), right, column_shares=[2, 3]) if left else right
        panels = (
            rrb.BlueprintPanel(state="collapsed"),
            rrb.SelectionPanel(state="collapsed"),
            rrb.TimePanel(state="collapsed"),
        )
        return rrb.Blueprint(body, *panels)

    def _stack(self, rrb: Any, name: str, plots: list[Any], strips: Sequence[str], ages: str) -> Any:
        """Return plots above each other, and below them the strips and the ages of streams that have them."""
        shares = [PLOT_SHARE for _ in plots]
        if strips:
            entities = [f"{VALIDITY}/{stream}" for stream in strips]
            plots += [self._strip(rrb, VALIDITY, "validity", entities), self._plot(rrb, ages, "age (ms)")]
            shares += [1.4 + 0.8 * len(strips), 2]
        return rrb.Vertical(*plots, row_shares=shares, name=name)

    def _spaces(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for stream in self.streams.values():
            if stream.kind == "cloud":
                found.setdefault(stream.frame, []).append(f"world/{stream.name}/**")
            elif stream.pose:
                found.setdefault(stream.frame, []).extend([f"world/poses/{stream.pose}", f"world/paths/{stream.pose}"])
        return found

    def _eye(self, rrb: Any, frame: str) -> Any:
        """Return an eye that sees the poses of a frame with their axes; None for a frame with clouds: Rerun's own."""
        if any(stream.kind == "cloud" and stream.frame == frame for stream in self.streams.values()):
            return None
        middle, span = self._extent(frame)
        distance = max(span, 2 * AXES_M)
        return rrb.EyeControls3D(position=middle + distance * EYE, look_target=middle, eye_up=(0, 0, 1))

    def _plot(self, rrb: Any, origin: str, name: str) -> Any:
        legend = rrb.PlotLegend(visible=False)
        return rrb.TimeSeriesView(origin=origin, name=name, axis_x=self._linked(rrb), plot_legend=legend)

    def _strip(self, rrb: Any, origin: str, name: str, entities: Sequence[str] = ()) -> Any:
        contents = [f"+ {entity}" for entity in entities] or "$origin/**"
        return rrb.StateTimelineView(origin=origin, contents=contents, name=name, time_view=self._linked(rrb))

    def _linked(self, rrb: Any) -> Any:
        return rrb.TimeAxis(link=rrb.components.LinkAxis.LinkToGlobal)


def _by_height(points: NDArray[np.float32], low: tuple[int, ...], high: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the (N, 3 or 4) colours of points by their z."""
    z = points[:, 2]
    span = float(np.ptp(z)) if len(z) else 0.0
    steps = np.linspace(low, high, 256).astype(np.uint8)
    return steps[((z - z.min()) * (255 / span) if span else np.zeros(len(z))).astype(np.uint8)]


def open_recording(name: str) -> Any:
    """Return a new recording of Rerun.

    Errors:
        RoboCacheError: rerun-sdk is not installed, or too old.
    """
    rr = need("rerun", "view")
    if not hasattr(rr, "StateChange"):
        raise RoboCacheError(
            f"rerun: {rr.__version__} is too old; install a newer one with: pip install 'robocache_ros[view]'"
        )
    recording = rr.RecordingStream(APPLICATION)
    recording.send_recording_name(name)
    return recording
