"""First specs: what they contain, what a policy needs, and recordings with the traits of those that strangers made."""

import struct
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import FrameInfo, describe, tree_of
from robocache_ros.bags.source import Topic
from robocache_ros.bags.storage.merge import merged_topics
from robocache_ros.bags.storage.metadata import read_metadata, storage_files
from robocache_ros.bags.suggest.fields import numeric_fields
from robocache_ros.bags.suggest.first_spec import _nominal_hz, first_spec, suggested_poses
from robocache_ros.bags.write import write_bag
from robocache_ros.decode.definitions import message_type
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.bags.conftest import fused, suggested
from test.fuzz.messages import numbers, pose
from test.fuzz.node_inputs import raw_image
from test.fuzz.recordings import ARRAY, MS, POSE, START_NS
from test.ros1_bags import write_ros1_bag

S = 1000 * MS


def every(ms, count, topic, data):
    """Messages of a topic, at even log times; `data` makes one of its time in ns and its number."""
    times = [START_NS + round(ms * k * MS) for k in range(count)]
    return [(topic, time, data(time, k)) for k, time in enumerate(times)]


def bag_of(path, types, *topics):
    return write_bag(path, types, sorted(chain(*topics), key=lambda message: message[1]))


@pytest.fixture(scope="module")
def panda(panda_lift):
    return describe(panda_lift)


def test_poses_commands_and_rates_of_the_panda(panda):
    spec = load_spec(yaml.safe_load(first_spec(panda).text))
    assert [(s.name, s.field, s.align) for s in spec.streams if s.topic == "/panda/ee_pose"] == [
        ("ee_position", "pose.position", "linear"),
        ("ee_orientation", "pose.orientation", "slerp"),
    ]
    assert spec.stream("panda_command").role == "action"
    assert spec.stream("panda_position").names == tuple(f"panda_joint{k}" for k in range(1, 8))
    assert {stream.topic: stream.rate_hz for stream in spec.streams} == {
        "/panda/joint_states": 500, "/panda/gripper/joint_states": 50, "/panda/ee_pose": 100, "/panda/command": 20,
        "/camera/front/image_raw/compressed": 30, "/camera/wrist/image_raw": 15,
    }  # fmt: skip


def test_the_suggested_spec_fits_its_recording_and_its_delay_covers_the_longest_and_the_neighbour(make_bag):
    spec, ticks = exported(make_bag())
    assert ticks > 80
    assert spec.delay_ms == 30  # logged 5 ms late, and the next sample comes 20 ms later


def test_the_grid_holds_the_cloud(panda):
    # The slow cloud is in comments.
    text = first_spec(panda).text.replace("  # front_voxels:", "  front_voxels:").replace("  #   ", "    ")
    voxels = load_spec(yaml.safe_load(text)).stream("front_voxels").voxels
    assert voxels
    # 98 % of the points are in x -1.2 … 1.2, y -0.6 … 0.2, z 0.5 … 2.5, in the camera's frame.
    for axis, (low, high) in enumerate([(-1.1, 1.1), (-0.5, 0.2), (0.55, 2.4)]):
        assert voxels.origin_m[axis] <= low
        assert voxels.origin_m[axis] + voxels.shape[axis] * voxels.size_m[axis] >= high
    assert max(voxels.shape) == 64


def test_names_of_like_topics_are_made_different_and_a_missing_command_is_stated(tmp_path):
    types = dict.fromkeys(("/left/tool/pose", "/right/tool/pose", "/left/tool_pose"), POSE)
    info = describe(bag_of(tmp_path / "bag", types, *(every(20, 50, topic, pose) for topic in types)))
    text = first_spec(info).text
    names = list(yaml.safe_load(text)["streams"])
    assert len(set(names)) == len(names) == 3
    assert "No topic looks like a command" in text


