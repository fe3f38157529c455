"""The fusion spec: what it accepts, what it refuses, and in which words."""

import copy
import json
import pickle
import re
from contextlib import nullcontext

import pytest
import yaml

from robocache_ros.alignments import NAMES
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, Layout, json_schema, load_spec
from robocache_ros.spec.keys import Problem, SpecError

SPEC = yaml.safe_load("""
robocache: 1
horizon: 16
streams:
  joints: {topic: /joint_states, type: sensor_msgs/msg/JointState, names: [a, b], max_gap_ms: 20}
  pose: {topic: /pose, type: geometry_msgs/msg/PoseStamped, field: pose.orientation, align: slerp}
  front: {topic: /image, type: sensor_msgs/msg/CompressedImage, image: {size: [224, 320], normalize: imagenet}}
  voxels:
    topic: /points
    type: sensor_msgs/msg/PointCloud2
    voxels: {origin_m: [0, 0, 0], size_m: 0.02, shape: [8, 8, 8],
             extrinsic: {translation_m: [1, 2, 3], rotation_xyzw: [0, 0, 1, 0]}}
  ee: {topic: /tf, type: tf2_msgs/msg/TFMessage, frames: [base_link, tool0]}
  action: {topic: /command, type: std_msgs/msg/Float64MultiArray, dim: 7, align: hold, role: action}
""")


def changed(path, value):
    spec = copy.deepcopy(SPEC)
    at = spec
    *parents, last = path.split("/")
    for part in parents:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return spec


def test_types_imply_field_width_alignment_and_stamp():
    spec = load_spec(SPEC)
    implied = [(s.kind, s.field, s.width, s.align, s.stamp) for s in spec.streams]
    assert implied == [
        ("vector", "position", 2, "linear", "header"),
        ("vector", "pose.orientation", 4, "slerp", "header"),
        ("image", "", 0, "hold", "header"),
        ("cloud", "", 0, "hold", "header"),
        ("vector", "", 7, "linear", "header"),
        ("vector", "data", 7, "hold", "receive"),
    ]


@pytest.mark.parametrize(
    ("unit", "error"),
    [("rad", ""), (None, ""), ("deg", ""), ("m", "streams.joints.unit: 'm', but 'angle' is for angles in rad or deg")],
)
def test_an_alignment_of_angles_accepts_radians_and_degrees(unit, error):
    joints = {**SPEC["streams"]["joints"], "align": "angle", **({"unit": unit} if unit else {})}
    with pytest.raises(RoboCacheError, match=re.escape(error)) if error else nullcontext():
        load_spec(changed("streams/joints", joints))


def test_milliseconds_become_integer_nanoseconds():
    joints = load_spec(changed("streams/joints/max_age_ms", 0.1)).stream("joints")
    assert (joints.max_gap_ns, joints.max_age_ns) == (20_000_000, 100_000)


def test_an_extrinsic_becomes_the_matrix_that_turns_and_moves():
    grid = load_spec(SPEC).stream("voxels").voxels
    assert grid.extrinsic.matrix == ((-1, 0, 0, 1), (0, -1, 0, 2), (0, 0, 1, 3))  # half a turn about z
    assert grid.size_m == (0.02, 0.02, 0.02)


