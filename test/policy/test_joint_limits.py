"""The limits of a URDF on the commands of a policy."""

from __future__ import annotations

from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.policy import joint_limits
from robocache_ros.policy.joint_limits import read_joints, read_urdf_files
from robocache_ros.policy.outputs import Outputs
from robocache_ros.spec import load_spec
from robocache_ros.spec.run import RunOptions

ROBOT = """<?xml version="1.0"?>
<robot name="arm">
  <link name="base"/>
  <joint name="pan" type="revolute"><limit lower="-1.5" upper="1.5" effort="10" velocity="2"/></joint>
  <joint name="lift" type="prismatic"><limit upper="0.4" effort="10" velocity="0.5"/></joint>
  <joint name="wheel" type="continuous"><limit effort="10" velocity="4"/></joint>
  <joint name="slow" type="revolute"><limit lower="0" upper="1" velocity="0"/></joint>
  <joint name="mount" type="fixed"/>
</robot>
"""
NAMES = ["pan", "lift", "wheel"]
INFINITE = float("inf")


def outputs_of(output: dict[str, Any], urdf: str = ROBOT, **stream: Any) -> Outputs:
    raw = {"topic": "/command", "type": "sensor_msgs/msg/JointState", "names": NAMES, "role": "action"} | stream
    given = {key: value for key, value in raw.items() if value != []}
    spec = load_spec({"robocache": 1, "rate_hz": 50, "streams": {"action": given}})
    return Outputs(spec, RunOptions(outputs={"action": {"urdf": "arm.urdf", **output}}), {"arm.urdf": urdf})


def limits(outputs: Outputs, key: str) -> list[float]:
    return [round(float(value), 5) for value in getattr(outputs.limits, key)]


NARROW = {"lower": [-2, 0.1, -3], "upper": 1, "max_step": 0.03, "max_speed": 0.5}
DEGREES = {"names": ["pan"], "unit": "deg", "offset": [10]}
VELOCITY = {"accept_no_timeout": True}, {"field": "velocity"}


@pytest.mark.parametrize(
    ("output", "stream", "lower", "upper", "max_step"),
    [
        pytest.param({}, {}, [-1.5, 0, -INFINITE], [1.5, 0.4, INFINITE], [INFINITE] * 3, id="a continuous joint"),
        # The narrower holds; half of the velocity limit, in 20 ms.
        pytest.param(NARROW, {}, [-1.5, 0.1, -3], [1, 0.4, 1], [0.02, 0.005, 0.03], id="the spec's and the URDF's"),
        pytest.param({}, DEGREES, [-95.94367], [75.94367], [INFINITE], id="85.94 deg less 10"),
        pytest.param(*VELOCITY, [-2, -0.5, -4], [2, 0.5, 4], None, id="velocities"),
    ],
)
def test_limits_are_the_narrower_of_joint_and_spec_in_the_unit_of_the_stream(output, stream, lower, upper, max_step):
    outputs = outputs_of(output, **stream)
    assert (limits(outputs, "lower"), limits(outputs, "upper")) == (lower, upper)
    assert max_step is None or limits(outputs, "max_step") == max_step


def test_other_outputs_keep_their_limits():
    stream = {"type": "std_msgs/msg/Float64", "align": "hold", "role": "action"}
    streams = {name: {"topic": f"/{name}", **stream} for name in ("arm", "gripper")}
    spec = load_spec({"robocache": 1, "streams": streams})
    run = RunOptions(outputs={"arm": {"urdf": "a.urdf", "names": ["pan"]}, "gripper": {"upper": 7}})

    outputs = Outputs(spec, run, {"a.urdf": ROBOT})

    assert (limits(outputs, "lower"), limits(outputs, "upper")) == ([-1.5, -INFINITE], [1.5, 7])


ARRAY = {"type": "std_msgs/msg/Float64MultiArray", "names": [], "dim": 3, "align": "hold"}


@pytest.mark.parametrize(
    ("output", "stream", "words"),
    [
        ({}, {"names": ["pan", "elbow"]}, "no joint elbow in the URDF; those that move are pan, lift, wheel, slow"),
        ({}, {"names": ["mount"]}, "no value of the fixed joint mount"),
        ({"max_speed": 1}, {"names": ["slow"]}, "no velocity limit of slow"),
        ({}, {"names": ["pan"], "unit": "ticks"}, "pan is in rad or deg, the stream in ticks"),
        ({}, {"names": ["lift"], "unit": "rad"}, "lift is in m or mm, the stream in rad"),
        ({"lower": 2}, {"names": ["pan"]}, "allows no value of action.pan"),
        ({}, {"field": "effort"}, "limits positions and velocities of joints only"),
        ({}, ARRAY, "needs a joint for each value"),
    ],
)
def test_what_a_urdf_cannot_limit_is_refused(output, stream, words):
    with pytest.raises(RoboCacheError) as refused:
        outputs_of(output, **stream)

    assert words in str(refused.value)
    assert str(refused.value).startswith("run.outputs.action.urdf: ")
    assert len(str(refused.value)) < 200


BOMB = (
    '<!DOCTYPE robot [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<robot name="&b;"><joint name="pan" type="revolute"/></robot>'
)
FILE = '<!DOCTYPE robot [<!ENTITY a SYSTEM "file:///etc/passwd">]><robot name="x">&a;</robot>'
DEEP = "<robot>" + "<link>" * 1000 + "</link>" * 1000 + "</robot>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "has a document type"),
        (FILE, "has a document type"),
        (DEEP, "not a URDF"),
        ("<html></html>", "not a URDF"),
        ("", "not XML"),
        ("<robot><joint", "not XML"),
        ("\ud800<robot/>", "not XML"),
        ('<?xml version="1.0" encoding="utf-16"?><robot><joint name="a" type="x"', "not XML"),
        (ROBOT.replace("-1.5", "nan"), "pan: lower: 'nan' is not a finite number"),
        (ROBOT.replace("-1.5", "${pi}"), "not a finite number"),
        (ROBOT.replace("-1.5", "1.6"), "pan: its limits exclude every value"),
    ],
)
def test_what_is_not_a_safe_urdf_is_refused(text, words):
    with pytest.raises(RoboCacheError) as refused:
        read_joints(text, "arm.urdf")
    assert words in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_urdf_that_was_not_read_or_is_too_large_is_refused(monkeypatch):
    with pytest.raises(RoboCacheError, match="/robot_description was not read"):
        outputs_of({"urdf": "/robot_description"})
    monkeypatch.setattr(joint_limits, "MAX_BYTES", 100)
    with pytest.raises(RoboCacheError, match="larger than"):
        read_joints(ROBOT, "arm.urdf")


def test_files_are_found_beside_the_spec(tmp_path):
    (tmp_path / "arm.urdf").write_text(ROBOT)
    options = RunOptions(outputs={"a": {"urdf": "arm.urdf"}, "b": {"urdf": "/robot_description"}})

    assert read_urdf_files(options, tmp_path) == {"arm.urdf": ROBOT}
    assert options.urdf_topics == ["/robot_description"]
    with pytest.raises(RoboCacheError, match="give the path of a URDF"):
        read_urdf_files(options, tmp_path / "other")
