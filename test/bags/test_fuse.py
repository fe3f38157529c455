from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags import fuse
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, load_spec
from test.bags.conftest import fused
from test.fuzz.messages import numbers, pose
from test.fuzz.node_inputs import raw_image
from test.fuzz.recordings import ARRAY, MS, POSE, START_NS, TYPES

CONFIG = Path(__file__).parents[2] / "config" / "panda_lift.yaml"


def arm_spec(**keys):
    pose_keys = {"topic": "/arm/pose", "type": POSE}
    streams = {
        "position": {**pose_keys, "field": "pose.position", "align": "linear"},
        "orientation": {**pose_keys, "field": "pose.orientation", "align": "slerp"},
        "command": {"topic": "/arm/command", "type": ARRAY, "dim": 2, "align": "hold"},
    }
    return load_spec({"robocache": 1, **keys, "streams": streams})


@pytest.fixture(scope="module")
def without_cameras():
    return load_spec(CONFIG).without_cameras()


@pytest.fixture(scope="module")
def lift(panda_lift, without_cameras):
    return without_cameras, *fused(panda_lift, without_cameras)[1:]


@pytest.fixture(scope="module")
def truth(panda_lift):
    with np.load(panda_lift / "truth.npz") as file:
        return dict(file)


def column(spec, valid, name):
    """The validity of a stream at each tick."""
    return valid[:, [stream.name for stream in spec.streams].index(name)]


def test_fused_joints_come_back_to_the_truth(lift, truth):
    spec, ticks, fused, valid = lift
    aligned = (column(spec, valid, "joint_position") == 1) & (ticks <= truth["stamp_ns"][-1])
    assert aligned.sum() > 430
    wanted = np.stack([np.interp(ticks, truth["stamp_ns"], joint) for joint in truth["joint_pos"].T], axis=1)
    error = fused[aligned, :7].astype(np.float64) - wanted[aligned]
    assert np.sqrt((error**2).mean()) < 1e-6


def test_no_tick_of_the_gap_passes_for_aligned_and_every_other_one_is(lift, truth):
    spec, ticks, fused, valid = lift
    seconds = (ticks - truth["stamp_ns"][0]) / 1e9
    gap = (seconds > 4.05) & (seconds < 4.202)  # the 150 ms that the joints are silent for, from 4.05 s on
    assert gap.sum() in (7, 8)
    for name in ("joint_position", "joint_velocity"):
        assert set(column(spec, valid, name)[gap]) == {0, 2}
    joints = column(spec, valid, "joint_position")
    assert not fused[gap & (joints == 0), :7].any()
    assert (joints[~gap & (ticks < truth["stamp_ns"][-1])] == 1).all()
    assert (ticks % 20_000_000 == 0).all()  # the epoch grid, without holes
    assert (np.diff(ticks) == 20_000_000).all()


def test_orientation_holds_through_the_flips_of_its_sign(lift, truth):
    spec, ticks, fused, valid = lift
    aligned = (column(spec, valid, "ee_orientation") == 1) & (ticks <= truth["stamp_ns"][-1])
    measured = fused[aligned, 19:23].astype(np.float64)
    stamps, quaternions = truth["stamp_ns"], truth["ee_quat_xyzw"].copy()
    for row in range(1, len(quaternions)):  # one sign, so that the truth can be interpolated by component
        quaternions[row] *= np.sign(quaternions[row] @ quaternions[row - 1])
    wanted = np.stack([np.interp(ticks[aligned], stamps, part) for part in quaternions.T], axis=1)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.allclose(np.linalg.norm(measured, axis=1), 1, atol=1e-6)
    apart = np.minimum(*(np.linalg.norm(measured + sign * wanted, axis=1) for sign in (-1, 1)))
    angle = 4 * np.arcsin(apart / 2)  # not from the dot product: near 1 its rounding alone is 5e-4 rad
    assert angle.max() < 1e-3