def test_a_spec_is_read_from_a_file(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC, sort_keys=False))
    assert load_spec(path) == load_spec(SPEC)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("streams/joints/align", "linaer", "streams.joints.align: 'linaer' is not one of angle, hold, linear, "),
        ("streams/front/align", "linear", "streams.front.align: 'linear' is for vectors; use hold, nearest or next"),
        ("streams/joints/topics", "/x", "streams.joints.topics: no such key; did you mean 'topic'?"),
        ("rate", 50, "rate: no such key; did you mean 'rate_hz'?"),
        ("cameras", 50, "cameras: no such key; the keys here are robocache, streams, rate_hz,"),
        ("streams/joints/topic", "joints/", "streams.joints.topic: 'joints/' is not a topic such as"),
        ("streams/joints/type", "JointState", "streams.joints.type: 'JointState' is not a message type such as"),
        ("streams/joints/names", None, "streams.joints.names: missing; joint states are read by joint name"),
        ("streams/joints/names", ["a", "a"], "streams.joints.names: 'a' is in the list twice; name each once"),
        ("streams/joints/names", "ab", "streams.joints.names: 'ab' is not a list"),
        ("streams/joints/max_gap_ms", float("nan"), "streams.joints.max_gap_ms: nan is not a number above 0"),
        ("streams/joints/max_gap_ms", True, "streams.joints.max_gap_ms: True is not a number"),
        ("streams/joints/image", {"size": [1, 1]}, "streams.joints.image: sensor_msgs/msg/JointState is not an image"),
        ("streams/pose/dim", 3, "streams.pose.align: 'slerp' is for quaternions"),
        ("streams/pose/field", None, "streams.pose.field: missing; name the numeric field"),
        ("streams/pose/field", "pose", "streams.pose.dim: missing; give the number of values in 'pose' of"),
        ("streams/front/image/size", [224], "streams.front.image.size: expected 2 values, got 1; give 2 of integer"),
        ("streams/front/image/crop", [0, 0, 0, 5], "streams.front.image.crop: [0, 0, 0, 5] is empty"),
        ("streams/front/image/normalize", {"mean": [0, 0], "std": [1]}, "streams.front.image.normalize.std: has 1 "),
        ("streams/voxels/voxels", None, "streams.voxels.voxels: missing; give the grid of the point cloud"),
        ("streams/voxels/voxels/reduce", "mean", "streams.voxels.voxels.reduce: 'mean' needs features"),
        ("streams/voxels/voxels/shape", [4096, 4096, 4096], "streams.voxels.voxels.shape: [4096, 4096, 4096] has 6"),
        ("streams/voxels/voxels/extrinsic/rotation_xyzw", [0, 0, 0, 0.5], "streams.voxels.voxels.extrinsic."),
        ("streams/ee/frames", None, "streams.ee.frames: expected two frames; name them, as in [base_link, tool0]"),
        ("streams/ee/frames", ["base", "/base"], "streams.ee.frames: expected two frames"),
        ("streams/ee/frames", ["/", "base"], "streams.ee.frames: expected two frames"),
        ("streams/ee/frames", ["base"], "streams.ee.frames: expected 2 values"),
        ("streams/ee/align", "angle", "streams.ee.align: 'angle' is for other vectors; use linear, hold, nearest"),
        ("streams/ee/dim", 6, "streams.ee.dim: 6, but a pose has 7"),
        ("streams/ee/field", "transforms[0].transform.rotation",
         "streams.ee.frames: needs tf2_msgs/msg/TFMessage and no field"),
        ("streams/ee/topic", "/tf_static", "streams.ee.topic: /tf_static is read with /tf"),
        ("streams/ee/type", "sensor_msgs/msg/Image", "streams.ee.frames: needs tf2_msgs/msg/TFMessage"),
        ("streams/action/stamp", "header", "streams.action.stamp: 'header', but std_msgs/msg/Float64MultiArray has no"),
        ("streams/action/dim", None, "streams.action.dim: missing"),
        ("streams", {}, "streams: expected streams by name, got a mapping; write"),
        ("streams", {"Front": {}}, "streams.Front: 'Front' is not a stream name of"),
        ("robocache", 2, "robocache: 2 is not an integer from 1 to 1"),
        ("lead_ms", 61, "lead_ms: 61 is above delay_ms, 60; use at most delay_ms"),
        ("emit", "soon", "emit: 'soon' is not one of fixed, eager"),
    ],
)  # fmt: skip
def test_an_error_names_the_key_the_value_and_what_is_allowed(path, value, message):
    with pytest.raises(RoboCacheError) as refused:
        load_spec(changed(path, value))
    assert str(refused.value).startswith(message)


EXAMPLES = {"Pose": "orientation", "PoseStamped": "pose.orientation", "Twist": "[linear, angular]"}
EXAMPLES |= {"TwistStamped": "[twist.linear, twist.angular]"}


