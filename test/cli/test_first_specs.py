"""First specs as a user gets them: `info --write-spec`, then `export`, on recordings with the traits of real ones."""

from __future__ import annotations

import math
import os
import re
import struct
from pathlib import Path

import pytest

from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec
from test.fuzz.messages import header, serialize

START_NS, MS = 1_700_000_000_000_000_000, 1_000_000
FLOAT, JOINTS = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState"
RECORDINGS = os.environ.get("ROBOCACHE_RECORDINGS")


class Recording:
    """A recording of a second or more, topic by topic."""

    def __init__(self):
        self.types: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.messages: list[tuple[str, int, bytes]] = []

    def add(self, topic, kind, rate_hz, data, seconds=4):
        self.types[topic] = kind
        times = [START_NS + round(k * 1e9 / rate_hz) for k in range(round(seconds * rate_hz))]
        self.messages += [(topic, time, data(k)) for k, time in enumerate(times)]

    def numbers(self, topic, rate_hz, values):
        """Add a Float64MultiArray."""
        self.add(topic, FLOAT, rate_hz, lambda k: serialize(FLOAT, {"data": values(k)}))

    def flat(self, topic, kind, fields, rate_hz=50):
        """Add a type of its own; its fields are numbers of 8 bytes."""
        codes = {"float64": "d", "uint64": "Q", "int64": "q"}
        self.definitions[kind] = "\n".join(f"{name_type} {name}" for name, (name_type, _) in fields.items())
        packed = "<" + "".join(codes[name_type] for name_type, _ in fields.values())
        self.add(
            topic,
            kind,
            rate_hz,
            lambda k: b"\0\1\0\0" + struct.pack(packed, *(value(k) for _, value in fields.values())),
        )

    def write(self, path):
        messages = sorted(self.messages, key=lambda message: message[1])
        return write_bag(path, self.types, messages, definitions=self.definitions)


def joints(stamp_ns, position):
    """A JointState of one joint in CDR, without velocity and effort."""
    return serialize(JOINTS, {"header": header(stamp_ns), "name": ["j"], "position": [position]})


@pytest.fixture
def first(robocache, tmp_path):
    """Write a recording and its first spec; return the spec, its text and what was printed."""

    def run(recording, *options):
        path = recording.write(tmp_path / "bag")
        done = robocache("info", path, "--write-spec", tmp_path / "spec.yaml", *options)
        assert done.code == 0, done.err
        text = (tmp_path / "spec.yaml").read_text()
        return load_spec(tmp_path / "spec.yaml"), re.sub(r"\n *#  +", " ", text), done

    return run


@pytest.fixture
def exported(robocache, tmp_path):
    """Export the recording of `first` with its spec."""

    def run(*options):
        paths = (tmp_path / "bag", "--spec", tmp_path / "spec.yaml", "--out", tmp_path / "dataset")
        return robocache("export", *paths, "--jobs", 1, "--no-report", *options)

    return run


def sine(k):
    return math.sin(0.05 * k)


def test_counters_and_what_is_too_large_are_named_and_not_proposed(first, exported):
    recording = Recording()
    fields = {
        "timestamp": ("uint64", lambda k: 5_000_000_000_000_000 + 20_000 * k),
        "sample_us": ("uint64", lambda k: 4_000_000_000_000_000_000 + 20_000 * k),
        "pulse": ("uint64", lambda k: 7 + k),
        "thrust": ("float64", sine),
        "roll": ("float64", lambda k: 0.1 * sine(k + 9)),
        "far": ("float64", lambda k: 4e18 + 1e6 * k * (-1) ** k),
    }
    recording.flat("/fmu/out/vehicle", "px4_msgs/msg/Vehicle", fields)
    spec, text, _ = first(recording)

    assert [stream.field for stream in spec.streams] == [("thrust", "roll")]
    assert "timestamp (not a measurement)" in text
    assert "sample_us, pulse (counts messages or time)" in text
    assert "far (too large for float32, also with an offset)" in text
    assert exported().code == 0