def test_what_cannot_be_fused_is_listed_with_its_reason(tmp_path):
    types = {"/arm/pose": POSE, "/log": "std_msgs/msg/String", "/once": ARRAY, "/burst": ARRAY}
    log = every(100, 10, "/log", lambda *_: b"\0\1\0\0\x02\0\0\0a\0")
    once, burst = every(1, 1, "/once", lambda *_: numbers(1.0)), every(20, 10, "/burst", lambda _, k: numbers(k))
    bag = bag_of(tmp_path / "bag", types, every(20, 500, "/arm/pose", pose), log, once, burst)
    text = first_spec(describe(bag)).text
    assert "#   /log (std_msgs/msg/String): text, not numbers" in text
    assert "#   /once (std_msgs/msg/Float64MultiArray): 1 message only" in text
    assert "/burst (std_msgs/msg/Float64MultiArray): 10 messages only, in 0.2 s of the recording: an event" in text
    with pytest.raises(RoboCacheError, match=r"has no topic that can be fused \(1 topic: String\); record"):
        first_spec(describe(bag_of(tmp_path / "log", {"/log": types["/log"]}, log)))


def test_damaged_messages_do_not_stop_the_description(tmp_path):
    messages = every(20, 20, "/arm/pose", lambda time, k: pose(time)[: 5 + k])
    topic = describe(bag_of(tmp_path / "bag", {"/arm/pose": POSE}, messages)).topics["/arm/pose"]
    assert (topic.stats.count, topic.messages) == (20, ())


def test_a_topic_that_one_wrong_stamp_makes_endless_has_a_rate_that_a_spec_takes(make_bag):
    topic = describe(make_bag()).topics["/arm/pose"]
    endless = replace(topic, stats=replace(topic.stats, stop_ns=topic.stats.start_ns + 10**18))
    assert _nominal_hz(topic) == 50
    assert _nominal_hz(endless) == 0.01


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ((240, 320, "rgb8"), {"size": [120, 160]}),  # that of the smallest
        ((240, 426, "rgb8"), {"size": [120, 160], "crop": [0, 53, 240, 320]}),  # around its centre
        ((240, 320, "16UC1"), {"size": [240, 320]}),
    ],
)
def test_cameras_get_the_size_of_the_smallest_and_its_aspect_ratio(tmp_path, first, expected):
    def images(topic, height, width, encoding):
        step = width * {"rgb8": 3, "bgr8": 3, "16UC1": 2}[encoding]
        return every(20, 5, topic, lambda at, _: raw_image(at, height, width, encoding, step, bytes(height * step)))

    messages = [images("/camera_0", *first), images("/camera_1", 120, 160, "bgr8")]
    types = dict.fromkeys(("/camera_0", "/camera_1"), "sensor_msgs/msg/Image")
    streams = yaml.safe_load(first_spec(describe(bag_of(tmp_path / "bag", types, *messages))).text)["streams"]
    assert [streams[name]["image"] for name in sorted(streams)] == [expected, {"size": [120, 160]}]


def test_a_cloud_that_is_slower_than_the_rest_is_commented_out_with_the_reason(panda):
    text, topic = first_spec(panda).text, "/camera/front/points"
    assert "  # left out, because it is slow: it needs delay_ms 80, and the other streams 60\n" in text
    assert f"  # front_voxels:\n  #   topic: {topic}\n" in text
    assert "\ndelay_ms: 60\n" in text
    cloud = panda.topics[topic]
    fast = replace(cloud, stats=replace(cloud.stats, delays_ms=cloud.stats.delays_ms / 2))
    for topics in ({**panda.topics, topic: fast}, {topic: cloud}):  # without other streams it is not slow
        assert "\n  front_voxels:\n" in first_spec(replace(panda, topics=topics)).text


def recorded(path, offsets_ns):
    """50 Hz poses, on a topic for each difference between log time and stamp."""
    topics = [
        every(20, 100, f"/pose_{n}", lambda time, k, offset=offset: pose(time - offset, k))
        for n, offset in enumerate(offsets_ns)
    ]
    return bag_of(path, {f"/pose_{n}": POSE for n in range(len(offsets_ns))}, *topics)


def exported(path):
    """The suggested spec, and the ticks at which every stream has a value."""
    spec = suggested(path)
    return spec, int((fused(path, spec).valid > 0).all(axis=1).sum())


@pytest.mark.parametrize("offset_ns", [START_NS - 7 * S, 6 * S, -300 * 86400 * S, -5 * MS])
def test_stamps_on_another_clock_are_the_timeline(offset_ns, tmp_path):
    path = recorded(tmp_path / "bag", [offset_ns])
    spec, ticks = exported(path)
    assert {stream.stamp for stream in spec.streams} == {"header"}
    assert ticks > 90
    assert spec.delay_ms <= 30
    notes = describe(path).notes[:1]
    assert len(notes) == (offset_ns != -5 * MS)  # slightly ahead: on the clock of the log
    assert all(note.startswith("the timeline follows the header stamps of /pose_0, ") for note in notes)


