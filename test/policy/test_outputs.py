"""Rows to messages: each output is the inverse of the decoder of its stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import make_decoder
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.outputs import Outputs
from robocache_ros.spec import load_spec
from robocache_ros.spec.run import RunOptions
from test.policy.models import read, stamp_ns

JOG = (
    "std_msgs/Header header\nstring[] joint_names\nfloat64[] displacements\nfloat64[] velocities\nfloat64 duration\n"
    f"{'=' * 80}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    f"{'=' * 80}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
)
NAMES = ["a", "b"]
STAMP_NS, PERIOD_NS = 12_000_000_345, 20_000_000
STREAMS: dict[str, dict[str, Any]] = {
    "array": {"type": "std_msgs/msg/Float64MultiArray", "dim": 3, "offset": [0.5, -1, 0]},
    "array32": {"type": "std_msgs/msg/Float32MultiArray", "dim": 3},
    "number": {"type": "std_msgs/msg/Float64"},
    "joints": {"type": "sensor_msgs/msg/JointState", "names": NAMES, "offset": [0.25, 3]},
    "efforts": {"type": "sensor_msgs/msg/JointState", "names": NAMES, "field": "effort"},
    "pose": {"type": "geometry_msgs/msg/PoseStamped", "field": ["pose.position", "pose.orientation"], "align": "hold"},
    "turned": {"type": "geometry_msgs/msg/PoseStamped", "field": ["pose.orientation", "pose.position"]},
    "twist": {"type": "geometry_msgs/msg/TwistStamped", "field": ["twist.linear.x", "twist.angular.z"]},
    "cmd_vel": {"type": "geometry_msgs/msg/Twist", "field": ["linear", "angular"], "stamp": "receive"},
    "jog": {"type": "control_msgs/msg/JointJog", "field": "velocities", "dim": 2},
}


def outputs_of(stream: dict[str, Any], **output: Any) -> Outputs:
    raw = {"align": "hold", "role": "action", "topic": "/command"} | stream
    spec = load_spec({"robocache": 1, "streams": {"action": raw}})
    return Outputs(spec, RunOptions(outputs={"action": output}))


@pytest.mark.parametrize("name", STREAMS)
def test_a_decoder_reads_the_row_that_was_sent_bit_for_bit(name):
    stream = STREAMS[name]
    given = {"names": NAMES} if name == "jog" else {"frame": "base"}
    outputs = outputs_of(stream, **given)
    row = np.random.default_rng(0).normal(size=outputs.width).astype(np.float32)
    if stream.get("field") in STREAMS["pose"]["field"]:
        row[3:] /= np.linalg.norm(row[3:])

    data = outputs.outputs[0].message(row, STAMP_NS, PERIOD_NS)

    sample = make_decoder(outputs.spec.streams[0], {"control_msgs/msg/JointJog": JOG}).decode_cdr(data)
    assert sample.value.tobytes() == row.tobytes()
    assert sample.stamp_ns in (None, STAMP_NS)


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "jog"])
def test_another_library_reads_the_messages(name):
    outputs = outputs_of(STREAMS[name], frame="base")
    row = np.arange(1, outputs.width + 1, dtype=np.float32)

    message = read(outputs.outputs[0].message(row, STAMP_NS, PERIOD_NS), STREAMS[name]["type"])

    assert not hasattr(message, "header") or (message.header.frame_id, stamp_ns(message)) == ("base", STAMP_NS)
    if name == "joints":
        assert (message.name, message.position.tolist()) == (NAMES, [1.25, 5])
        assert not len(message.velocity)
    if name == "twist":
        assert (message.twist.linear.x, message.twist.angular.z, message.twist.linear.y) == (1, 2, 0)


TWIST = {"type": "geometry_msgs/msg/Twist", "field": ["linear.x", "angular.z"], "stamp": "receive"}


@pytest.mark.parametrize("output", ["Twist", "TwistStamped"])
@pytest.mark.parametrize("stream", [TWIST, STREAMS["twist"]])
def test_the_values_of_a_twist_have_the_same_places_in_another_type_of_twist(stream, output):
    outputs = outputs_of(stream, type=f"geometry_msgs/msg/{output}")

    (sent,) = outputs.outputs
    message = read(sent.message(np.array([1, 2], np.float32), STAMP_NS, PERIOD_NS), sent.type)

    twist = getattr(message, "twist", message)
    assert (twist.linear.x, twist.linear.y, twist.angular.z) == (1, 0, 2)
    assert outputs.velocities == outputs.outputs


def test_a_trajectory_begins_a_tick_after_its_stamp_and_has_positions_only():
    kind, rows = "trajectory_msgs/msg/JointTrajectory", np.array([[1, 2], [3, 4]], np.float32)
    (output,) = outputs_of(STREAMS["joints"], type=kind).outputs

    message = read(output.trajectory(rows, STAMP_NS, [PERIOD_NS, 2 * PERIOD_NS]), kind)

    assert (message.joint_names, stamp_ns(message)) == (NAMES, STAMP_NS)
    assert [p.positions.tolist() for p in message.points] == [[1.25, 5], [3.25, 7]]
    assert [p.time_from_start.nanosec for p in message.points] == [PERIOD_NS, 2 * PERIOD_NS]
    assert not any(len(p.velocities) + len(p.accelerations) + len(p.effort) for p in message.points)


@pytest.mark.parametrize(
    ("stream", "output"),
    [
        (STREAMS["joints"] | {"field": "velocity"}, {}),
        (STREAMS["array"] | {"unit": "rad/s"}, {}),
        (STREAMS["twist"], {"type": "std_msgs/msg/Float64MultiArray", "accept_no_timeout": True}),
    ],
)
def test_velocities_without_a_timeout_are_sent_only_where_the_spec_accepts_it(stream, output):
    if not output:
        with pytest.raises(RoboCacheError, match="have no timeout"):
            outputs_of(stream)
    outputs = outputs_of(stream, **({"accept_no_timeout": True} | output))
    if stream.get("unit") or stream.get("field") == "velocity":
        assert [each.topic for each in outputs.velocities] == ["/command"]


def test_zero_velocity_is_zero_whatever_the_offset_of_the_stream():
    outputs = outputs_of(STREAMS["array"] | {"unit": "m/s"}, accept_no_timeout=True)
    message = read(outputs.velocities[0].zero(STAMP_NS, PERIOD_NS), STREAMS["array"]["type"])
    assert message.data.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("stream", "output", "words"),
    [
        ({"type": "sensor_msgs/msg/Imu", "field": "angular_velocity"}, {}, "not an output"),
        ({"type": "geometry_msgs/msg/PoseStamped", "field": "pose.position"}, {}, "takes 7 values"),
        (STREAMS["array"], {"type": "trajectory_msgs/msg/JointTrajectory"}, "0 joints for 3 values"),
        (STREAMS["array"], {"type": "std_msgs/msg/Float64"}, "takes one value"),
        (STREAMS["joints"], {"field": "speed"}, "not one of"),
        (STREAMS["joints"], {"lower": [1, 2, 3]}, "3 values for 2"),
        (STREAMS["joints"], {"discrete": ["gripper"]}, "no 'gripper'"),
        (STREAMS["joints"] | {"label": "delta"}, {}, "deltas are not sent"),
    ],
)
def test_an_output_that_cannot_be_is_refused(stream, output, words):
    with pytest.raises(RoboCacheError, match=words):
        outputs_of(stream, **output)


def test_a_spec_without_an_action_has_no_outputs():
    raw = {"robocache": 1, "streams": {"joints": STREAMS["joints"] | {"topic": "/joints"}}}
    with pytest.raises(RoboCacheError, match="role: action"):
        Outputs(load_spec(raw), RunOptions())
    with pytest.raises(RoboCacheError, match=r"run\.outputs\.joints"):
        load_spec(raw | {"run": {"outputs": {"joints": {"lower": 0}}}})


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("joints", {"discrete": ["b"]}, ("linear", "hold")),
        ("pose", {}, ("linear",) * 3 + ("slerp",) * 4),
        ("turned", {}, ("slerp",) * 4 + ("linear",) * 3),
    ],
)
def test_what_is_blended_follows_from_the_spec(name, output, expected):
    assert outputs_of(STREAMS[name], **output).blending == expected


def test_the_limits_of_several_streams_are_those_of_their_columns():
    streams = {
        "arm": STREAMS["joints"] | {"topic": "/arm", "role": "action"},
        "hand": STREAMS["number"] | {"topic": "/hand", "role": "action", "align": "hold"},
    }
    run = {"outputs": {"arm": {"lower": -1, "upper": [1, 2]}, "hand": {"topic": "/grip", "max_step": 0.5}}}
    spec = load_spec({"robocache": 1, "streams": streams, "run": run})
    assert load_spec(spec.to_dict()) == spec
    outputs = Outputs(spec, spec.run)

    assert [each.topic for each in outputs.outputs] == ["/arm", "/grip"]
    found = [limits.tolist() for limits in (outputs.limits.lower, outputs.limits.upper, outputs.limits.max_step)]
    assert found == [[-1, -1, -np.inf], [1, 2, np.inf], [np.inf, np.inf, 0.5]]