def test_constant_columns_are_named_with_their_value_and_left_out(first, exported):
    recording = Recording()
    pressed = lambda k: float(k == 77)  # noqa: E731 - a button that is pressed once
    recording.numbers("/arm/state", 50, lambda k: [sine(k), 1.5, 0.0, 0.0, 0.0, -sine(k), pressed(k)])
    spec, text, _ = first(recording)

    (stream,) = spec.streams
    assert (stream.name, stream.field, stream.dim) == ("arm_state", ("data[0]", "data[5]", "data[6]"), 3)
    assert "data[1] (always 1.5); data[2..4] (always 0)" in text
    assert exported().code == 0


def test_a_recording_in_which_nothing_changes_has_a_spec_with_a_warning(first, exported):
    recording = Recording()
    recording.numbers("/arm/state", 50, lambda _: [1.0, 2.0])
    spec, text, done = first(recording)

    assert spec.streams[0].dim == 2
    assert "no value changes in this recording" in done.out
    assert "# Warning: no value changes" in text
    assert exported().code == 0


def test_fields_with_nan_are_named_with_their_number_and_not_proposed(first, exported):
    recording = Recording()
    recording.numbers(
        "/actuators", 50, lambda k: [sine(k), math.nan if k != 60 else 0.5, math.inf if k == 9 else sine(k)]
    )
    spec, text, _ = first(recording)

    assert [stream.field for stream in spec.streams] == ["data[0]"]
    assert "data[1] (NaN or infinite in 199 of 200 messages); data[2] (NaN or infinite in 1 of 200 messages)" in text
    assert "200 " in exported().out


def test_an_angle_that_wraps_is_one_in_degrees_or_radians_and_what_lies_beside_it_is_not(first, exported):
    recording = Recording()
    degrees, radians = (
        (lambda k: (170 + 0.5 * k + 180) % 360 - 180),
        (lambda k: (3 + 0.07 * k) % (2 * math.pi) - math.pi),
    )
    turns = {"yaw": ("float64", degrees), "depth": ("float64", lambda k: 20 * sine(k))}
    base = {"yaw": ("float64", radians), "x": ("float64", sine)}
    recording.flat("/auv/attitude", "my_msgs/msg/Attitude", turns)
    recording.flat("/base", "my_msgs/msg/Base", base)
    recording.numbers("/array", 50, lambda k: [9 * sine(k), radians(k)])
    spec, text, _ = first(recording)

    found = {(stream.topic, stream.field): (stream.align, stream.unit) for stream in spec.streams}
    assert found == {
        ("/auv/attitude", "yaw"): ("angle", "deg"),
        ("/auv/attitude", "depth"): ("linear", ""),
        ("/base", "yaw"): ("angle", "rad"),
        ("/base", "x"): ("linear", ""),
        ("/array", "data[0]"): ("linear", ""),
        ("/array", "data[1]"): ("angle", "rad"),
    }
    assert re.search(r"    field: depth\n(    .*\n)*    align: linear\n", text)
    assert exported().code == 0


def test_one_slow_topic_does_not_delay_the_others(first, exported):
    recording = Recording()
    for name in ("a", "b", "c"):
        recording.numbers(f"/{name}/joints", 50, lambda k: [sine(k)])
    recording.numbers("/gps/heights", 1, lambda k: [sine(20 * k)])
    spec, text, _ = first(recording)

    assert spec.delay_ms <= 30
    assert spec.stream("heights").align == "hold"
    assert spec.stream("heights").max_age_ms == 3000
    assert "slow: its newest value is held" in text
    assert exported().code == 0


