"""What the node publishes during a replay over real DDS is, bit for bit, what an offline run makes of the recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, Image, PointCloud2, PointField
from std_msgs.msg import Float32MultiArray, Header, String

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.engine import Frames, FusionEngine, Ingest, offline
from robocache_ros.nodes import frame_messages
from robocache_ros.nodes.middleware import latched
from robocache_ros.spec import TF_TYPE, FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.fuzz.messages import header, serialize
from test.nodes.rig import PANDA, Rig, clock_cdr, until


@dataclass
class Live:
    """The window of each message, images and voxels by tick, and the last diagnostics of each stream."""

    windows: list[tuple[int, torch.Tensor]]
    media: dict[str, dict[int, torch.Tensor]]
    counters: dict[str, dict[str, str]]

    @property
    def rows(self) -> dict[int, torch.Tensor]:
        """The newest row of each window, by its tick."""
        return {tick: window[-1] for tick, window in self.windows}


def replay(
    rig: Rig, given: dict[str, Any], last_ns: int, recording: Path = PANDA, *,
    node: Any = None, media: bool = False, parameters: dict[str, Any] | None = None, **options: Any,
) -> Live:  # fmt: skip
    """Replay a recording until a tick is published, by a node of its own where no active one is given.

    Media are listened to on request; a reader that is slow is not waited for, and misses some.
    """
    spec = load_spec(given)
    given_parameters = {"use_sim_time": True, "diagnostics_period_s": 0.2} | (parameters or {})
    process = None if node else rig.process(given, **given_parameters)
    rig.diagnostics.raw.clear()  # of an earlier node
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    streams = spec.media if media else ()
    aligned = {
        stream.name: rig.listen(PointCloud2 if stream.voxels else Image, f"/fusion_node/{stream.name}/aligned")
        for stream in streams
    }
    until(lambda: all(i.subscription.get_publisher_count() for i in (fused, *aligned.values())), "the node's topics")
    rig.play(recording, **options)
    until(lambda: len(fused) and frame_messages.read_fused(fused.newest)[0] >= last_ns, "the last tick")
    until(lambda: int(rig.counts("ticks").get("newest_tick_ns") or 0) >= last_ns, "the last counters")
    live = Live(
        [frame_messages.read_fused(message) for message in fused.messages],
        {
            stream.name: {
                frame_messages.stamp_ns(message.header): frame_messages.read_voxels(message, stream.voxels)
                if stream.voxels
                else frame_messages.read_image(message)
                for message in aligned[stream.name].messages
            }
            for stream in streams
        },
        {stream.name: rig.counts(stream.name) for stream in spec.streams},
    )
    if process:
        assert process.stop() == 0, process.log.read_text()
    return live


SPEC = Path(__file__).parents[3] / "config" / "panda_lift.yaml"
SECONDS = 3.0
AFTER_THE_LAST_CLOCK = 2  # messages of a stream that the node has received, and not counted, when a replay ends


@dataclass
class Offline:
    """The frames of an offline run."""

    spec: FusionSpec
    ticks_ns: list[int]
    rows: torch.Tensor
    media: dict[str, torch.Tensor]
    counters: dict[str, Any]


def offline_run(spec: FusionSpec, visibility: str) -> Offline:
    engine = FusionEngine(spec, unbounded=True)
    with Bag(PANDA) as bag:
        ingest = Ingest(spec, engine, bag.definitions)
        first_ns, last_ns = bag.start_ns, bag.start_ns + round(SECONDS * 1e9)
        fed = [(s.name, s.topic) for s in spec.streams]
        source = (
            (name, message.log_ns, message.data)
            for message in bag.messages({s.topic for s in spec.streams}, first_ns, last_ns)
            for name, topic in fed
            if topic == message.topic
        )
        frames: list[Frames] = list(offline.run(source, ingest, first_ns, last_ns, visibility=visibility))
    return Offline(
        spec,
        np.concatenate([f.ticks_ns for f in frames]).tolist(),
        torch.cat([f.rows() for f in frames]),
        {s.name: torch.cat([f.media[s.name] for f in frames if f.media[s.name].numel()]) for s in spec.media},
        dict(ingest.counters),
    )


def replayed(rig: Rig, given: dict[str, Any], rate: float, **options: Any) -> Live:
    """Replay the first seconds; it waits for a subscriber of each topic."""
    spec = load_spec(given)
    with Bag(PANDA) as bag:
        last_ns = bag.start_ns + round((SECONDS - 0.05) * 1e9) - spec.cut_ns  # due before the last message
    topics = tuple({feed.topic for feed in spec.feeds})
    return replay(rig, given, last_ns, rate=rate, duration_s=SECONDS, topics=topics, **options)


def undisturbed(play: Callable[[], Live], reference: Offline) -> Live:
    """A replay in which the node received each message as early as in the offline run, of at most twenty.

    The node expects that messages which were published before a message of /clock arrive before it. Where a machine is
    so busy that the transport repeats an image, this one comes after: the node counts it as late, or not at all if no
    /clock follows. One that is late in the offline run too can then miss one tick more, which has an older one. Such a
    replay shows nothing about the rows.
    """
    older: list[int] = []
    for _ in range(20):
        live = play()
        late = {name: int(counts["late"]) for name, counts in live.counters.items()}
        received = {name: int(counts["received"]) for name, counts in live.counters.items()}
        if all(
            late[name] <= counts["late"] and received[name] >= counts["received"] - AFTER_THE_LAST_CLOCK
            for name, counts in reference.counters.items()
        ) and not (older := ticks_with_older_samples(live, reference)):
            return live
    raise AssertionError(
        f"in twenty replays messages came late: {late}, {received}, older at {older}; offline: {reference.counters}"
    )


def paired(live: Live, reference: Offline) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """The ticks of a replay, and the rows of both."""
    index = {tick: row for row, tick in enumerate(reference.ticks_ns)}
    rows = live.rows
    ticks = sorted(rows)
    assert len(ticks) > 30  # a reader that stalls misses some
    assert set(ticks) <= set(index)
    return ticks, torch.stack([rows[tick] for tick in ticks]), reference.rows[[index[tick] for tick in ticks]]


def ticks_with_older_samples(live: Live, reference: Offline) -> list[int]:
    """The ticks at which a stream is older than offline, or not there."""
    columns = Layout(reference.spec).columns
    valid, age = ([i for i, column in enumerate(columns) if column.quantity == kind] for kind in ("valid", "age"))
    ticks, ours, theirs = paired(live, reference)
    older = (theirs[:, valid] > ours[:, valid]) | ((ours[:, valid] > 0) & (ours[:, age] > theirs[:, age]))
    return [ticks[row] for row in older.any(1).nonzero().flatten().tolist()]


def assert_same_rows(live: Live, reference: Offline) -> None:
    layout = Layout(reference.spec)
    ticks, ours, theirs = paired(live, reference)
    differs = (ours.view(torch.int32) != theirs.view(torch.int32)).nonzero()
    at = [
        (ticks[row], layout.columns[column].name, *(float(v[row, column]) for v in (ours, theirs)))
        for row, column in differs.tolist()
    ]
    assert not at, f"{len(differs[:, 0].unique())} of {len(ticks)} ticks differ: {at[:3]}; {live.counters}"


@pytest.fixture(scope="module")
def ideal(panda_spec):
    return offline_run(load_spec(panda_spec), "ideal")


@pytest.fixture(scope="module")
def live(tmp_path_factory, panda_spec, ideal):
    """A replay of the example spec at its own rate."""

    def play() -> Live:
        with closing(Rig(tmp_path_factory.mktemp("live"))) as rig:
            return replayed(rig, panda_spec, 1.0, media=True)

    return undisturbed(play, ideal)


def test_live_rows_equal_the_offline_run(live, panda_spec, ideal):
    assert_same_rows(live, offline_run(load_spec(panda_spec), "deployed"))
    assert_same_rows(live, ideal)  # nothing comes later than delay_ms, so that the robot sees all that there is


def test_live_images_and_voxels_equal_the_offline_run(live, ideal):
    index = {tick: row for row, tick in enumerate(ideal.ticks_ns)}
    for name in ("front", "wrist", "voxels"):
        skipped = len(ideal.ticks_ns) - len(ideal.media[name])
        same = [
            torch.equal(value, ideal.media[name][index[tick] - skipped]) for tick, value in live.media[name].items()
        ]
        assert len(same) > 50  # a reader that is slow is not waited for
        assert all(same), f"{name}: {same.count(False)} of {len(same)} ticks differ"


def test_each_window_holds_the_rows_of_the_ticks_before_it(live):
    rows = live.rows
    for tick_ns, window in live.windows:
        for back, row in enumerate(reversed(window)):
            before = rows.get(tick_ns - back * 20_000_000)
            assert torch.equal(row, torch.zeros_like(row) if before is None else before)


@pytest.mark.parametrize("eager", [True, False])
def test_eager_rows_and_best_effort_at_eight_times_the_rate_equal_the_offline_run(rig, panda_spec, eager):
    # Not eager: best effort, ten messages deep, of which a reliable replay loses nothing.
    given = panda_spec | {"emit": "eager"} if eager else yaml.safe_load(SPEC.read_text())
    reference = offline_run(load_spec(given), "deployed")
    play = partial(replayed, rig, given, 4.0 if eager else 8.0, parameters={"reliable": not eager})
    assert_same_rows(undisturbed(play, reference), reference)


def test_short_delay_marks_the_same_late_frames_as_the_deployed_run(rig, panda_spec, ideal):
    given = panda_spec | {"delay_ms": 45, "lead_ms": 15}  # the front camera takes 38 ms, the cloud 55 ms
    reference = offline_run(load_spec(given), "deployed")
    live = undisturbed(lambda: replayed(rig, given, 4.0), reference)
    assert_same_rows(live, reference)
    assert reference.counters["front"]["late"] > 30
    with pytest.raises(AssertionError, match="ticks differ"):
        assert_same_rows(live, ideal)


def test_live_windows_equal_the_offline_run(rig, panda_spec):
    joints = panda_spec["streams"]["joint_position"]
    window = {key: joints[key] for key in ("topic", "type", "names", "qos") if key in joints} | {"align": "window"}
    streams = {"arm": joints, "fast": window | {"samples": 8}, "smooth": window | {"samples": 40, "reduce": "mean"}}
    given = panda_spec | {"streams": streams}
    reference = offline_run(load_spec(given), "deployed")
    live = undisturbed(lambda: replayed(rig, given, 4.0), reference)
    assert_same_rows(live, reference)
    ages = reference.rows[:, -8:]
    assert (ages >= 0).all(dim=1).float().mean() > 0.8  # 500 Hz on 50 Hz ticks: ten samples for eight rows
    assert any("window_overflow" in counts for counts in live.counters.values())


MS, S = 1_000_000, 1_000_000_000
LOG = 1_760_000_000 * S
POSE, ARRAY, CLOCK = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray", "rosgraph_msgs/msg/Clock"
CLOUD, IMAGE, INFO = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"
QOS = {"reliability": "reliable", "depth": 5000}
Message = tuple[str, int, bytes]


def exported(recording: Path, spec: dict[str, Any]) -> tuple[BagRun, list[Frames], list[int]]:
    """The run over a recording with what had arrived at each tick, its frames and its ticks."""
    with Bag(recording) as bag:
        run = BagRun(bag, load_spec(spec), visibility="deployed", trim=False)
        parts = list(run.frames())
    return run, parts, np.concatenate([part.ticks_ns for part in parts]).tolist()


def pose(stamp_ns: int, x: float) -> bytes:
    return serialize(POSE, {"header": header(stamp_ns), "pose": {"position": {"x": x}, "orientation": {"w": 1.0}}})


def messages(
    start_ns: int, seconds: float, time_of: Callable[[int], int], seed: int = 0, *, clock: bool = False, nan: float = 0
) -> Iterable[Message]:
    """Poses at 50 Hz and commands at 20 Hz from a log time on, stamped by a clock and logged up to 15 ms later."""
    rng, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1)

    def number() -> float:
        return float(rng.normal()) if chance.random() >= nan else np.nan

    for k in range(round(50 * seconds)):
        log = start_ns + 20 * k * MS
        delay = int(rng.integers(0, 15 * MS))
        yield "/pose", log + delay, pose(time_of(log), number())
        yield "/base", log + delay, pose(time_of(log), 0.0)
        lidar = (log - LOG) * (10**6 - 150) // 10**6 + 77 * S  # since its start, and slower by 150 ppm
        yield "/lidar", log + int(rng.integers(0, 15 * MS)), pose(lidar, float(rng.normal()))
    for k in range(round(20 * seconds)):
        yield "/command", start_ns + 50 * k * MS + 7 * MS, serialize(ARRAY, {"data": [number()]})
    if clock:
        for k in range(round(100 * seconds)):
            yield "/clock", start_ns + 10 * k * MS, clock_cdr(time_of(start_ns + 10 * k * MS))


def slow(log_ns: int) -> int:
    """A simulation at 0.9 of the speed."""
    return 12 * S + (log_ns - LOG) * 9 // 10


def again(log_ns: int) -> int:
    """The same after a reset."""
    return 12 * S + (log_ns - LOG - 3 * S) * 9 // 10


RECORDINGS: dict[str, list[Message]] = {
    "a device with a clock of its own, numbers that are not finite": [*messages(LOG, 4, lambda log: log, nan=0.05)],
    "a reset": [*messages(LOG, 3, slow), *messages(LOG + 3 * S, 3, again, 1)],
    "a reset with /clock": [*messages(LOG, 3, slow, clock=True), *messages(LOG + 3 * S, 3, again, 1, clock=True)],
}
CLOCKS: dict[str, Any] = {
    "robocache": 1,
    "rate_hz": 50,
    "delay_ms": 30,
    "streams": {
        "pose": {"topic": "/pose", "type": POSE, "field": "pose.position", "qos": QOS},
        "lidar": {"topic": "/lidar", "type": POSE, "field": "pose.position", "stamp": "device", "qos": QOS},
        "command": {"topic": "/command", "type": ARRAY, "dim": 1, "align": "hold", "qos": QOS},
    },
}


def between_jumps(rows: list[tuple[int, torch.Tensor]]) -> list[dict[int, torch.Tensor]]:
    """Rows by tick, a mapping for each time that the timeline began anew."""
    parts: list[dict[int, torch.Tensor]] = [{}]
    for tick, row in rows:
        if parts[-1] and tick <= max(parts[-1]):
            parts.append({})
        parts[-1][tick] = row
    return parts


@pytest.mark.parametrize("name", RECORDINGS)
def test_live_rows_equal_the_deployed_export(rig, name, tmp_path):
    recorded = sorted(RECORDINGS[name], key=lambda message: message[1])
    used = {topic for topic, _, _ in recorded}
    types = {"/pose": POSE, "/base": POSE, "/lidar": POSE, "/command": ARRAY, "/clock": CLOCK}
    path = write_bag(tmp_path / "bag", {topic: kind for topic, kind in types.items() if topic in used}, recorded)
    run, frames, ticks = exported(path, CLOCKS)
    reference = between_jumps(list(zip(ticks, torch.cat([part.rows() for part in frames]), strict=True)))

    last_ns = ticks[-1] - run.spec.cut_ns - 100 * MS
    found = replay(rig, CLOCKS, last_ns, path, rate=4.0, topics=("/pose", "/lidar", "/command"))
    live = between_jumps([(tick, window[-1]) for tick, window in found.windows])

    assert len(live) == len(reference) == (2 if "reset" in name else 1)
    for ours, theirs in zip(live, reference, strict=True):
        assert len(ours) > 0.85 * len(theirs)
        assert set(ours) <= set(theirs)
        differ = [
            tick for tick in ours if not torch.equal(ours[tick].view(torch.int32), theirs[tick].view(torch.int32))
        ]
        assert not differ, f"{len(differ)} of {len(ours)} ticks differ, the first at {differ[0]}"
    assert found.counters["lidar"]["device_skew_ppm"]
    assert torch.cat([part.fused for part in frames]).isfinite().all()
    assert bool(run.counters["command"]["dropped:not_finite"]) == ("finite" in name)
    assert (run.valid[20:-20] > 0).all(axis=1).mean() > 0.8


HEIGHT, WIDTH, FRAMES = 24, 32, 60
DEPTH_GRID = {"origin_m": [-1, -1, 0], "size_m": 0.125, "shape": [16, 16, 24]}


def given(**keys: Any) -> dict[str, Any]:
    voxels = {**DEPTH_GRID, "reduce": "mean", "features": ["r", "g", "z"]}
    stream = {"topic": "/depth", "type": IMAGE, "camera_info": "/info", "color": "/color", "voxels": voxels}
    streams = {"rgbd": {**stream, "max_age_ms": 80, "qos": QOS, **keys}}
    return {"robocache": 1, "delay_ms": 60, "streams": streams}


def optical(stamp_ns: int) -> Header:
    return Header(stamp=frame_messages.stamp(stamp_ns), frame_id="optical")


def image(stamp_ns: int, pixels: np.ndarray, encoding: str) -> Image:
    row = {"step": pixels.nbytes // HEIGHT, "data": pixels.tobytes()}
    return Image(header=optical(stamp_ns), height=HEIGHT, width=WIDTH, encoding=encoding, **row)


def camera_info(stamp_ns: int) -> CameraInfo:
    k = [28.0, 0.0, 15.5, 0.0, 29.0, 11.5, 0.0, 0.0, 1.0]
    return CameraInfo(header=optical(stamp_ns), height=HEIGHT, width=WIDTH, distortion_model="plumb_bob", k=k)


@pytest.fixture
def rgbd(tmp_path):
    """Two seconds at 30 Hz: colour 3 ms after depth, arriving before or after it, some of it lost."""
    rng = np.random.default_rng(7)
    sent = []
    for k in range(FRAMES):
        stamp = LOG + k * 33 * MS
        depth = (rng.uniform(0.2, 3.2, (HEIGHT, WIDTH)) * 1000).astype(np.uint16)
        color = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        sent.append((stamp + 1 * MS, "/info", camera_info(stamp)))
        sent.append((stamp + int(rng.integers(2, 40)) * MS, "/depth", image(stamp, depth, "16UC1")))
        if rng.random() < 0.9:
            sent.append((stamp + int(rng.integers(4, 40)) * MS, "/color", image(stamp + 3 * MS, color, "rgb8")))
    sent.sort(key=lambda entry: entry[0])
    types = {"/depth": IMAGE, "/info": INFO, "/color": IMAGE}
    return write_bag(tmp_path / "bag", types, [(topic, at, serialize_message(m)) for at, topic, m in sent])


def test_live_grids_of_a_depth_camera_equal_those_of_the_recording(rig, rgbd):
    _, parts, ticks = exported(rgbd, given())
    expected = dict(zip(ticks, torch.cat([part.media["rgbd"] for part in parts]), strict=True))
    live = replay(rig, given(), max(expected) - 200 * MS, rgbd, media=True, rate=2.0).media["rgbd"]
    same = [torch.equal(grid, expected[tick]) for tick, grid in live.items() if tick in expected]
    assert len(same) >= 10
    assert all(same), f"{same.count(False)} of {len(same)} ticks differ"
    # The comparison is of voxels, not of zeros.
    assert sum(bool(grid.any()) for grid in live.values()) >= 0.5 * len(live)


def test_a_camera_without_camera_info_is_said_in_the_diagnostics(rig):
    rig.fusion(given(color="/color")).autostart()
    depth = rig.publisher(Image, "/depth")
    until(depth.get_subscription_count, "the node's subscription")
    pixels = np.full((HEIGHT, WIDTH), 1000, np.uint16)

    def reported() -> bool:
        depth.publish(image(time.time_ns(), pixels, "16UC1"))
        status = rig.status("rgbd")
        return status and "camera_info" in status.message and "unpaired:camera_info" in rig.counts("rgbd")

    until(reported, "the missing camera_info")


@pytest.mark.parametrize(("big_endian", "padding"), [(False, 0), (True, 3)])
def test_a_cloud_has_the_coordinates_that_sensor_msgs_py_reads(big_endian, padding):
    point_cloud2 = pytest.importorskip("sensor_msgs_py.point_cloud2", reason="is a package of ROS")
    from robocache_ros.ops.voxel.layouts import CloudLayout, check_cloud, column_sources
    from robocache_ros.ops.voxel.voxelize import cloud_columns

    order = ">" if big_endian else "<"
    names, kinds, offsets = ("x", "y", "z", "intensity", "ring"), ("f4", "f4", "f4", "f8", "u2"), (0, 4, 8, 16, 24)
    rng = np.random.default_rng(3)
    layout = {"names": names, "formats": [order + k for k in kinds], "offsets": offsets, "itemsize": 26 + padding}
    points = np.zeros((5, 7), layout)
    for name, kind in zip(names, kinds, strict=True):
        points[name] = rng.normal(size=points.shape) * 10 if kind[0] == "f" else rng.integers(0, 9, points.shape)
    codes = {"f4": PointField.FLOAT32, "f8": PointField.FLOAT64, "u2": PointField.UINT16}
    fields = [
        PointField(name=name, offset=offset, datatype=codes[kind], count=1)
        for name, offset, kind in zip(names, offsets, kinds, strict=True)
    ]
    cloud = PointCloud2(height=5, width=7, fields=fields, is_bigendian=big_endian, data=points.tobytes())
    cloud.point_step, cloud.row_step = points.itemsize, 7 * points.itemsize

    data = torch.frombuffer(bytearray(points.tobytes()), dtype=torch.uint8)
    read = point_cloud2.read_points(cloud, field_names=names, reshape_organized_cloud=False)  # swaps bytes in the cloud
    layout = CloudLayout(7, 5, cloud.point_step, cloud.row_step, tuple(fields), big_endian)
    known = check_cloud(data.numel(), layout)
    ours = cloud_columns(data.numpy(), known, column_sources(known, ("intensity", "ring")), None)
    for name, column in zip(names, ours, strict=True):
        assert np.array_equal(np.asarray(read[name]).reshape(-1).astype(np.float32), column)


TF = {"topic": "/tf", "type": TF_TYPE, "max_gap_ms": 150, "max_age_ms": 80}
GRID = {"origin_m": [-4, -4, -4], "size_m": 0.25, "shape": [32, 32, 32], "frame": "odom"}
MOVING = {
    "robocache": 1,
    "delay_ms": 60,
    "streams": {
        "tool": {**TF, "frames": ["base", "tool"]},
        "base": {**TF, "frames": ["odom", "base"]},
        "cube": {**TF, "frames": ["tool", "cube"]},
        "scan": {"topic": "/scan", "type": CLOUD, "voxels": GRID, "max_gap_ms": 150, "max_age_ms": 200},
    },
}


@pytest.fixture
def moving(tmp_path, tf_message, one_point):
    """Three seconds of odometry at 10 Hz, an arm at 40 Hz, a cube that the gripper takes after 1.5 s, and a lidar."""
    rng = np.random.default_rng(1)

    def pose() -> tuple[tuple[float, ...], tuple[float, ...]]:
        q = rng.normal(size=4) * 0.3 + np.array([0, 0, 0, 1])
        return tuple(rng.normal(size=3)), tuple(q / np.linalg.norm(q))

    messages = []
    for ms in range(0, 3000, 25):
        t = LOG + ms * MS
        holder = "tool" if ms >= 1500 else "base"
        transforms = [(t, "base", "arm", *pose()), (t, "arm", "wrist", *pose()), (t, holder, "cube", *pose())]
        messages.append(("/tf", t + int(rng.integers(1, 90)) * MS, tf_message(*transforms)))
        if ms % 100 == 0:
            messages.append(("/tf", t + int(rng.integers(1, 30)) * MS, tf_message((t, "odom", "base", *pose()))))
            scan = one_point(t + 7 * MS, (0.5, 0.2, 1.0), "lidar")
            messages.append(("/scan", t + int(rng.integers(1, 50)) * MS, scan))
    fixed = tf_message((0, "wrist", "tool", (0, 0, 0.2)), (0, "arm", "lidar", (0, 0.1, 0)))
    messages.append(("/tf_static", LOG - 20 * MS, fixed))
    types = {"/tf": TF_TYPE, "/tf_static": TF_TYPE, "/scan": CLOUD}
    return write_bag(tmp_path / "recording", types, sorted(messages, key=lambda message: message[1]))


@pytest.mark.usefixtures("tf_as_bytes")
def test_poses_and_clouds_of_a_moving_sensor_are_those_of_the_recording(rig, moving):
    run, parts, ticks = exported(moving, MOVING)
    with Bag(moving) as bag:
        static, last_ns = next(bag.messages(["/tf_static"])).data, bag.stop_ns - 150 * MS
    rows = dict(zip(ticks, torch.cat([part.rows() for part in parts]), strict=True))
    grids = dict(zip(ticks, torch.cat([part.media["scan"] for part in parts]), strict=True))

    node = rig.fusion(MOVING, use_sim_time=True, reliable=True)
    node.autostart()
    publisher = rig.stranger().create_publisher(String, "/tf_static", latched(1))
    publisher.publish(static)
    until(lambda: node.parts.ingest.transforms.lookup("arm", "lidar"), "the static transforms")
    found = replay(rig, MOVING, last_ns, moving, node=node, media=True, rate=2.0, topics=("/tf", "/scan"))

    live = found.rows
    assert len(live) > 30
    width = run.layout.width
    for tick, row in live.items():
        assert row.numpy().tobytes() == rows[tick].numpy().tobytes(), tick
    valid = torch.stack([*live.values()])[:, width : width + 4]
    assert ((valid > 0).float().mean(dim=0) > 0.5).all()  # of each stream
    counters = node.parts.ingest.counters
    assert counters["cube"]["reparented"] >= 1
    assert counters["scan"]["accepted"] + counters["scan"]["late"] > 20  # most wait longer than delay_ms
    seen = found.media["scan"]
    assert len({grid.numpy().tobytes() for grid in seen.values()}) > 10
    assert all(torch.equal(grid, grids[tick]) for tick, grid in seen.items())