@pytest.mark.parametrize(("name", "example"), EXAMPLES.items())
def test_a_missing_field_is_explained_with_a_field_that_the_type_has(name, example):
    action = {"topic": "/command", "type": f"geometry_msgs/msg/{name}", "role": "action", "stamp": "receive"}
    with pytest.raises(RoboCacheError) as refused:
        load_spec(changed("streams/action", action))
    assert str(refused.value).splitlines()[0].endswith(f"such as {example}")
    load_spec(changed("streams/action", action | {"field": yaml.safe_load(example)}))


@pytest.mark.parametrize("topic", ["/j\n", "/j\u0661", "j/", "/" + "j" * 300])
def test_a_topic_matches_from_end_to_end(topic):
    with pytest.raises(RoboCacheError, match=r"streams\.joints\.topic: "):
        load_spec(changed("streams/joints/topic", topic))


def test_all_errors_of_a_spec_are_reported_at_once_with_line_and_column(tmp_path):
    path = tmp_path / "robot.yaml"
    path.write_text("""robocache: 1
rate: 50
streams:
  joints:
    topic: /joint_states/
    type: sensor_msgs/msg/JointState
    names: [a, 7]
  front: {topic: /image, type: sensor_msgs/msg/Image, align: linear, voxels: {}}
""")
    with pytest.raises(RoboCacheError) as refused:
        load_spec(path)
    lines = str(refused.value).splitlines()
    assert [line.partition(": ")[2].partition(";")[0] for line in lines] == [
        "rate: no such key",
        "streams.joints.topic: '/joint_states/' is not a topic such as /panda/joint_states, or joint_states in "
        "the namespace",
        "streams.joints.names[1]: 7 is not a joint's name",
        *(f"streams.front.voxels.{key}: missing" for key in ("origin_m", "size_m", "shape")),
    ]
    places = [tuple(int(n) for n in line.split(": ")[0].rsplit(":", 2)[1:]) for line in lines]
    assert places == [(2, 1), (5, 5), (7, 16), (8, 70), (8, 70), (8, 70)]


def test_the_rules_between_keys_are_reported_together():
    with pytest.raises(RoboCacheError) as refused:
        load_spec({"robocache": 1, "streams": {
            "front": {**SPEC["streams"]["front"], "align": "linear", "dim": 3},
            "action": {**SPEC["streams"]["action"], "stamp": "header", "names": ["a"], "image": {}},
        }})  # fmt: skip
    keys = [line.split(":")[0] for line in str(refused.value).splitlines()]
    assert keys == ["streams.front.align", "streams.front.dim", "streams.action.dim"]


def test_a_spec_of_many_errors_shows_the_first_ones_and_how_many_more():
    with pytest.raises(RoboCacheError) as refused:
        load_spec({"robocache": 1, "streams": {f"s{k}": {} for k in range(1000)}})
    assert len(str(refused.value).splitlines()) == 21
    assert str(refused.value).endswith("1980 more errors; correct the ones above first")