def test_stamps_of_different_clocks_are_distinguished_in_the_notes(tmp_path):
    path = recorded(tmp_path / "bag", [0, 0, 3 * 86400 * S, 3 * 86400 * S, -400 * S])
    info = describe(path)
    own = "the timeline: they come from another clock; "
    own += "give their streams `stamp: device`, which translates them, as --write-spec does"
    assert info.notes == (
        f"/pose_2, /pose_3: stamps are 2.59e5 s behind {own}",
        f"/pose_4: stamps are 400.0 s ahead of {own}",
    )
    spec, ticks = exported(path)
    assert [stream.stamp for stream in spec.streams] == ["header", "header", "device", "device", "device"]
    assert ticks > 90
    assert "`stamp: device` translates" in first_spec(info).text


def test_stamps_that_are_not_set_or_not_valid_give_a_spec_by_arrival(tmp_path):
    path = bag_of(tmp_path / "unset", {"/pose": POSE}, every(20, 100, "/pose", lambda _, k: pose(0, k)))
    info = describe(path)
    assert info.topics["/pose"].stats.rate_hz == pytest.approx(50)
    assert "stamps are not set" in info.notes[0]
    assert exported(path)[1] > 90
    data = b"\0\1\0\0" + struct.pack("<iII4x7d", 0, 2**31, 1, *[0.0] * 6, 1.0)  # nanoseconds beyond a second
    assert exported(bag_of(tmp_path / "bag", {"/pose": POSE}, every(20, 50, "/pose", lambda *_: data)))[1] > 40


def test_a_few_stamps_far_off_do_not_make_the_delay_endless(tmp_path):
    messages = every(20, 100, "/pose", lambda time, k: pose(time - (90 * S if k == 50 else 0)))
    spec, ticks = exported(bag_of(tmp_path / "bag", {"/pose": POSE}, messages))
    assert (spec.streams[0].stamp, spec.delay_ms <= 30, ticks > 80) == ("header", True, True)


def test_short_type_names_are_read_as_full_ones_and_refused_in_specs():
    source = SimpleNamespace(topics=(Topic("/a", "sensor_msgs/Image", 1), Topic("/b", "x_msgs/srv/Y_Event", 1)))
    assert [t.type for t in merged_topics([source]).values()] == ["sensor_msgs/msg/Image", "x_msgs/srv/Y_Event"]  # type: ignore[list-item]
    with pytest.raises(RoboCacheError, match=r"'sensor_msgs/Image' is not a message type .*; write sensor_msgs/msg/Im"):
        load_spec({"robocache": 1, "streams": {"front": {"topic": "/front", "type": "sensor_msgs/Image"}}})


def test_a_renamed_storage_file_is_read_and_noted_and_several_are_not(tmp_path):
    path = recorded(tmp_path / "bag", [0])
    next(path.glob("*.mcap")).rename(path / "other.mcap")
    info = describe(path)
    assert info.topics["/pose_0"].stats.count == 100
    assert info.notes == ("metadata.yaml names bag.mcap, which does not exist; other.mcap was read instead",)
    (path / "right.mcap").write_bytes((path / "other.mcap").read_bytes())
    with pytest.raises(RoboCacheError, match="is missing; copy the complete folder"):
        describe(path)


def test_numeric_fields_of_a_custom_type_are_proposed():
    text = "std_msgs/Header header\nuint32 rows\nfloat32[] data\nfloat64[9] covariance\nstring name\n"
    text += "float32[] ragged\ngeometry_msgs/Quaternion q\nfloat64 speed\nuint8[] blob\nTail[] tails\n"
    text += "=" * 80 + "\nMSG: my_msgs/Tail\nfloat32 a\nfloat32 b\n"
    nested = {"tails": [SimpleNamespace(a=1.0, b=2.0)], "q": SimpleNamespace(x=0.0, y=0.0, z=0.0, w=1.0)}
    plain = {"name": "rig", "rows": 3, "blob": bytes(100)}
    messages = [
        SimpleNamespace(**nested, **plain, data=np.arange(4.0) + k, ragged=[1.0] * k, speed=k) for k in range(3)
    ]
    found, others = numeric_fields(message_type("my_msgs/msg/Rig", {"my_msgs/msg/Rig": text}), messages)
    dims = {field.path: field.dim for field in found}
    assert dims == {"rows": 1, "data": 4, "q": 4, "speed": 1, "tails[0]": 2}
    assert [field.path for field in found if field.is_quaternion] == ["q"]
    assert others == ["covariance (not a measurement)", "ragged (0 to 2 elements)", "blob (100 elements)"]


