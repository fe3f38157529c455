"""Depth images: which colour image they take, with message_filters as a second opinion, and their voxels by Ingest."""

import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from robocache_ros.decode import CameraPayload, DecodeError, ImagePayload, Sample, decode_compressed
from robocache_ros.engine import FusionEngine, Ingest, Outcome, ingest
from robocache_ros.engine.backends import media
from robocache_ros.engine.ingest import WAITING, DepthSynchronizer
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, T0
from test.fuzz.messages import header, serialize

US = 1_000
VOXELS = {"origin_m": [-1, -1, 0], "size_m": 0.5, "shape": [4, 4, 4]}
KEYS = {"topic": "/depth", "type": "sensor_msgs/msg/Image", "camera_info": "/info", "voxels": VOXELS}
PAIRED = {**KEYS, "color": "/color"}
COMPRESSED = {**KEYS, "type": "sensor_msgs/msg/CompressedImage"}
CAMERA = Sample(T0, CameraPayload(2, 1, (10.0, 10.0, 1.0, 0.0)))


def synchronizer(camera=CAMERA, *, live=False, keys=PAIRED, **more):
    stream = load_spec({"robocache": 1, "streams": {"rgbd": {**keys, **more}}}).stream("rgbd")
    made = DepthSynchronizer(stream, live=live)
    assert list(made.add("rgbd/camera_info", camera)) == []
    return made