def test_two_streams_of_one_name_are_refused():
    stream = load_spec(SPEC).stream("joints")
    with pytest.raises(RoboCacheError, match="streams: 'joints' is the name of two streams; rename one"):
        FusionSpec(robocache=1, streams=(stream, stream))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing.yaml", None, r"missing\.yaml: cannot be read"),
        ("bad.yaml", b"a: [1", r"bad\.yaml:1:6: not valid YAML: "),
        ("latin.yaml", b"a: \xe9", r"latin\.yaml: not UTF-8 text \(byte 3\)"),
        ("/dev/zero", None, "not a regular file"),
        ("a\0b", None, "not a path"),
        ("large.yaml", b"#" * 300_000, r"large\.yaml: larger than 256 KiB"),
        ("empty.yaml", b"", r"empty\.yaml:1:1: expected keys and values, got nothing"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_by_its_path(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(RoboCacheError, match=message):
        load_spec(f"{tmp_path}/{name}" if name.endswith(".yaml") else name)


def test_the_json_schema_knows_every_key_and_its_choices():
    schema = json_schema()
    json.dumps(schema)
    stream = schema["properties"]["streams"]["additionalProperties"]
    assert stream["properties"]["align"]["enum"] == [*(name for name in NAMES if name != "angle_deg"), "window"]
    assert stream["additionalProperties"] is False
    assert set(stream["required"]) == {"topic", "type"}


def test_relative_topics_are_in_the_namespace():
    voxels = {"origin_m": [0, 0, 0], "size_m": 0.1, "shape": [2, 2, 2]}
    depth = {"topic": "depth/image", "type": "sensor_msgs/msg/Image", "camera_info": "depth/info", "voxels": voxels}
    arm = {"topic": "joint_states", "type": "sensor_msgs/msg/JointState", "names": ["a"]}
    base = {"topic": "/odom", "type": "nav_msgs/msg/Odometry", "field": "pose.pose.position"}
    given = {"robocache": 1, "streams": {"arm": arm, "base": base, "depth": depth}}
    robot, separate = load_spec(given, "/robot1"), load_spec(given)
    assert [s.topic for s in robot.streams] == ["/robot1/joint_states", "/odom", "/robot1/depth/image"]
    assert robot.stream("depth").camera_info == "/robot1/depth/info"
    assert [s.topic for s in separate.streams] == ["/joint_states", "/odom", "/depth/image"]
    assert load_spec(robot.to_dict()) == robot


def test_a_column_states_its_quantity_and_a_stream_its_kind():
    streams = {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"], "unit": "rad"},
        "front": {"topic": "/front", "type": "sensor_msgs/msg/Image"},
    }
    layout = Layout(load_spec({"robocache": 1, "streams": streams})).to_dict()
    assert [(column["name"], column["quantity"], column["unit"]) for column in layout["columns"]] == [
        ("joints.a", "value", "rad"),
        ("valid:joints", "valid", "0 none, 1 aligned, 2 held"),
        ("valid:front", "valid", "0 none, 1 aligned, 2 held"),
        ("age_ms:joints", "age", "ms"),
        ("age_ms:front", "age", "ms"),
    ]
    kinds = {name: stream["kind"] for name, stream in layout["streams"].items()}
    assert kinds == {"joints": "vector", "front": "image"}
    assert not any("kind" in column for column in layout["columns"])


def test_the_errors_of_a_spec_come_from_another_process_as_they_are():
    problem = Problem(("streams", 0), "missing; add it")
    error = SpecError([problem], lambda _path: "spec.yaml:1:2")
    returned = pickle.loads(pickle.dumps(error))
    assert (type(returned), str(returned), returned.problems) == (SpecError, str(error), (problem,))
    assert str(returned) == "spec.yaml:1:2: streams[0]: missing; add it"


def test_a_stream_of_poses_is_received_as_tf2_does():
    stream = load_spec(SPEC).stream("ee")
    assert stream.is_transform
    assert stream.components == ("px", "py", "pz", "qx", "qy", "qz", "qw")
    assert (stream.qos.reliability, stream.qos.durability, stream.qos.depth) == ("reliable", "volatile", 100)
    own = load_spec(changed("streams/ee/qos", {"reliability": "best_effort"})).stream("ee")
    assert own.qos.reliability == "best_effort"


def test_a_field_of_one_transform_of_the_message_can_still_be_read():
    keys = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage", "field": "transforms[0].transform.rotation"}
    stream = load_spec(changed("streams/ee", keys)).stream("ee")
    assert (stream.is_transform, stream.width) == (False, 4)


def test_a_sensor_that_may_move_adds_tf_to_the_feeds():
    voxels = {"origin_m": [0, 0, 0], "size_m": 1, "shape": [8, 8, 8], "frame": "base"}
    scan = {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": voxels}
    spec = load_spec({"robocache": 1, "streams": {"scan": scan}})
    assert [(feed.name, feed.topic) for feed in spec.feeds] == [("scan", "/scan"), ("/tf", "/tf")]
    assert spec.feeds[1].qos.reliability == "reliable"