def test_one_message_a_topic_is_refused_in_a_complete_sentence(tmp_path):
    types = {f"/p{n}": POSE for n in range(4)}
    reason = r": no topic has enough messages to be a stream \(4 topics, 1 message each\); record for longer$"
    with pytest.raises(RoboCacheError, match=reason):
        first_spec(describe(bag_of(tmp_path / "bag", types, *(every(1, 1, topic, pose) for topic in types))))


def test_the_spec_suggested_for_a_bag_of_ros_1_is_that_of_the_same_recording_of_ros_2(tmp_path):
    messages = every(20, 100, "/pose", pose)
    file = tmp_path / "ros1" / "ros2.bag"
    file.parent.mkdir()
    write_ros1_bag(file, {"/pose": POSE}, messages)
    expected = first_spec(describe(bag_of(tmp_path / "ros2", {"/pose": POSE}, messages))).text
    for path in (file, file.parent):
        assert first_spec(describe(path)).text.splitlines()[1:] == expected.splitlines()[1:]  # the first has the name


def test_a_topic_that_is_often_silent_is_held(tmp_path):
    topics = [every(20, count, f"/pose_{n}", lambda time, k: pose(time, 20 * k)) for n, count in enumerate((200, 75))]
    spec, ticks = exported(bag_of(tmp_path / "bag", {"/pose_0": POSE, "/pose_1": POSE}, *topics))
    assert {stream.topic: stream.on_invalid for stream in spec.streams} == {"/pose_0": "split", "/pose_1": "hold"}
    assert ticks > 190


def test_a_tiny_image_keeps_its_size(tmp_path):
    messages = every(20, 5, "/image", lambda *_: raw_image(10**9, 2, 2, "mono8", 2, bytes([1, 2, 3, 4])))
    text = first_spec(describe(bag_of(tmp_path / "bag", {"/image": "sensor_msgs/msg/Image"}, messages))).text
    assert "size: [2, 2]" in text


def test_metadata_with_aliases_is_read(tmp_path):
    path = recorded(tmp_path / "bag", [0])
    file = path / "metadata.yaml"
    text = file.read_text().replace("starting_time:", "starting_time: &start", 1)
    assert "&start" in text
    file.write_text(f"{text}  again: *start\n")
    assert [found.name for found in storage_files(path)] == ["bag.mcap"]
    assert read_metadata(path).counts == {"/pose_0": 100}


TF = "tf2_msgs/msg/TFMessage"


def frame(parent, kind="moves", period_ms=20.0):
    static = kind == "static"
    return FrameInfo(parent, "/tf_static" if static else "/tf", static, kind == "moves", 10, 50.0, period_ms, 1)


def pairs(frames):
    return [stream.keys["frames"] for stream in suggested_poses(frames, "/tf")[0]]


ARM = {"link1": frame("base_link"), "link2": frame("link1"), "flange": frame("link2", "static")}


def two_arms():
    arm = {"arm": "torso", "hand": "{}_arm"}
    return {f"{side}_{name}": frame(arm[name].format(side)) for side in ("left", "right") for name in arm}


ODOM = {"odom": frame("map", period_ms=100), "base_footprint": frame("odom")}
ODOM["base_link"] = frame("base_footprint", "static")
UNKNOWN = {"a": frame("world"), "b": frame("a"), "c": frame("a"), "lamp": frame("b", "static")}
UNKNOWN["d"] = frame("a", "still")
FINGERS = {"hand": frame("flange", "static"), **{f"gripper_finger_{side}": frame("hand") for side in "lr"}}


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        pytest.param({**ARM, "tool0": frame("flange", "static")}, [["base_link", "tool0"]], id="best of its names"),
        pytest.param(ARM, [["base_link", "flange"]], id="an end effector"),
        pytest.param({**ARM, **FINGERS}, [["base_link", "hand"]], id="not the fingers"),
        pytest.param(two_arms(), [["torso", "left_hand"], ["torso", "right_hand"]], id="two arms"),
        pytest.param(ODOM, [["odom", "base_link"]], id="a base that moves, in odom"),
        pytest.param(UNKNOWN, [["world", "b"], ["world", "c"]], id="outermost that move, in the root"),
    ],
)
def test_poses_are_those_of_end_effectors_bases_or_else_of_the_outermost_frames(frames, expected):
    assert pairs(frames) == expected


