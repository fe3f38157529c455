"""The fusion spec: what it accepts, what it refuses, and in which words."""

import copy
import json

import pytest
import yaml

from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import json_schema, load_spec

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
        ("vector", "data", 7, "hold", "receive"),
    ]


def test_milliseconds_become_whole_nanoseconds():
    joints = load_spec(changed("streams/joints/max_age_ms", 0.1)).stream("joints")
    assert (joints.max_gap_ns, joints.max_age_ns) == (20_000_000, 100_000)


def test_an_extrinsic_becomes_the_matrix_that_turns_and_moves():
    grid = load_spec(SPEC).stream("voxels").voxels
    assert grid.extrinsic.matrix == ((-1, 0, 0, 1), (0, -1, 0, 2), (0, 0, 1, 3))  # half a turn about z
    assert grid.size_m == (0.02, 0.02, 0.02)


def test_the_resolved_spec_reads_back_the_same():
    spec = load_spec(changed("streams/front/max_age_ms", 0))
    assert load_spec(json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_spec_is_read_from_a_file(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC, sort_keys=False))
    assert load_spec(path) == load_spec(SPEC)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("streams/joints/align", "linaer", "streams.joints.align: 'linaer' is not one of linear, slerp, angle, hold, "),
        ("streams/front/align", "linear", "streams.front.align: 'linear' is for vectors; sensor_msgs/msg/Com"),
        ("streams/joints/topics", "/x", "streams.joints.topics: no such key; the keys here are topic, type, field,"),
        ("rate", 50, "rate: no such key; the keys here are robocache, streams, rate_hz,"),
        ("streams/joints/topic", "joints", "streams.joints.topic: 'joints' is not an absolute topic name such as"),
        ("streams/joints/type", "JointState", "streams.joints.type: 'JointState' is not a message type such as"),
        ("streams/joints/names", None, "streams.joints.names: missing; joint states are taken by joint name"),
        ("streams/joints/names", ["a", "a"], "streams.joints.names: 'a' stands in it twice; name each once"),
        ("streams/joints/names", "ab", "streams.joints.names: 'ab' is not a list"),
        ("streams/joints/max_gap_ms", float("nan"), "streams.joints.max_gap_ms: nan is not a number above 0"),
        ("streams/joints/max_gap_ms", True, "streams.joints.max_gap_ms: True is not a number"),
        ("streams/joints/image", {"size": [1, 1]}, "streams.joints.image: sensor_msgs/msg/JointState is no image"),
        ("streams/pose/dim", 3, "streams.pose.align: 'slerp' is for quaternions"),
        ("streams/pose/field", None, "streams.pose.field: missing; name the numeric field"),
        ("streams/pose/field", "pose", "streams.pose.dim: missing; say how many values pose of"),
        ("streams/front/image/size", [224], "streams.front.image.size: expected 2 values, got 1: [224]"),
        ("streams/front/image/crop", [0, 0, 0, 5], "streams.front.image.crop: [0, 0, 0, 5] is empty"),
        ("streams/front/image/normalize", {"mean": [0, 0], "std": [1]}, "streams.front.image.normalize.std: has 1 "),
        ("streams/voxels/voxels", None, "streams.voxels.voxels: missing; a cloud needs a grid"),
        ("streams/voxels/voxels/reduce", "mean", "streams.voxels.voxels.reduce: 'mean' needs features"),
        ("streams/voxels/voxels/shape", [4096, 4096, 4096], "streams.voxels.voxels.shape: [4096, 4096, 4096] has 6"),
        ("streams/voxels/voxels/extrinsic/rotation_xyzw", [0, 0, 0, 0.5], "streams.voxels.voxels.extrinsic."),
        ("streams/action/stamp", "header", "streams.action.stamp: 'header', but std_msgs/msg/Float64MultiArray has no"),
        ("streams/action/dim", None, "streams.action.dim: missing"),
        ("streams", {}, "streams: expected at least one stream"),
        ("streams", {"Front": {}}, "streams: 'Front' as a name: 'Front' is not a stream name"),
        ("robocache", 2, "robocache: 2 is not a whole number from 1 to 1"),
        ("lead_ms", 61, "lead_ms: 61 is above delay_ms, 60; a tick is made after its time"),
        ("emit", "soon", "emit: 'soon' is not one of fixed, eager"),
    ],
)  # fmt: skip
def test_an_error_names_the_key_the_value_and_what_is_allowed(path, value, message):
    with pytest.raises(RoboCacheError) as refused:
        load_spec(changed(path, value))
    assert str(refused.value).startswith(message)


def test_a_file_that_is_no_spec_is_refused_by_its_path(tmp_path):
    with pytest.raises(RoboCacheError, match=r"missing\.yaml: cannot be read"):
        load_spec(tmp_path / "missing.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(RoboCacheError, match=r"bad\.yaml: is not YAML"):
        load_spec(tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(RoboCacheError, match=r"empty\.yaml: spec: expected keys and values, got nothing"):
        load_spec(tmp_path / "empty.yaml")


def test_the_json_schema_knows_every_key_and_its_choices():
    schema = json_schema()
    stream = schema["properties"]["streams"]["additionalProperties"]
    assert stream["properties"]["align"]["enum"] == ["linear", "slerp", "angle", "hold", "nearest"]
    assert stream["additionalProperties"] is False
    assert set(stream["required"]) == {"topic", "type"}
    json.dumps(schema)
