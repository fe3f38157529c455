"""What is proposed for the message types of common sensors and controllers, and that it is decoded."""

import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.spec import load_spec
from test.bags.conftest import fused
from test.fuzz.mcap_writer import write_mcap
from test.fuzz.messages import header, serialize
from test.fuzz.recordings import MS, START_NS

COUNT = 100

_POINT = "trajectory_msgs/JointTrajectoryPoint"
CONTROLLER = f"std_msgs/Header header\nstring[] joint_names\n{_POINT} reference\n{_POINT} feedback\n{_POINT} error\n"


def proposed(path, kind, values, definition=""):
    """The suggested spec, the fused rows, and the spec's text."""
    times = [START_NS + 20 * k * MS for k in range(COUNT)]
    known = {kind: definition} if definition else {}
    data = [serialize(kind, {"header": header(at, "base"), **values(k)}, "<", known) for k, at in enumerate(times)]
    file = path / "x.mcap"
    file.write_bytes(write_mcap({"/topic": (kind, definition)}, zip(["/topic"] * COUNT, times, data, strict=True)))
    text = first_spec(describe(file)).text
    spec = load_spec(yaml.safe_load(text))
    return spec, fused(file, spec).values, text


# By type: the values of message k, and the streams that are proposed: field, number of values, alignment and unit.
RAMP = {
    "sensor_msgs/MagneticField": (
        lambda k: {"magnetic_field": {"x": 1e-5 * k, "y": 2e-5, "z": 3e-5}}, ["magnetic_field.x 1 linear T"],
    ),
    "sensor_msgs/Range": (
        lambda k: {"range": 0.1 * k, "max_range": 4.0, "field_of_view": 0.5}, ["range 1 linear m"],
    ),
    "sensor_msgs/Temperature": (lambda k: {"temperature": 20.0 + 0.1 * k}, ["temperature 1 linear degC"]),
    "sensor_msgs/FluidPressure": (lambda k: {"fluid_pressure": 101325.0 + k}, ["fluid_pressure 1 linear Pa"]),
    "sensor_msgs/Joy": (
        lambda k: {"axes": [0.01 * k, 0, -0.5], "buttons": [k % 2, 0]}, ["axes[0] 1 linear ", "buttons[0] 1 hold "],
    ),
    "sensor_msgs/LaserScan": (
        lambda k: {"ranges": [1.0 + 0.01 * k] * 5, "angle_increment": 0.1, "range_max": 10.0}, ["ranges 5 linear m"],
    ),
    "ackermann_msgs/AckermannDriveStamped": (
        lambda k: {"drive": {"steering_angle": 0.01 * k, "speed": 1.5}}, ["drive.steering_angle 1 linear "],
    ),
    "ackermann_msgs/AckermannDrive": (
        lambda k: {"steering_angle": 0.01 * k, "speed": 1.0 + 0.1 * k}, ["steering_angle+speed 2 linear "],
    ),
    "control_msgs/GripperCommand": (
        lambda k: {"position": 0.01 * k, "max_effort": 1.0 + k}, ["position+max_effort 2 linear "],
    ),
    "control_msgs/DynamicJointState": (
        lambda k: {"joint_names": ["a", "b"], "interface_values": [
            {"interface_names": ["position", "velocity"], "values": [n * 0.01 * k, n]} for n in (1.0, 2.0)
        ]},
        ["interface_values[0].values[0]+interface_values[1].values[0] 2 linear "],
    ),
    "control_msgs/JointTrajectoryControllerState": (
        lambda k: {
            "joint_names": ["a", "b"], "feedback": {"positions": [0.01 * k, 0.1]},
            "reference": {"positions": [0.01 * k + 0.1, 0.1], "velocities": [0.5, 0.0]},
        },
        ["reference.positions[0] 1 linear ", "feedback.positions[0] 1 linear "],
    ),
    "geometry_msgs/Twist": (lambda k: {"linear": {"x": 0.01 * k}, "angular": {"z": 0.1}}, ["linear.x 1 linear m/s"]),
    "geometry_msgs/Pose": (
        lambda k: {"position": {"x": 0.01 * k}, "orientation": {"w": 1.0}}, ["position.x 1 linear m"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RAMP)
def test_the_numbers_of_a_type_are_proposed_and_decoded(kind, tmp_path):
    values, expected = RAMP[kind]
    definition = CONTROLLER if kind.endswith("ControllerState") else ""
    spec, fused, _ = proposed(tmp_path, kind.replace("/", "/msg/"), values, definition)
    fields = [stream.field if isinstance(stream.field, str) else "+".join(stream.field) for stream in spec.streams]
    found = [f"{field} {s.dim} {s.align} {s.unit}" for field, s in zip(fields, spec.streams, strict=True)]
    assert found == expected
    assert len(fused) > 90
    assert np.ptp(fused, axis=0).max() > 0


def test_a_scan_with_holes_is_left_out_whole(tmp_path):
    def values(k):
        return {"ranges": [1.0 + 0.01 * k] * 99 + [np.inf], "intensities": [float(k % 7)] * 100}

    spec, _, text = proposed(tmp_path, "sensor_msgs/msg/LaserScan", values)
    assert [s.field for s in spec.streams] == ["intensities"]
    assert "ranges (NaN or infinite in 100 of 100 messages, in 1 of 100 values)" in text


def test_a_position_of_gps_keeps_its_centimetres(tmp_path):
    def values(k):
        return {"latitude": 47.397712 + 1e-8 * k, "longitude": 8.545594 + 1e-8 * k, "altitude": 488.0 + 0.01 * k}

    spec, fused, text = proposed(tmp_path, "sensor_msgs/msg/NavSatFix", values)
    (stream,) = spec.streams
    assert stream.field == ("latitude", "longitude", "altitude")
    assert "the offset is subtracted before values become float32" in text
    degrees = fused[:, 0].astype(np.float64) + stream.offset[0]
    expected = [values(k)["latitude"] for k in range(COUNT)]
    assert min(expected) - 1e-10 <= degrees.min() < degrees.max() <= max(expected) + 1e-10
    assert len(np.unique(fused[:, 0])) > 90  # float32 alone has one value for all of them


def test_numbers_whose_steps_in_float32_are_coarse_get_an_offset(tmp_path):
    def values(k):
        return {"point": {"x": 465_123.25 + 0.001 * k, "y": 0.001 * k, "z": 0.0}}  # UTM easting

    spec, fused, _ = proposed(tmp_path, "geometry_msgs/msg/PointStamped", values)
    (stream,) = spec.streams
    assert stream.offset[1:] == (0.0,)
    assert abs(stream.offset[0] - 465_123) <= 1
    assert len(np.unique(fused[:, 0])) > 90


def test_an_arm_and_a_gripper_on_one_topic_become_streams_of_their_own(tmp_path):
    def values(k):
        joints = ["a", "b"] if k % 2 else ["finger"]
        return {"name": joints, "position": [0.01 * k] * len(joints)}

    spec, _, _ = proposed(tmp_path, "sensor_msgs/msg/JointState", values)
    assert sorted(stream.names for stream in spec.streams) == [("a", "b"), ("finger",)]
