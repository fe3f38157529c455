"""First specs as a user gets them: `info --write-spec`, then `export`, on recordings with the traits of real ones."""

from __future__ import annotations

import math
import re
import struct

import pytest

from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec
from test.fuzz.messages import header, numbers, serialize
from test.fuzz.recordings import ARRAY, MS, START_NS

JOINTS = "sensor_msgs/msg/JointState"


class Recording:
    """A recording of a second or more, of topics with numbers at 50 Hz and of others that are added."""

    def __init__(self, values=None):
        self.types: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.messages: list[tuple[str, int, bytes]] = []
        for topic, of in (values or {}).items():
            self.numbers(topic, 50, of)

    def add(self, topic, kind, rate_hz, data, seconds=4):
        self.types[topic] = kind
        times = [START_NS + round(k * 1e9 / rate_hz) for k in range(round(seconds * rate_hz))]
        self.messages += [(topic, time, data(k)) for k, time in enumerate(times)]

    def numbers(self, topic, rate_hz, values):
        """Add a Float64MultiArray."""
        self.add(topic, ARRAY, rate_hz, lambda k: numbers(*values(k)))

    def joints(self, topic, position, late_ms=0):
        """Add joint states of one joint, without velocity and effort."""

        def data(k):
            stamp = header(START_NS + (20 * k - late_ms) * MS)
            return serialize(JOINTS, {"header": stamp, "name": ["j"], "position": [position(k)]})

        self.add(topic, JOINTS, 50, data)

    def flat(self, topic, kind, **fields):
        """Add a type of its own; its fields are numbers of 8 bytes: the code of their type, and their value."""
        names = {"d": "float64", "Q": "uint64"}
        self.definitions[kind] = "\n".join(f"{names[code]} {name}" for name, (code, _) in fields.items())
        packed = "<" + "".join(code for code, _ in fields.values())
        values = [value for _, value in fields.values()]
        self.add(topic, kind, 50, lambda k: b"\0\1\0\0" + struct.pack(packed, *(value(k) for value in values)))

    def write(self, path):
        messages = sorted(self.messages, key=lambda message: message[1])
        return write_bag(path, self.types, messages, definitions=self.definitions)


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
    paths = (tmp_path / "bag", "--spec", tmp_path / "spec.yaml", "--out", tmp_path / "dataset")
    return lambda *options: robocache("export", *paths, "--jobs", 1, "--no-report", *options)


def sine(k):
    return math.sin(0.05 * k)


def moving(k):
    return [sine(k)]


def test_counters_and_what_is_too_large_are_named_and_not_proposed(first, exported):
    recording = Recording()
    recording.flat(
        "/fmu/out/vehicle",
        "px4_msgs/msg/Vehicle",
        timestamp=("Q", lambda k: 5_000_000_000_000_000 + 20_000 * k),
        sample_us=("Q", lambda k: 4_000_000_000_000_000_000 + 20_000 * k),
        pulse=("Q", lambda k: 7 + k),
        thrust=("d", sine),
        roll=("d", lambda k: 0.1 * sine(k + 9)),
        far=("d", lambda k: 4e18 + 1e6 * k * (-1) ** k),
    )
    spec, text, _ = first(recording)
    assert [stream.field for stream in spec.streams] == [("thrust", "roll")]
    assert "timestamp (not a measurement)" in text
    assert "sample_us, pulse (counts messages or time)" in text
    assert "far (too large for float32, also with an offset)" in text
    assert exported().code == 0


def test_constant_columns_are_named_with_their_value_and_left_out(first, exported):
    def pressed_once(k):
        return [sine(k), 1.5, 0.0, 0.0, 0.0, -sine(k), float(k == 77)]

    spec, text, _ = first(Recording({"/arm/state": pressed_once}))
    (stream,) = spec.streams
    assert (stream.name, stream.field, stream.dim) == ("arm_state", ("data[0]", "data[5]", "data[6]"), 3)
    assert "data[1] (always 1.5); data[2..4] (always 0)" in text
    assert exported().code == 0


