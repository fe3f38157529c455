"""The node's parameters and arguments: checked, described, and passed to the engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.parameter import Parameter

from robocache_ros.nodes import fusion_node
from robocache_ros.nodes.parameters import PARAMETERS
from test import forked


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"diagnostics_period_s": 1}, "'diagnostics_period_s' to '1' of type 'INTEGER', expecting type 'DOUBLE'"),
        ({"ring_slots": 5000}, "ring_slots out of range"),
    ],
    ids=["type", "range"],
)
def test_invalid_parameter_ends_the_node_with_one_line(
    rig: Any, joint_spec: dict[str, Any], given: dict[str, Any], expected: str
) -> None:
    process = rig.start(joint_spec, **given)

    assert process.popen.wait(60) == 1
    log = process.log.read_text()
    assert expected in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"jpeg": "tpu"}, "jpeg: 'tpu' is not one of cpu, gpu"),
        ({"jpeg": "gpu"}, "jpeg: 'gpu' needs a GPU"),
        ({"payload_bytes": "joints"}, "payload_bytes: 'joints' is not <stream>=<bytes>"),
        ({"payload_bytes": "front=0"}, "payload_bytes: 'front=0' is not <stream>=<bytes>"),
        ({"payload_bytes": "joints = 100"}, "payload_bytes.joints: no image or cloud stream has that name; the"),
    ],
    ids=["unknown decoder", "no gpu", "no size", "size of nothing", "no image"],
)
def test_invalid_engine_parameter_fails_configure_with_one_line(
    rig: Any, joint_spec: dict[str, Any], capfd: pytest.CaptureFixture[str], parameters: dict[str, str], expected: str
) -> None:
    rig.fusion(joint_spec, **parameters)

    assert not rig.change_state("configure")

    errors = [line for line in capfd.readouterr().err.splitlines() if "[ERROR]" in line or "Traceback" in line]
    assert len(errors) == 1
    assert expected in errors[0]


@pytest.mark.parametrize(("name", "value"), [("spec", "/other.yaml"), ("device", "cuda"), ("normalized", True)])
def test_parameter_read_at_configure_is_refused_on_a_configured_node(
    rig: Any, joint_spec: dict[str, Any], name: str, value: Any
) -> None:
    node = rig.fusion(joint_spec)
    before = node.get_parameter(name).value
    assert rig.change_state("configure")

    (refused,) = set_parameters(rig, {name: value})

    assert not refused.successful
    assert refused.reason.startswith(f"{name}: is read when the node is configured")
    assert "ros2 lifecycle set /fusion_node" in refused.reason
    assert node.get_parameter(name).value == before
    assert rig.change_state("cleanup")
    (accepted,) = set_parameters(rig, {name: value})
    assert accepted.successful


def test_use_sim_time_is_refused_on_an_active_node_only(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec).autostart()

    (refused,) = set_parameters(rig, {"use_sim_time": True})

    assert not refused.successful
    assert refused.reason.startswith("use_sim_time: is read when the node is activated")
    assert rig.change_state("deactivate")
    (accepted,) = set_parameters(rig, {"use_sim_time": True})
    assert accepted.successful


def test_parameter_set_to_its_own_value_is_accepted(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec).autostart()

    (accepted,) = set_parameters(rig, {"device": "cpu"})

    assert accepted.successful


def set_parameters(rig: Any, values: dict[str, Any]) -> Any:
    request = SetParameters.Request(parameters=[Parameter(n, value=v).to_parameter_msg() for n, v in values.items()])
    return rig.call(SetParameters, "/fusion_node/set_parameters", request).results


def test_help_shows_every_parameter_and_starts_no_node() -> None:
    done = run("--help")

    assert done.returncode == 0
    assert all(f"\n  {parameter.name}\n" in done.stdout for parameter in PARAMETERS)
    assert "-p NAME:=VALUE" in done.stdout
    assert done.stderr == ""


def test_argument_that_is_no_ros_argument_is_refused() -> None:
    done = run("robot.yaml")

    assert done.returncode == 2
    assert "robot.yaml: not a ROS argument; give parameters as --ros-args -p NAME:=VALUE" in done.stderr
    assert "Traceback" not in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robocache_ros.nodes.fusion_node", *arguments]
    return forked.run(command, preload=forked.NODE, capture_output=True, text=True, timeout=60, check=False)


def test_engine_gets_the_parameters(rig: Any, panda_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Noted(fusion_node.LoggedEngine):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            given.update(options)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(fusion_node, "LoggedEngine", Noted)
    rig.fusion(panda_spec, normalized=True, payload_bytes="wrist=57600, voxels=800000")

    assert rig.change_state("configure")

    assert given == {"normalized": True, "jpeg": "cpu", "payload_bytes": {"wrist": 57600, "voxels": 800000}}


def test_parameters_are_described(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec)
    names = [parameter.name for parameter in PARAMETERS]

    answer = rig.call(DescribeParameters, "/fusion_node/describe_parameters", DescribeParameters.Request(names=names))

    assert all(descriptor.description for descriptor in answer.descriptors)
    (period,) = answer.descriptors[-1].floating_point_range
    assert (period.from_value, period.to_value) == (0.1, 60.0)