def test_limits_follow_the_slowest_transform_of_the_way():
    (stream,), _ = suggested_poses({**ARM, "link1": frame("base_link", period_ms=100)}, "/tf")
    assert (stream.keys["max_gap_ms"], stream.keys["max_age_ms"]) == (400, 600)


def test_a_tree_in_which_nothing_moves_has_no_poses():
    assert suggested_poses({"a": frame("b", "still")}, "/tf") == ([], "no frame in it moves")
    assert "static transforms" in suggested_poses({"a": frame("b", "static")}, "/tf_static")[1]


def test_a_loop_of_frames_is_listed_and_suggested_once():
    frames = {"a": frame("b"), "b": frame("a"), "c": frame("root")}
    assert sorted(name for _, name in tree_of(frames)) == ["a", "b", "c", "root"]
    assert ["root", "c"] in pairs(frames)


@pytest.fixture
def arm(tmp_path, tf_message):
    messages = [("/tf_static", START_NS, tf_message((0, "arm", "tool", (0, 0, 1)), (0, "base", "mast", (0, 0, 1))))]
    for k in range(100):
        t = START_NS + k * 10_000_000
        data = tf_message((t, "base", "arm", (0.01 * k, 0, 0)), (t, "base", "lid", (1, 0, 0)))
        messages.append(("/tf", t + 3_000_000, data))
    return write_bag(tmp_path / "arm", {"/tf": TF, "/tf_static": TF}, messages)


def test_frames_are_described_with_parent_rate_and_motion(arm):
    frames = describe(arm).frames
    assert {name: (f.parent, f.is_static, f.moves) for name, f in frames.items()} == {
        "arm": ("base", False, True),
        "lid": ("base", False, False),
        "tool": ("arm", True, False),
        "mast": ("base", True, False),
    }
    assert frames["arm"].rate_hz == pytest.approx(100)
    assert frames["arm"].period_ms == 10
    assert [(depth, name) for depth, name in tree_of(frames)] == [
        (0, "base"), (1, "arm"), (2, "tool"), (1, "lid"), (1, "mast"),
    ]  # fmt: skip


def test_a_suggested_pose_has_values_throughout_the_recording(arm):
    spec = suggested(arm)
    assert spec.stream("tool_pose").frames == ("base", "tool")
    valid = fused(arm, spec).valid
    assert len(valid) >= 48
    assert valid.all()


@pytest.mark.parametrize(
    ("name", "stream", "frames"),
    [
        ("husky_ur_sim", "ur_tool0_pose", ("base_link", "ur_tool0")),
        ("cougars_auv", "coug2_modem_pose", ("enu", "coug2.modem")),
        ("stinger_boat", "base_link_pose", ("odom", "base_link")),
    ],
)
def test_poses_of_real_recordings_are_unit_quaternions_and_move_without_jumps(real, name, stream, frames):
    given = yaml.safe_load(first_spec(describe(real / name)).text)
    spec = load_spec({**given, "streams": {stream: given["streams"][stream]}})
    assert spec.stream(stream).frames == frames
    assert spec.stream(stream).on_invalid == "split"  # not silent, on whatever clock the recording's stamps are
    _, _, pose, valid = fused(real / name, spec)
    valid = valid[:, 0]
    assert (valid > 0).mean() > 0.95
    pose = pose[valid > 0]
    np.testing.assert_allclose(np.linalg.norm(pose[:, 3:], axis=1), 1, atol=2e-7)  # four roundings to float32
    assert np.abs(np.diff(pose[:, :3], axis=0)).max() < 0.1  # metres in 20 ms: no robot here drives 5 m/s
    turns = np.abs((pose[1:, 3:] * pose[:-1, 3:]).sum(axis=1))  # the sign of a quaternion carries no meaning
    assert turns.min() > 0.99