def test_a_recording_in_which_nothing_changes_has_a_spec_with_a_warning(first, exported):
    spec, text, done = first(Recording({"/arm/state": lambda _: [1.0, 2.0]}))
    assert spec.streams[0].dim == 2
    assert "no value changes in this recording" in done.out
    assert "# Warning: no value changes" in text
    assert exported().code == 0


def test_fields_with_nan_are_named_with_their_number_and_not_proposed(first, exported):
    def values(k):
        return [sine(k), math.nan if k != 60 else 0.5, math.inf if k == 9 else sine(k)]

    spec, text, _ = first(Recording({"/actuators": values}))
    assert [stream.field for stream in spec.streams] == ["data[0]"]
    assert "data[1] (NaN or infinite in 199 of 200 messages); data[2] (NaN or infinite in 1 of 200 messages)" in text
    assert "200 " in exported().out


def test_an_angle_that_wraps_is_one_in_degrees_or_radians_and_what_lies_beside_it_is_not(first, exported):
    def degrees(k):
        return (170 + 0.5 * k + 180) % 360 - 180

    def radians(k):
        return (3 + 0.07 * k) % (2 * math.pi) - math.pi

    recording = Recording({"/array": lambda k: [9 * sine(k), radians(k)]})
    recording.flat("/auv/attitude", "my_msgs/msg/Attitude", yaw=("d", degrees), depth=("d", lambda k: 20 * sine(k)))
    recording.flat("/base", "my_msgs/msg/Base", yaw=("d", radians), x=("d", sine))
    spec, text, _ = first(recording)
    assert {(stream.topic, stream.field): (stream.align, stream.unit) for stream in spec.streams} == {
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
    recording = Recording({f"/{name}/joints": moving for name in "abc"})
    recording.numbers("/gps/heights", 1, lambda k: [sine(20 * k)])
    spec, text, _ = first(recording)
    assert spec.delay_ms <= 30
    assert (spec.stream("heights").align, spec.stream("heights").max_age_ms) == ("hold", 3000)
    assert "slow: its newest value is held" in text
    assert exported().code == 0


def test_one_late_topic_is_held_and_named_and_does_not_delay_the_others(first):
    recording = Recording()
    for name, late_ms in (("a", 0), ("b", 0), ("c", 0), ("odd", 2000)):
        recording.joints(f"/{name}/joint_states", sine, late_ms)
    spec, text, _ = first(recording)
    assert spec.delay_ms <= 30
    assert {s.topic: s.align for s in spec.streams}["/odd/joint_states"] == "hold"
    assert "late: its values come up to 2000 ms after their time" in text


def test_positions_in_ticks_of_a_servo_have_no_unit(first):
    recording = Recording()
    recording.joints("/servo/joint_states", lambda k: round(2048 + 900 * sine(k)))
    recording.joints("/arm/joint_states", sine)
    units = {stream.topic: stream.unit for stream in first(recording)[0].streams}
    assert units == {"/servo/joint_states": "", "/arm/joint_states": "rad"}


COMMANDS = ["/drone/setpoints", "/arm_controller", "/fmu/actuator_controls", "/arm/controller/commands"]
STATES = ["/arm/joints", "/arm_controller/state", "/diff_controller/odometry", "/control_mode"]


def test_topics_named_as_commands_are_actions_and_the_states_of_controllers_are_not(first):
    streams = first(Recording(dict.fromkeys([*COMMANDS, *STATES], moving)))[0].streams
    roles = {stream.topic: stream.role for stream in streams}
    assert roles == dict.fromkeys(COMMANDS, "action") | dict.fromkeys(STATES, "observation")


def test_a_command_that_never_changes_is_not_an_action(first, exported):
    spec, text, _ = first(Recording({"/arm/joints": moving, "/arm/command": lambda _: [0.25]}))
    assert spec.actions == "none"
    assert "/arm/command (std_msgs/msg/Float64MultiArray): data[0] (always 0.25)" in text
    assert exported("--action", "next-observation").code == 0


def test_names_have_the_part_before_a_vague_one_and_differ(first):
    names = {"/imu/data": "imu", "/left/arm/commands": "left_arm_commands", "/left/joint_states": "left"}
    names["/right/arm/commands"] = "right_arm_commands"
    spec, _, _ = first(Recording(dict.fromkeys(names, moving)))
    assert {stream.topic: stream.name for stream in spec.streams} == names


def test_many_short_episodes_are_announced_with_their_cause_and_the_setting_that_helps(first, exported):
    recording = Recording({"/arm/joints": moving})
    recording.types["/gripper"] = ARRAY
    times = [START_NS + (k // 25 * 1000 + k % 25 * 30) * MS for k in range(100)]  # 0.75 s of messages in each second
    recording.messages += [("/gripper", time, numbers(sine(k))) for k, time in enumerate(times)]
    spec, _, done = first(recording)
    assert spec.stream("gripper").on_invalid == "split"
    found = re.search(r"about (\d+) episodes, .* of gripper \(/gripper\); raise its max_age_ms to (\d+)", done.out)
    assert found
    assert f"; {found[1]} episodes" in exported().out


def test_topics_and_kinds_can_be_chosen(first, robocache, tmp_path):
    recording = Recording(dict.fromkeys(("/arm/command", "/arm/force", "/leg/force"), moving))
    spec, _, _ = first(recording, "--topics", "/arm/*", "--only", "numbers")
    assert [stream.topic for stream in spec.streams] == ["/arm/force"]
    again = ("info", tmp_path / "bag", "--write-spec", tmp_path / "other.yaml")
    for *options, reason in (
        ("--topics", "/arm/forces", "did you mean /arm/force?"),
        ("--only", "pictures", "actions, clouds, images"),
    ):
        done = robocache(*again, *options)
        assert (done.code, reason in done.err) == (2, True)
    assert "every stream is an action" in robocache(*again, "--topics", "/arm/command").out


def test_a_topic_with_a_name_that_no_spec_takes_is_left_out(first, exported):
    spec, text, done = first(Recording(dict.fromkeys(("/arm/force", "/arm/\x1b[31mforce: #"), moving)))
    assert [stream.topic for stream in spec.streams] == ["/arm/force"]
    assert "\x1b" not in text + done.out
    assert r"/arm/\x1b[31mforce: #" in text
    assert exported().code == 0


def test_topics_without_messages_or_a_rate_are_shown(first, tf_message):
    recording = Recording({"/arm/force": moving})
    recording.types |= {"/arm/silent": ARRAY, "/tf_static": "tf2_msgs/msg/TFMessage"}
    times = [START_NS, START_NS + 7_000, START_NS + 14_000]
    recording.messages += [("/tf_static", time, tf_message((0, "arm", "tool", (0, 0, 1)))) for time in times]
    _, text, done = first(recording)
    assert done.err == ""
    rows = {row[0]: row[1:] for row in map(str.split, done.out.splitlines()) if row and row[0].startswith("/")}
    assert rows["/arm/silent"] == ["0", "-", "-", "-", "-"]
    assert rows["/tf_static"][:2] == ["3", "-"]
    assert "/arm/silent (std_msgs/msg/Float64MultiArray): no messages" in text


def test_what_is_missing_is_not_cut_from_the_error(first, exported, tmp_path):
    first(Recording({f"/robot_with_a_long_name/camera_{n}/exposure": moving for n in range(12)}))
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


@pytest.mark.parametrize("name", NAMES)
def test_the_first_spec_of_a_real_recording_is_accepted_by_export(name, real, robocache, tmp_path):
    file, out = tmp_path / "spec.yaml", tmp_path / "dataset"
    assert robocache("info", real / name, "--write-spec", file).code == 0
    media = "none" if load_spec(file).vectors else "image"
    options = ("--out", out, "--media", media, "--jobs", 1, "--no-report")
    done = robocache("export", real / name, "--spec", file, *options)
    assert done.code == 0, done.err
    assert re.search(r"[1-9]\d* ticks in [1-9]", done.out)