def test_one_late_topic_is_held_and_named_and_does_not_delay_the_others(first):
    recording = Recording()
    for name in ("a", "b", "c"):
        recording.add(f"/{name}/joint_states", JOINTS, 50, lambda k: joints(START_NS + 20 * k * MS, sine(k)))
    recording.add("/odd/joint_states", JOINTS, 50, lambda k: joints(START_NS + (20 * k - 2000) * MS, sine(k)))
    spec, text, _ = first(recording)

    assert spec.delay_ms <= 30
    assert {s.topic: s.align for s in spec.streams}["/odd/joint_states"] == "hold"
    assert "late: its values come up to 2000 ms after their time" in text


def test_positions_in_ticks_of_a_servo_have_no_unit(first):
    recording = Recording()
    for name, value in (("servo", lambda k: round(2048 + 900 * sine(k))), ("arm", sine)):
        data = lambda k, value=value: joints(START_NS + 20 * k * MS, value(k))  # noqa: E731
        recording.add(f"/{name}/joint_states", JOINTS, 50, data)
    spec, _, _ = first(recording)

    units = {stream.topic: stream.unit for stream in spec.streams}
    assert units == {"/servo/joint_states": "", "/arm/joint_states": "rad"}


COMMANDS = ["/drone/setpoints", "/arm_controller", "/fmu/actuator_controls", "/arm/controller/commands"]
STATES = ["/arm/joints", "/arm_controller/state", "/diff_controller/odometry", "/control_mode"]


def test_topics_named_as_commands_are_actions_and_the_states_of_controllers_are_not(first):
    recording = Recording()
    for topic in (*COMMANDS, *STATES):
        recording.numbers(topic, 50, lambda k: [sine(k)])

    roles = {stream.topic: stream.role for stream in first(recording)[0].streams}
    assert roles == dict.fromkeys(COMMANDS, "action") | dict.fromkeys(STATES, "observation")


def test_a_command_that_never_changes_is_not_an_action(first, exported):
    recording = Recording()
    recording.numbers("/arm/joints", 50, lambda k: [sine(k)])
    recording.numbers("/arm/command", 50, lambda _: [0.25])
    spec, text, _ = first(recording)

    assert spec.actions == "none"
    assert "/arm/command (std_msgs/msg/Float64MultiArray): data[0] (always 0.25)" in text
    assert exported("--action", "next-observation").code == 0


def test_names_have_the_part_before_a_vague_one_and_differ(first):
    names = {
        "/imu/data": "imu",
        "/left/arm/commands": "left_arm_commands",
        "/right/arm/commands": "right_arm_commands",
        "/left/joint_states": "left",
    }
    recording = Recording()
    for topic in names:
        recording.numbers(topic, 50, lambda k: [sine(k)])

    assert {stream.topic: stream.name for stream in first(recording)[0].streams} == names


