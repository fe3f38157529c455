"""The node's lifecycle and parameters, over its services."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rcl_interfaces.srv import DescribeParameters
from std_msgs.msg import Float32MultiArray, String

from robocache_ros.layout import Layout
from robocache_ros.nodes import fusion_node, messages
from robocache_ros.spec import load_spec


def test_transitions_lead_through_the_states(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec)

    states = [rig.state()]
    for transition in ("configure", "activate", "deactivate", "activate", "deactivate", "cleanup"):
        assert rig.change_state(transition), transition
        states.append(rig.state())

    assert states == ["unconfigured", "inactive", "active", "inactive", "active", "inactive", "unconfigured"]
    assert rig.change_state("shutdown")
    assert rig.state() == "finalized"


def test_active_node_publishes_every_tick_of_the_grid(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")

    wait(lambda: len(fused) > 20, "ticks")

    ticks = [messages.read_fused(message)[0] for message in fused.messages]
    assert all(tick % 20_000_000 == 0 for tick in ticks)
    assert {b - a for a, b in pairwise(ticks)} == {20_000_000}


def test_inactive_node_publishes_nothing(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused), "a tick")

    rig.change_state("deactivate")
    rig.state()  # answered after whatever was on its way
    before = len(fused)
    rig.change_state("cleanup")

    assert len(fused) == before


def test_window_has_a_row_a_tick_and_a_column_a_value(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused), "a tick")

    tick, column = fused.newest.layout.dim

    columns = Layout(load_spec(joint_spec)).row_width
    assert tick.label.startswith("tick_ns=")
    assert (tick.size, tick.stride) == (4, 4 * columns)
    assert (column.label, column.size, column.stride) == ("column", columns, columns)
    assert len(fused.newest.data) == 4 * columns


def test_layout_reaches_those_who_come_later(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec).autostart()

    layout = rig.listen(String, "/fusion_node/layout", latched=True)

    wait(lambda: len(layout), "the layout")
    assert layout.newest.data == Layout(load_spec(joint_spec)).to_json()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "parameter spec: empty"),
        ("/nowhere/spec.yaml", "/nowhere/spec.yaml: cannot be read"),
        ({"robocache": 1, "streams": {"a": {"topic": "/a", "typ": "x"}}}, "streams.a.typ"),
        (
            {"robocache": 1, "streams": {"a": {"topic": "/a", "type": "nowhere_msgs/msg/A", "field": "x", "dim": 1}}},
            "nowhere_msgs/msg/A is not installed",
        ),
    ],
    ids=["none", "no file", "unknown key", "unknown package"],
)
def test_spec_that_cannot_be_used_fails_configure_with_one_line(
    rig: Any, capfd: pytest.CaptureFixture[str], spec: Any, said: str
) -> None:
    rig.fusion(spec)

    assert not rig.change_state("configure")

    assert rig.state() == "unconfigured"
    errors = [line for line in capfd.readouterr().err.splitlines() if "[ERROR]" in line or "Traceback" in line]
    assert len(errors) == 1
    assert said in errors[0]


def test_device_that_is_not_there_fails_configure(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec, device="quantum")

    assert not rig.change_state("configure")


def test_node_that_cannot_start_by_itself_says_how_to_start_it(rig: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rig.fusion("/nowhere/spec.yaml").autostart()

    assert rig.state() == "unconfigured"
    assert "ros2 lifecycle set /fusion_node configure" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"diagnostics_period_s": 1}, "'diagnostics_period_s' to '1' of type 'INTEGER', expecting type 'DOUBLE'"),
        ({"ring_slots": 5000}, "ring_slots out of range"),
    ],
    ids=["type", "range"],
)
def test_parameter_that_the_node_does_not_take_ends_it_with_one_line(
    rig: Any, joint_spec: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    process = rig.start(joint_spec, **given)

    assert process.popen.wait(60) == 1
    log = process.log.read_text()
    assert said in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"jpeg": "tpu"}, "jpeg: 'tpu' is not one of cpu, gpu"),
        ({"jpeg": "gpu"}, "jpeg: 'gpu' needs a GPU"),
        ({"payload_bytes": "joints"}, "payload_bytes: 'joints' is not <stream>=<bytes>"),
        ({"payload_bytes": "front=0"}, "payload_bytes: 'front=0' is not <stream>=<bytes>"),
        ({"payload_bytes": "joints = 100"}, "payload_bytes.joints: no image or cloud stream has that name; the"),
    ],
    ids=["unknown decoder", "no gpu", "no size", "size of nothing", "no image"],
)
def test_engine_parameter_that_cannot_be_fails_configure_with_one_line(
    rig: Any, joint_spec: dict[str, Any], capfd: pytest.CaptureFixture[str], parameters: dict[str, str], said: str
) -> None:
    rig.fusion(joint_spec, **parameters)

    assert not rig.change_state("configure")

    errors = [line for line in capfd.readouterr().err.splitlines() if "[ERROR]" in line or "Traceback" in line]
    assert len(errors) == 1
    assert said in errors[0]


def test_engine_gets_the_parameters(rig: Any, panda_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Noted(fusion_node.FusionEngine):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            given.update(options)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(fusion_node, "FusionEngine", Noted)
    rig.fusion(panda_spec, normalized=True, payload_bytes="wrist=57600, voxels=800000")

    assert rig.change_state("configure")

    assert given == {"normalized": True, "jpeg": "cpu", "payload_bytes": {"wrist": 57600, "voxels": 800000}}


def test_parameters_are_described(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec)
    names = ["spec", "device", "autostart", "normalized", "jpeg", "payload_bytes", "base_frame", "diagnostics_period_s"]

    answer = rig.call(DescribeParameters, "/fusion_node/describe_parameters", DescribeParameters.Request(names=names))

    assert all(descriptor.description for descriptor in answer.descriptors)
    (period,) = answer.descriptors[-1].floating_point_range
    assert (period.from_value, period.to_value) == (0.1, 60.0)


def test_an_error_under_way_takes_the_node_to_unconfigured_and_it_can_start_again(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    node = rig.fusion(joint_spec)
    node.autostart()

    node.fail(RuntimeError("the device is gone"))

    wait(lambda: rig.state() == "unconfigured", "the error to be handled")
    assert rig.change_state("configure")
    assert rig.change_state("activate")


def test_cycles_leave_no_thread_and_no_file_behind(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec)
    counts = []
    for _ in range(12):
        for transition in ("configure", "activate", "deactivate", "cleanup"):
            assert rig.change_state(transition)
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))

    threads, files = zip(*counts[1:], strict=True)
    assert threads[-1] <= threads[0]
    assert files[-1] <= files[0]


def test_name_namespace_and_topics_can_be_remapped(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any], tmp_path: Path
) -> None:
    from sensor_msgs.msg import JointState

    joints = rig.publisher(JointState, "/elsewhere/joints")
    layout = rig.listen(String, "/left/arm/layout", latched=True)
    process = rig.start(joint_spec, remap=["__node:=arm", "__ns:=/left", "/joints:=/elsewhere/joints"], autostart=True)

    wait(lambda: len(layout) and joints.get_subscription_count(), "the remapped names")

    assert process.stop() == 0