def depth(at, **keys):
    """A depth image of 2x1 pixels, its time in its bytes."""
    data = np.array([at // US], np.uint32).view(np.uint8)
    return Sample(T0 + at, ImagePayload(data, "16UC1", 2, 1, 4), **keys)


def compressed_depth(at):
    """One of 2x1 pixels of 7 mm, as compressed_depth_image_transport packs it."""
    file = io.BytesIO()
    Image.fromarray(np.full((1, 2), 7, np.uint16)).save(file, "PNG")
    data = np.frombuffer(bytes(12) + file.getvalue(), np.uint8)
    return Sample(T0 + at, ImagePayload(data, "compressedDepth", source="16UC1"))


def color(at, width=2):
    data = np.zeros(3 * width, np.uint8)
    data[:4] = np.array([at // US], np.uint32).view(np.uint8)
    return Sample(T0 + at, ImagePayload(data, "rgb8", width, 1, 3 * width))


def halves(sample):
    """The times of the depth and of the colour image that a pair was made of."""
    data, at = sample.value.data, sample.value.color_at
    return tuple(US * int(np.frombuffer(part, np.uint32)[0]) for part in (data[:4], data[at : at + 4]))


def pairs(made, messages):
    """What is made of (kind, time) in the order of arrival."""
    found = []
    for kind, at in messages:
        feed, sample = ("rgbd", depth(at)) if kind == "depth" else ("rgbd/color", color(at))
        found += [halves(sample) for sample in made.add(feed, sample)]
    return found


def test_a_pair_is_stamped_as_its_depth_image():
    made = synchronizer()
    assert list(made.add("rgbd/color", color(3 * MS))) == []
    (sample,) = made.add("rgbd", depth(0, frame_id="optical"))
    assert (sample.stamp_ns, sample.frame_id) == (T0, "optical")


@pytest.mark.parametrize(
    ("colors", "expected"), [([0], [0]), ([5, 12], [12]), ([8, 12], [8]), ([31], []), ([30], [30]), ([10, 9], [10])]
)
def test_the_nearest_colour_within_pair_ms_is_taken_the_earlier_of_two(colors, expected):
    messages = [("color", at * MS) for at in colors] + [("depth", 10 * MS), ("color", 40 * MS)]
    assert pairs(synchronizer(), messages) == [(10 * MS, at * MS) for at in expected]


def test_a_lost_colour_image_costs_its_depth_image_and_no_other():
    made = synchronizer()
    sent = [(kind, k * 33 * MS) for k in range(6) for kind in ("depth", "color") if (kind, k) != ("color", 2)]
    assert pairs(made, sent) == [(k * 33 * MS,) * 2 for k in (0, 1, 3, 4, 5)]
    assert made.counters == {"unpaired": 1, "unpaired:color": 1}


def test_the_newest_intrinsics_count():
    made = synchronizer()
    list(made.add("rgbd/camera_info", CAMERA._replace(value=CameraPayload(2, 1, (20.0, 20.0, 1.0, 0.0)))))
    list(made.add("rgbd/color", color(0)))
    (sample,) = made.add("rgbd", depth(0))
    assert sample.value.camera == (20.0, 20.0, 1.0, 0.0)


def test_a_clock_that_jumps_back_leaves_no_image_of_the_time_before():
    made = synchronizer()
    later = 3600 * 1000 * MS
    assert pairs(made, [("color", later), ("depth", 0), ("color", 0)]) == []
    assert pairs(made, [("depth", 33 * MS), ("color", 33 * MS)]) == [(33 * MS, 33 * MS)]


@pytest.mark.parametrize(
    ("camera", "wide", "cause"), [((2, 1), 3, "color_size"), ((640, 480), 2, "camera_info_size"), ((0, 0), 2, "")]
)
def test_what_is_of_another_size_is_refused_and_the_next_image_is_not(camera, wide, cause):
    made = synchronizer(camera=Sample(T0, CameraPayload(*camera, (1.0, 1.0, 0.0, 0.0))))
    list(made.add("rgbd/color", color(0, wide)))
    if not cause:
        assert len(list(made.add("rgbd", depth(0)))) == 1
        return
    with pytest.raises(DecodeError) as caught:
        list(made.add("rgbd", depth(0)))
    assert caught.value.cause == cause
    list(made.add("rgbd/camera_info", CAMERA))
    assert pairs(made, [("depth", 33 * MS), ("color", 33 * MS)]) == [(33 * MS, 33 * MS)]


@pytest.mark.parametrize("live", [False, True])
def test_compressed_depth_is_decompressed(live):
    made = synchronizer(live=live, keys=COMPRESSED)
    (sample,) = made.add("rgbd", compressed_depth(0))
    assert sample.value.data.view(np.uint16).tolist() == [7, 7]


def test_a_live_depth_image_past_the_limit_is_dropped_and_the_next_one_is_used(monkeypatch):
    release, slow = threading.Event(), compressed_depth(0)

    def decode(image):
        if image is slow.value:
            assert release.wait(30)
        return decode_compressed(image)

    monkeypatch.setattr(ingest, "decode_compressed", decode)
    made, recorded = (synchronizer(live=live, keys=COMPRESSED) for live in (True, False))
    with monkeypatch.context() as patched:
        for name in ("WAIT_S", "PROCESSOR_S"):
            patched.setattr(media, name, 0.0)
        with pytest.raises(DecodeError, match="publish smaller images") as caught:
            list(made.add("rgbd", slow))
    assert caught.value.cause == "too_slow"
    release.set()
    assert len(list(made.add("rgbd", compressed_depth(33 * MS)))) == 1
    assert len(list(recorded.add("rgbd", slow))) == 1  # no one waits for a recording


@st.composite
def streams(draw):
    """Two topics, each in order, at periods and offsets of a camera, with losses; and two ways in which they arrive."""
    period = draw(st.integers(10, 50)) * MS
    jitter = st.integers(-4000, 4000)
    times = {}
    for kind in ("depth", "color"):
        offset = draw(st.integers(0, 49)) * MS
        stamps = [k * period + offset + 5 * MS + draw(jitter) * US for k in range(12)]
        times[kind] = [at for at in sorted(stamps) if draw(st.integers(0, 5))]
    return times, draw(st.randoms(use_true_random=False)), draw(st.integers(0, 40)) * MS


def in_order(messages):
    """(kind, time) of (arrival, kind, time)."""
    return [(kind, at) for _, kind, at in sorted(messages)]


def interleaved(times, random):
    """The messages in an order of arrival that is that of the stamps, each topic shifted by its own delay."""
    delays = {kind: random.randrange(0, 60 * MS) for kind in times}
    return in_order((at + delays[kind], kind, at) for kind, stamps in times.items() for at in stamps)


@given(streams())
def test_the_order_of_arrival_does_not_show_in_the_pairs(drawn):
    times, random, slop = drawn
    end = [("color", 4_000 * MS)]  # after which all is decided
    found = [sorted(pairs(synchronizer(pair_ms=slop / MS), interleaved(times, random) + end)) for _ in range(2)]
    expected = []
    for at in sorted(set(times["depth"])):
        nearest = min(times["color"], key=lambda c: (abs(c - at), c), default=None)
        if nearest is not None and abs(nearest - at) <= slop:
            expected.append((at, nearest))
    assert sorted(set(found[0])) == sorted(set(found[1])) == expected


def synchronized(kind, messages, **options):
    """The same by message_filters."""
    filters = pytest.importorskip("message_filters", reason="is a package of ROS")
    from builtin_interfaces.msg import Time

    sources = {name: filters.SimpleFilter() for name in ("depth", "color")}
    synchronizer = getattr(filters, kind)(list(sources.values()), **options)
    found = []
    synchronizer.registerCallback(lambda d, c: found.append((d.at, c.at)))
    for name, at in messages:
        stamp = Time(sec=(T0 + at) // 10**9, nanosec=(T0 + at) % 10**9)
        sources[name].signalMessage(SimpleNamespace(header=SimpleNamespace(stamp=stamp), at=at))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_images_of_one_stamp_are_paired_as_by_message_filters(seed):
    random = np.random.default_rng(seed)
    times = {kind: [k * 33 * MS for k in range(40) if random.random() < 0.85] for kind in ("depth", "color")}
    late = {"depth": 0, "color": int(random.integers(-50, 50)) * MS}
    messages = in_order((at + late[kind], kind, at) for kind in times for at in times[kind])
    assert pairs(synchronizer(), messages) == synchronized("TimeSynchronizer", messages, queue_size=WAITING)


@pytest.mark.parametrize("seed", range(10))
def test_cameras_that_run_apart_are_paired_as_by_message_filters(seed):
    random = np.random.default_rng(seed)
    apart = int(random.integers(-12, 12)) * MS  # less than half of what keeps two frames apart
    messages = []
    for k in range(40):
        for kind, offset in (("depth", 20 * MS), ("color", 20 * MS + apart)):
            if random.random() < 0.85:
                at = k * 33 * MS + offset + int(random.integers(-1000, 1000)) * US
                messages.append((at + int(random.integers(0, 3 * MS)), kind, at))
    messages = in_order(messages)
    end = [("color", 4000 * MS)]
    ours = pairs(synchronizer(pair_ms=15), messages + end)
    assert ours == synchronized("ApproximateTimeSynchronizer", messages, queue_size=WAITING, slop=0.015)
    assert len(ours) > 20


def image_message(stamp_ns, pixels, encoding):
    height, width = pixels.shape[:2]
    shape = {"height": height, "width": width, "encoding": encoding, "step": pixels.nbytes // height}
    return serialize("sensor_msgs/msg/Image", {"header": header(stamp_ns), **shape, "data": pixels.tobytes()})


def depth_message(stamp_ns):
    return image_message(stamp_ns, np.full((1, 1), 1250, np.uint16), "16UC1")


def color_message(stamp_ns, shape=(1, 1)):
    return image_message(stamp_ns, np.full((*shape, 3), (10, 20, 30), np.uint8), "rgb8")


def info_message(stamp_ns):
    camera = {"height": 1, "width": 1, "k": [100.0, 0, 0, 0, 100.0, 0, 0, 0, 1]}
    return serialize("sensor_msgs/msg/CameraInfo", {"header": header(stamp_ns), **camera})


def started(stamp_ns=None, **keys):
    """An Ingest, with intrinsics of that stamp."""
    fusion = load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 40, "streams": {"rgbd": {**KEYS, **keys}}})
    into = Ingest(fusion, FusionEngine(fusion))
    into.engine.advance(T0 - 1)
    if stamp_ns is not None:
        into.serialized("rgbd/camera_info", info_message(stamp_ns), T0)
    return into


@pytest.mark.parametrize("waits", [False, True])
def test_a_depth_image_becomes_voxels_by_the_intrinsics_for_which_it_waits(waits):
    into = started()
    first, second = ("rgbd/camera_info", info_message(T0)), ("rgbd", depth_message(T0))
    if waits:
        first, second = second, first
    assert into.serialized(*first, T0) is Outcome.WAITING
    assert into.serialized(*second, T0 + MS) is Outcome.ACCEPTED
    frames = into.engine.advance(T0 + 40 * MS)
    assert frames.media["rgbd"][0].nonzero().tolist() == [[2, 2, 2]]  # (0, 0, 1.25) m
    assert frames.valid.tolist() == [[1]]


def test_a_pair_arrives_when_its_later_half_does():
    into = started(T0, color="/color")
    into.serialized("rgbd", depth_message(T0), T0)
    into.serialized("rgbd/color", color_message(T0), T0 + 41 * MS)
    assert into.engine.advance(T0 + 41 * MS).valid.tolist() == [[0]]  # after the deadline of its tick
    assert into.engine.advance(T0 + 60 * MS).valid.tolist() == [[1]]


def test_depth_without_camera_info_is_dropped_and_counted_and_said_once(caplog):
    into = started(color="/color")
    for i in range(WAITING + 3):
        assert into.serialized("rgbd", depth_message(T0 + i), T0 + i) is Outcome.WAITING
    assert into.counters["rgbd"]["unpaired"] == into.counters["rgbd"]["unpaired:camera_info"] == 3
    assert caplog.messages == ["rgbd: a depth image is dropped: no message on /info matches it"]


def test_colour_of_another_size_is_refused_with_the_way_out(caplog):
    into = started(T0, color="/color")
    into.serialized("rgbd", depth_message(T0), T0)
    assert into.serialized("rgbd/color", color_message(T0, (2, 2)), T0) is Outcome.DROPPED
    assert into.counters["rgbd"]["dropped:color_size"] == 1
    assert "color: has 2x2 pixels, but depth has 1x1" in caplog.text


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"camera_info": ""}, "camera_info"),
        ({"voxels": None}, "voxels: missing"),
        ({"type": "sensor_msgs/msg/PointCloud2"}, "is for depth images"),
        ({"voxels": {**VOXELS, "reduce": "mean", "features": ["r"]}}, "'r' is not one of x, y, z"),
        ({"camera_info": None, "voxels": None, "color": "/color"}, "color: needs a depth image"),
    ],
)
def test_an_incomplete_depth_stream_is_refused(keys, expected):
    with pytest.raises(RoboCacheError, match=expected):
        load_spec({"robocache": 1, "streams": {"rgbd": {k: v for k, v in {**KEYS, **keys}.items() if v is not None}}})


@pytest.mark.parametrize("half", ["rgbd", "rgbd/color"])
def test_an_image_with_an_unset_stamp_is_counted_and_leaves_those_that_wait(half):
    into = started(0, color="/color")  # intrinsics need no stamp
    into.serialized("rgbd", depth_message(T0), T0)
    unset = depth_message(0) if half == "rgbd" else color_message(0)
    assert into.serialized(half, unset, T0) is Outcome.UNSTAMPED
    assert into.counters[half]["unstamped"] == 1
    assert into.serialized("rgbd/color", color_message(T0), T0) is Outcome.ACCEPTED