def test_many_short_episodes_are_announced_with_their_cause_and_the_setting_that_helps(first, exported):
    recording = Recording()
    recording.numbers("/arm/joints", 50, lambda k: [sine(k)])
    recording.types["/gripper"] = FLOAT
    times = [START_NS + (k // 25 * 1000 + k % 25 * 30) * MS for k in range(100)]  # 0.75 s of messages in each second
    recording.messages += [("/gripper", time, serialize(FLOAT, {"data": [sine(k)]})) for k, time in enumerate(times)]
    spec, _, done = first(recording)
    stream = spec.stream("gripper")

    assert stream.on_invalid == "split"
    found = re.search(r"about (\d+) episodes, .* of gripper \(/gripper\); raise its max_age_ms to (\d+)", done.out)
    assert found
    assert f"; {found[1]} episodes" in exported().out


def test_topics_and_kinds_can_be_chosen(first, robocache, tmp_path):
    recording = Recording()
    for topic in ("/arm/command", "/arm/force", "/leg/force"):
        recording.numbers(topic, 50, lambda k: [sine(k)])
    spec, _, _ = first(recording, "--topics", "/arm/*", "--only", "numbers")

    assert [stream.topic for stream in spec.streams] == ["/arm/force"]
    again = ("info", tmp_path / "bag", "--write-spec", tmp_path / "other.yaml")
    for options, reason in (
        (("--topics", "/arm/forces"), "did you mean /arm/force?"),
        (("--only", "pictures"), "actions, clouds, images"),
    ):
        done = robocache(*again, *options)
        assert (done.code, reason in done.err) == (2, True)
    assert "every stream is an action" in robocache(*again, "--topics", "/arm/command").out


def test_a_topic_with_a_name_that_no_spec_takes_is_left_out(first, exported):
    recording = Recording()
    recording.numbers("/arm/force", 50, lambda k: [sine(k)])
    recording.numbers("/arm/\x1b[31mforce: #", 50, lambda k: [sine(k)])
    spec, text, done = first(recording)

    assert [stream.topic for stream in spec.streams] == ["/arm/force"]
    assert "\x1b" not in text + done.out
    assert r"/arm/\x1b[31mforce: #" in text
    assert exported().code == 0


def test_topics_without_messages_or_a_rate_are_shown(robocache, tmp_path, tf_message):
    recording = Recording()
    recording.numbers("/arm/force", 50, lambda k: [sine(k)])
    recording.types |= {"/arm/silent": FLOAT, "/tf_static": "tf2_msgs/msg/TFMessage"}
    times = [START_NS, START_NS + 7_000, START_NS + 14_000]
    recording.messages += [("/tf_static", time, tf_message((0, "arm", "tool", (0, 0, 1)))) for time in times]
    path = recording.write(tmp_path / "bag")
    done = robocache("info", path, "--write-spec", tmp_path / "spec.yaml")

    assert (done.code, done.err) == (0, "")
    rows = {row[0]: row[1:] for row in map(str.split, done.out.splitlines()) if row and row[0].startswith("/")}
    assert rows["/arm/silent"] == ["0", "-", "-", "-", "-"]
    assert rows["/tf_static"][:2] == ["3", "-"]
    assert "#   /arm/silent (std_msgs/msg/Float64MultiArray): no messages" in (tmp_path / "spec.yaml").read_text()


def test_what_is_missing_is_not_cut_from_the_error(first, exported, tmp_path):
    recording = Recording()
    for n in range(12):
        recording.numbers(f"/robot_with_a_long_name/camera_{n}/exposure", 50, lambda k: [sine(k)])
    first(recording)
    file = tmp_path / "spec.yaml"
    file.write_text(file.read_text().replace("/camera_7/exposure", "/camera_7/exposures"))
    done = exported()

    assert done.code == 2
    name = "/robot_with_a_long_name/camera_7/exposure"
    assert f"has no topic {name}s (did you mean {name}?)" in done.err
    assert len(done.err) < 200


# All that give ticks: see test/bags/test_real_recordings.py, which also has those that are refused.
NAMES = ["abitobot_sim", "ait_images", "cougars_auv", "crab_custom", "crazyflie", "husky_ur_sim", "nissan_imu"]
NAMES += ["rerun_allsensors", "ros1_kuka_joints", "ros1_realsense", "ros1_turtlesim/example.bag", "soccer_split"]
NAMES += ["stinger_boat", pytest.param("capstan_surgical", marks=pytest.mark.slow)]


@pytest.mark.skipif(not RECORDINGS, reason="ROBOCACHE_RECORDINGS names no folder of recordings")
@pytest.mark.parametrize("name", NAMES)
def test_the_first_spec_of_a_real_recording_is_accepted_by_export(name, robocache, tmp_path):
    bag, file, out = Path(RECORDINGS or "") / name, tmp_path / "spec.yaml", tmp_path / "dataset"
    done = robocache("info", bag, "--write-spec", file)
    assert done.code == 0
    media = "none" if load_spec(file).vectors else "image"
    done = robocache("export", bag, "--spec", file, "--out", out, "--media", media, "--jobs", 1, "--no-report")
    assert done.code == 0, done.err
    assert re.search(r"[1-9]\d* ticks in [1-9]", done.out)