def test_deployed_marks_what_would_have_come_late(panda_lift, without_cameras):
    shorter = FusionSpec(robocache=1, streams=without_cameras.streams, delay_ms=1.0)
    ideal, deployed = (
        column(shorter, fused(panda_lift, shorter, visibility=visibility, trim=False).valid, "gripper")
        for visibility in ("ideal", "deployed")
    )
    assert (ideal == 1).mean() > 0.99
    assert (deployed == 2).mean() > 0.9  # logged about 1 ms after its stamp: its next sample has not arrived


@pytest.mark.parametrize(("after_ns", "first", "last"), [(-2, 0, 9), (-1, 0, 10), (0, 0, 10), (1, 1, 10)])
def test_the_ticks_are_from_the_first_message_to_1_ns_after_the_last(tmp_path, after_ns, first, last):
    """Of a recording with a message every 20 ms, so many ns after each tick."""
    arrivals = [START_NS + 20 * MS * k + after_ns for k in range(11)]
    bag = write_bag(tmp_path / "bag", {"/s": ARRAY}, [("/s", arrival, numbers(0)) for arrival in arrivals])
    spec = load_spec({"robocache": 1, "streams": {"s": {"topic": "/s", "type": ARRAY, "dim": 1}}})
    run = fused(bag, spec, trim=False).run
    assert ((run.ticks_ns[[0, -1]] - START_NS) // (20 * MS)).tolist() == [first, last]


def recorded(path, poses, commands, first_ms=0, value=(1.0, 2.0)):
    """Poses at 50 Hz and commands at 20 Hz."""
    messages = [("/arm/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(poses)]
    messages += [("/arm/command", START_NS + (first_ms + 50 * k) * MS, numbers(*value)) for k in range(commands)]
    return write_bag(path / "bag", TYPES, sorted(messages, key=lambda m: m[1]))


def test_ticks_without_every_stream_are_trimmed_at_the_ends_and_counted(tmp_path):
    run, ticks, _, valid = fused(recorded(tmp_path, 100, 10, first_ms=500), arm_spec())
    assert (valid[[0, -1]] > 0).all()
    assert run.leading == 25  # until the first command at 0.5 s
    assert run.trailing == len(run.ticks_ns) - 25 - len(ticks)
    assert ticks[-1] == START_NS + 1040 * MS  # the last command, at 0.95 s, is held for 100 ms


def test_a_stream_that_dies_keeps_the_ticks_after_it(tmp_path):
    run, ticks, _, valid = fused(recorded(tmp_path, 1000, 10), arm_spec())
    assert run.trailing < 10 * 50 + 64
    assert (valid[600:, 2] == 0).all()
    assert ticks[-1] > START_NS + 10_000 * MS


def test_images_of_a_long_tail_are_kept_in_the_dataset_and_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(fuse, "TAIL_BYTES", 100 * 3 * 8 * 8)  # of 100 ticks
    times = [START_NS + 20 * k * MS for k in range(300)]
    messages = [("/front", at, raw_image(at, 8, 8, "rgb8", 24, bytes(192))) for at in times]
    messages += [("/arm/command", at, numbers(1, 2)) for at in times[:50]]
    types = {"/front": "sensor_msgs/msg/Image", "/arm/command": ARRAY}
    streams = {
        "front": {"topic": "/front", "type": types["/front"], "image": {"size": [8, 8]}},
        "command": {"topic": "/arm/command", "type": ARRAY, "dim": 2, "align": "hold"},
    }
    bag = write_bag(tmp_path / "bag", types, sorted(messages, key=lambda m: m[1]))
    run, ticks, _, valid = fused(bag, load_spec({"robocache": 1, "streams": streams}))
    assert (valid[60:, 1] == 0).all()
    assert len(ticks) > 100
    assert run.trailing <= 100 + fuse.MEDIA_CHUNK
    assert len(ticks) + run.leading + run.trailing == len(run.ticks_ns)


def test_without_trim_every_tick_is_given_and_counters_say_what_became_of_the_messages(make_bag):
    run, ticks, _, _ = fused(make_bag(), arm_spec(), trim=False)
    assert len(ticks) == len(run.ticks_ns) == len(run.valid)
    assert (run.leading, run.trailing) == (0, 0)
    assert run.counters["position"]["received"] == run.counters["position"]["accepted"] == 100
    assert run.counters["command"]["received"] == 40


@pytest.mark.parametrize("trim", [True, False])
def test_a_recording_that_spans_no_tick_is_refused(tmp_path, trim):
    messages = [("/arm/command", START_NS + 3 * MS, numbers(1, 2)), ("/arm/pose", START_NS + 4 * MS, pose(START_NS))]
    bag = write_bag(tmp_path / "bag", TYPES, messages)
    with pytest.raises(RoboCacheError, match=r"bag: 1\.000 ms without a tick of 20 ms; leave the recording out"):
        fused(bag, arm_spec(), trim=trim)


def test_a_time_range_can_be_cut_out(panda_lift, without_cameras):
    with Bag(panda_lift) as bag:
        start = bag.start_ns + 3_000_000_000
    ticks = fused(panda_lift, without_cameras, start_ns=start, stop_ns=start + 2_000_000_000).ticks_ns
    assert start <= ticks[0] <= start + 200_000_000
    assert ticks[-1] <= start + 2_000_000_000


def test_a_stream_without_a_value_is_named_with_its_reason(tmp_path):
    reason = r"command never has a value \(command: dropped:.*; correct command: robocache check states what its"
    with pytest.raises(RoboCacheError, match=reason):
        fused(recorded(tmp_path, 50, 20, value=(1.0,)), arm_spec())


def test_the_next_command_of_a_deployed_tick_must_arrive_within_the_delay(make_bag):
    spec, bag = arm_spec(delay_ms=0), make_bag()
    *poses, command = spec.streams
    spec = replace(spec, streams=(*poses, replace(command, align="next", latency_ms=1)))
    assert len(fused(bag, spec).ticks_ns) > 30
    with pytest.raises(RoboCacheError, match=r"command never has a value; raise delay_ms to the time"):
        fused(bag, spec, visibility="deployed")


def test_a_spec_of_images_only_has_nothing_left_without_them():
    image = {"topic": "/image", "type": "sensor_msgs/msg/Image"}
    with pytest.raises(RoboCacheError, match="all of them are images"):
        load_spec({"robocache": 1, "streams": {"front": image}}).without_cameras()


TF = "tf2_msgs/msg/TFMessage"
POSES = {
    "robocache": 1,
    "delay_ms": 40,
    "streams": {"ee": {"topic": "/tf", "type": TF, "frames": ["base", "tool"], "max_gap_ms": 60, "max_age_ms": 60}},
}


@pytest.fixture
def poses(tmp_path, tf_message):
    """A second in which the arm moves 1 m/s; every fifth message takes 80 ms, and /tf_static comes last."""
    messages = [("/tf_static", START_NS + 1100 * MS, tf_message((0, "arm", "tool", (0, 0, 1))))]
    for k in range(50):
        stamp = START_NS + k * 20 * MS
        late = 80 if k % 5 == 4 else 2
        messages.append(("/tf", stamp + late * MS, tf_message((stamp, "base", "arm", (0.02 * k, 0, 0)))))
    return write_bag(
        tmp_path / "poses", {"/tf": TF, "/tf_static": TF}, sorted(messages, key=lambda message: message[1])
    )


def test_an_ideal_pose_is_that_of_the_tick(poses):
    _, ticks, values, valid = fused(poses, load_spec(POSES))
    inside = ticks <= START_NS + 980 * MS
    np.testing.assert_allclose(values[inside, 0], (ticks[inside] - START_NS) / 1e9, atol=1e-7)  # float32 of up to 1 m
    assert set(values[:, 2].tolist()) == {1.0}
    assert set(valid[inside, 0].tolist()) == {1}


def test_a_deployed_pose_lacks_what_came_too_late(poses):
    run, _, values, valid = fused(poses, load_spec(POSES), visibility="deployed")
    assert run.counters["ee"]["late"] == 10
    assert {1, 2} == set(valid[:-3, 0].tolist())
    assert np.isfinite(values).all()


def test_frames_that_are_not_connected_are_named_in_the_refusal(poses):
    spec = {**POSES, "streams": {"ee": {**POSES["streams"]["ee"], "frames": ["map", "tool"]}}}
    with pytest.raises(RoboCacheError, match="ee: no transform from base to map"):
        fused(poses, load_spec(spec))
