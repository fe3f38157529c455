"""Which poses a first spec has, by the frames of a recording; and the tree of frames itself."""

import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import FrameInfo, describe, tree_of
from robocache_ros.bags.suggest.first_spec import first_spec, suggested_poses
from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec
from test.bags.conftest import fused, suggested

RECORDINGS = os.environ.get("ROBOCACHE_RECORDINGS")
TF = "tf2_msgs/msg/TFMessage"
START_NS = 1_700_000_000_000_000_000


def frame(parent, kind="moves", period_ms=20.0):
    static = kind == "static"
    return FrameInfo(parent, "/tf_static" if static else "/tf", static, kind == "moves", 10, 50.0, period_ms, 1)


def pairs(frames):
    return [stream.keys["frames"] for stream in suggested_poses(frames, "/tf")[0]]


ARM = {"link1": frame("base_link"), "link2": frame("link1"), "flange": frame("link2", "static")}


def two_arms():
    arm = {"arm": "torso", "hand": "{}_arm"}
    return {f"{side}_{name}": frame(arm[name].format(side)) for side in ("left", "right") for name in arm}


ODOM = {
    "odom": frame("map", period_ms=100),
    "base_footprint": frame("odom"),
    "base_link": frame("base_footprint", "static"),
}
UNKNOWN = {
    "a": frame("world"),
    "b": frame("a"),
    "c": frame("a"),
    "lamp": frame("b", "static"),
    "d": frame("a", "still"),
}
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
def recording(tmp_path, tf_message):
    messages = [("/tf_static", START_NS, tf_message((0, "arm", "tool", (0, 0, 1)), (0, "base", "mast", (0, 0, 1))))]
    for k in range(100):
        t = START_NS + k * 10_000_000
        messages.append(
            ("/tf", t + 3_000_000, tf_message((t, "base", "arm", (0.01 * k, 0, 0)), (t, "base", "lid", (1, 0, 0))))
        )
    write_bag(tmp_path / "arm", {"/tf": TF, "/tf_static": TF}, messages)
    return tmp_path / "arm"


def test_frames_are_described_with_parent_rate_and_motion(recording):
    frames = describe(recording).frames
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


def test_a_suggested_pose_has_values_throughout_the_recording(recording):
    spec = suggested(recording)
    assert spec.stream("tool_pose").frames == ("base", "tool")
    valid = fused(recording, spec).valid
    assert len(valid) >= 48
    assert valid.all()


@pytest.mark.skipif(not RECORDINGS, reason="needs ROBOCACHE_RECORDINGS")
@pytest.mark.parametrize(
    ("name", "stream", "frames"),
    [
        ("husky_ur_sim", "ur_tool0_pose", ("base_link", "ur_tool0")),
        ("cougars_auv", "coug2_modem_pose", ("enu", "coug2.modem")),
        ("stinger_boat", "base_link_pose", ("odom", "base_link")),
    ],
)
def test_poses_of_real_recordings_are_unit_quaternions_and_move_without_jumps(name, stream, frames):
    path = Path(RECORDINGS or "") / name
    given = yaml.safe_load(first_spec(describe(path)).text)
    spec = load_spec({**given, "streams": {stream: given["streams"][stream]}})
    assert spec.stream(stream).frames == frames
    assert spec.stream(stream).on_invalid == "split"  # not silent, on whatever clock the recording's stamps are
    _, _, pose, valid = fused(path, spec)
    valid = valid[:, 0]
    assert (valid > 0).mean() > 0.95
    pose = pose[valid > 0]
    np.testing.assert_allclose(np.linalg.norm(pose[:, 3:], axis=1), 1, atol=2e-7)  # four roundings to float32
    assert np.abs(np.diff(pose[:, :3], axis=0)).max() < 0.1  # metres in 20 ms: no robot here drives 5 m/s
    turns = np.abs((pose[1:, 3:] * pose[:-1, 3:]).sum(axis=1))  # the sign of a quaternion carries no meaning
    assert turns.min() > 0.99
