"""The node's lifecycle and parameters, over its services."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise

import pytest

pytest.importorskip("rclpy")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

from robocache_ros.nodes import frame_messages
from robocache_ros.nodes.publishers import Outputs
from robocache_ros.nodes.subscriptions import TopicSubscriptions
from robocache_ros.nodes.tick_loop import SimClockSource, TickLoop, WallClockSource
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.rig import until

TICK_NS = 20_000_000


def test_transitions_lead_through_the_states(rig, joint_spec):
    rig.fusion(joint_spec)

    states = [rig.state()]
    for transition in ("configure", "activate", "deactivate", "activate", "deactivate", "cleanup"):
        assert rig.change_state(transition), transition
        states.append(rig.state())

    assert states == ["unconfigured", "inactive", "active", "inactive", "active", "inactive", "unconfigured"]
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
    steps = []
    for kind, name in (
        (TopicSubscriptions, "discard"), (SimClockSource, "__init__"), (WallClockSource, "__init__"),
        (Outputs, "describe"), (TickLoop, "start"),
    ):  # fmt: skip
        step = getattr(kind, name)
        noted = lambda *given, step=step, kind=kind, **more: (steps.append(kind), step(*given, **more))[1]  # noqa: E731
        monkeypatch.setattr(kind, name, noted)

    rig.fusion(joint_spec, use_sim_time=use_sim_time).autostart()

    clock = SimClockSource if use_sim_time else WallClockSource  # which subscribes to /clock
    assert steps == [TopicSubscriptions, clock, Outputs, TickLoop]


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


def test_lifecycle_cycles_leave_no_thread_and_no_file(rig, joint_spec):
    rig.fusion(joint_spec)
    counts = []
    for _ in range(12):
        for transition in ("configure", "activate", "deactivate", "cleanup"):
            assert rig.change_state(transition)
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))

    threads, files = zip(*counts[1:], strict=True)
    assert threads[-1] <= threads[0]
    assert files[-1] <= files[0]


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
