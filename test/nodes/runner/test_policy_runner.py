"""The node that runs a policy: what it sends over DDS, its services, and what is sent when something is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from array import array
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import TwistStamped
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool, Float32MultiArray, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger

from robocache_ros.bags.reader import Bag
from robocache_ros.engine import tick_grid
from robocache_ros.nodes import process
from robocache_ros.nodes.episode_recorder import EpisodeRecorder
from robocache_ros.nodes.frame_messages import fused_cdr, read_fused, stamp_ns
from robocache_ros.nodes.fusion_node import FusionNode
from robocache_ros.nodes.managed_node import FAILURE
from robocache_ros.nodes.policy_runner import PolicyRunner
from test.nodes.rig import ACTION, Rig, publishing, repeating, stamped, until

pytestmark = pytest.mark.usefixtures("forked_policies")

POLICY = """
import numpy as np

def seven(frame):
    return np.full((60, 2), 7) + np.arange(60)[:, None] / 64
"""
SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 10,
    "streams": {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"], "on_invalid": "hold"},
        "action": {"topic": "/command", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "unit": "rad/s", **ACTION},
    },
    "run": {
        "blend": "none",
        "coast_ticks": 1000,  # on a busy machine
        "outputs": {"action": {"topic": "/arm", "accept_no_timeout": True, "takeover": "/operator"}},
    },
}


class Robot:
    """A robot that publishes its joints, and hears commands."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._joints = rig.publisher(JointState, "/joints")
        self._operator = rig.publisher(Float64MultiArray, "/operator")
        self.commands = rig.listen(Float64MultiArray, "/arm")
        self.executed = rig.listen(Float32MultiArray, "/policy_runner/executed")
        self.actions = rig.listen(JointState, "/policy_runner/action")

    def move(self) -> None:
        self._joints.publish(stamped(JointState(name=["a", "b"], position=[0.0, 0.0])))

    def operate(self) -> None:
        self._operator.publish(Float64MultiArray(data=array("d", [3.0, 4.0])))

    def wait_for(self, condition: Any, what: str, operates: bool = False) -> None:
        def act() -> None:
            self.move()
            if operates:
                self.operate()

        until(repeating(act, condition, 0.01), what)

    @property
    def newest(self) -> list[float]:
        return list(self.commands.newest.data) if len(self.commands) else []

    def state(self) -> tuple[float, float]:
        row = self.executed.newest.data
        return row[2], row[3]


@pytest.fixture
def spec():
    return deepcopy(SPEC)


@pytest.fixture
def policy(tmp_path):
    (tmp_path / "mine.py").write_text(POLICY)
    return f"{tmp_path / 'mine.py'}:seven"


@pytest.fixture
def runner(rig, spec, policy):
    """The nodes in this process: a fusion node, and an active runner."""
    rig.fusion(spec).autostart()
    node = rig.runner(spec, policy=policy, diagnostics_period_s=0.1)
    assert node.autostart()
    return node


def test_a_policy_commands_until_it_is_stopped_and_an_operator_takes_over(rig, runner):
    robot = Robot(rig)
    interventions = rig.listen(Bool, "/policy_runner/intervention", latched=True)
    robot.wait_for(lambda: robot.newest and robot.newest[0] >= 7, "commands of the policy")
    assert (robot.newest[0] - 7) * 64 == round((robot.newest[0] - 7) * 64)  # a row of the chunk, to the bit
    until(lambda: robot.executed.newest.layout.dim[0].label.startswith("tick_ns="))
    robot.wait_for(lambda: robot.state() == (1, 1), "a row of the policy")

    assert rig.call(SetBool, "/policy_runner/takeover", data=True).success
    robot.wait_for(lambda: robot.newest == [3, 4], "commands of the operator", operates=True)
    robot.wait_for(lambda: robot.state()[1] == 3, "rows of the operator", operates=True)
    until(lambda: list(robot.actions.newest.position) == [3, 4, 1], "an action of the operator")
    assert list(robot.actions.newest.name) == ["action.0", "action.1", "intervention"]
    assert interventions.newest.data
    rig.call(SetBool, "/policy_runner/takeover", data=False)
    robot.wait_for(lambda: robot.newest[0] >= 7, "commands of the policy again")
    until(lambda: not interventions.newest.data and robot.actions.newest.position[2] == 0, "the end of the takeover")

    assert rig.call(Trigger, "/policy_runner/stop").success
    robot.wait_for(lambda: robot.newest == [0, 0], "zero velocity after a stop")

    def stopped() -> Any:
        status = rig.status("run")
        is_stopped = status and status.message == "stop: a call of ~/stop"
        return is_stopped and float(rig.counts("run")["inference_ms_p50"]) >= 0

    robot.wait_for(stopped, "the reason in the diagnostics")

    assert rig.call(Trigger, "/policy_runner/arm").success
    robot.wait_for(lambda: robot.newest[0] >= 7, "commands after arming")

    bad = rig.publisher(Float32MultiArray, "/policy_runner/chunk")

    def counted():
        return float(rig.counts("run").get("chunks_malformed", 0))

    until(repeating(lambda: bad.publish(Float32MultiArray(data=array("f", [1.0]))), counted), "a refused chunk")
    [process] = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGKILL)
    robot.wait_for(lambda: robot.newest == [0, 0], "zero velocity after the end of the policy")
    assert "exit code -9" in runner.parts.runner.reason


def test_commands_that_no_controller_receives_are_warned_of_once(rig, spec, capfd):
    del spec["run"]["outputs"]["action"]["topic"]  # the topic of the stream, which the fusion node subscribes to
    rig.fusion(spec).autostart()
    node = rig.runner(spec, diagnostics_period_s=0.1)
    assert node.autostart()
    other_node, controller = rig.stranger(), rig.stranger()  # a participant has one type for a topic

    def report(words: str) -> None:
        def shown() -> Any:
            status = rig.status("run")
            return status and status.level == DiagnosticStatus.WARN and status.message == words

        until(shown, words)
        reports = len(rig.diagnostics)
        until(lambda: len(rig.diagnostics) > reports + 5, "more reports")

    see = "ros2 topic info -v /command"
    wrong, right = (f"std_msgs/msg/{kind}MultiArray" for kind in ("Float32", "Float64"))
    none = f"nothing subscribes to /command ({right}); set the topic of the controller, see {see}"
    other = f"/command is subscribed to as {wrong}, not {right}; set the type that {see} shows"
    report(f"warmup; run.outputs.action: {none}")
    mistaken = other_node.create_subscription(Float32MultiArray, "/command", lambda _: None, 1)
    report(f"warmup; run.outputs.action: {other}")
    controller.create_subscription(Float64MultiArray, "/command", lambda _: None, 1)
    until(lambda: rig.node.count_subscribers("/command") == 3, "both nodes, and the fusion node")
    report(f"warmup; run.outputs.action: {other}")
    other_node.destroy_subscription(mistaken)
    report("warmup")
    process.detach(node.log)  # writes what waits
    logged = capfd.readouterr().err
    assert [logged.count(words) for words in (none, other)] == [1, 1], logged


def test_a_button_and_a_pedal_take_over_while_they_are_pressed(rig, spec, plug):
    node = rig.runner(spec, takeover_button=1, pedal="/dev/pedal")
    assert node.autostart()
    joy = rig.publisher(Joy, "/joy")
    interventions = rig.listen(Bool, "/policy_runner/intervention", latched=True)
    until(joy.get_subscription_count, "the game pad's subscriber")

    def taken() -> list[bool]:
        return [message.data for message in interventions.messages]

    until(lambda: taken() == [False], "the state at the start")

    def press(pressed: int) -> None:  # a game pad repeats its state
        publish = partial(joy.publish, Joy(buttons=[0, pressed]))
        until(repeating(publish, lambda: node.parts._pressed == pressed, 0.02), "the button")
        publish()

    press(1)
    press(0)
    until(lambda: len(interventions) == 3, "the button")
    plug.send("KEY_B", 1, 2, 2, 0)
    until(lambda: len(interventions) == 5, "the pedal")
    assert taken() == [False, True, False, True, False]

    plug.send("KEY_B", 1)
    until(lambda: len(interventions) == 6, "the pedal again")
    plug.pull()
    until(lambda: len(interventions) == 7, "the end of the takeover")
    assert node.parts.runner.state.value == "stop"
    assert node.parts.runner.reason == "the pedal was unplugged during a takeover"

    # A takeover ends with the activity of the node.
    plug.is_in = True
    node.parts.take_over(True)
    assert rig.change_state("deactivate", "/policy_runner")
    assert not node.parts.runner.in_takeover
    assert rig.change_state("activate", "/policy_runner")
    assert node.parts.runner.state.value == "warmup"


def test_the_limits_of_robot_description_hold(rig, spec):
    limit = '<limit lower="0" upper="1" velocity="2"/>'
    joints = "".join(f'<joint name="{name}" type="revolute">{limit}</joint>' for name in "ab")
    latched = rig.publisher(String, "/robot_description", durability=DurabilityPolicy.TRANSIENT_LOCAL, depth=1)
    latched.publish(String(data=f"<robot>{joints}</robot>"))
    spec["run"]["outputs"]["action"] |= {"urdf": "/robot_description", "names": ["a", "b"]}
    node = rig.runner(spec, spins=False)
    node.trigger_configure()
    assert node.parts.runner.outputs.limits.upper.tolist() == [2, 2]  # the outputs are velocities


def test_a_parameter_of_a_configured_runner_is_refused_and_a_run_that_cannot_be_leaves_nothing(rig, spec, policy):
    node = rig.runner(spec, spins=False, policy=policy, fusion="not a name")
    publishers = len(list(node.publishers))
    assert node.trigger_configure() != FAILURE  # rclpy refuses the name of the topic
    assert len(list(node.publishers)) == publishers
    assert not multiprocessing.active_children()
    node.set_parameters([Parameter("fusion", value="fusion_node"), Parameter("replan_every", value=7)])
    node.trigger_configure()
    assert node.configured
    for name, value in (("device", "cuda"), ("replan_every", 5)):
        [result] = node.set_parameters([Parameter(name, value=value)])
        assert not result.successful
        assert result.reason.startswith(f"{name}: is read when the node is configured; first call cleanup")
    node.trigger_cleanup()
    assert node.set_parameters([Parameter("replan_every", value=5)])[0].successful


@pytest.mark.parametrize("stop", ["hold", "none"])
def test_a_runner_that_cannot_send_stops_and_starts_again_when_it_is_armed(rig, spec, request, monkeypatch, stop):
    spec["run"]["stop"] = stop
    runner, robot = request.getfixturevalue("runner"), Robot(rig)
    robot.wait_for(lambda: robot.newest and robot.newest[0] >= 7, "commands of the policy")

    with monkeypatch.context() as patch:
        patch.setattr(runner.parts.runner, "messages", lambda *_: 1 / 0)
        robot.wait_for(lambda: runner.parts.runner.state.value == "stop", "the stop")
        if stop == "hold":
            robot.wait_for(lambda: robot.newest == [0, 0], "zero velocity")
            failing = len(robot.commands)
            robot.wait_for(lambda: len(robot.commands) > failing + 2, "zero velocity while the error lasts")
            assert robot.newest == [0, 0]

    def stopped() -> Any:
        status = rig.status("run")
        return status and status.message.startswith("stop: commands could not be sent: ZeroDivisionError")

    robot.wait_for(stopped, "the reason in the diagnostics")
    counts = []
    for _ in range(2):  # those that were on their way arrive by the first
        executed = len(robot.executed)
        robot.wait_for(lambda: len(robot.executed) > executed + 5, "ticks after the stop")  # noqa: B023
        counts.append(len(robot.commands))
    if stop == "hold":
        assert counts[1] > counts[0]
        assert robot.newest == [0, 0]
    else:
        assert counts[1] == counts[0]
    assert rig.call(Trigger, "/policy_runner/arm").success
    robot.wait_for(lambda: len(robot.commands) > counts[1] and robot.newest[0] >= 7, "commands after arming")


def test_chunks_of_another_process_are_executed_at_their_ticks(rig, spec):
    assert rig.runner(spec).autostart()
    robot = Robot(rig)
    chunks = rig.publisher(Float32MultiArray, "/policy_runner/chunk")
    rows = np.arange(100, dtype=np.float32)[:, None].repeat(2, 1)
    sent: list[int] = []

    def send() -> None:
        tick = tick_grid.last_at_or_before(time.time_ns(), 50) - 1
        sent.append(tick)
        chunks.publish(fused_cdr(tick_grid.tick_ns(tick, 50), rows))

    def executed() -> list[tuple[int, Any]]:
        found = [read_fused(message) for message in robot.executed.messages]
        return [(tick_ns, row) for tick_ns, (row,) in found if row[3] == 1]

    until(repeating(send, lambda: len(robot.commands) and executed()), "a command")

    for tick_ns, row in executed():
        assert row[0] == row[5]  # the row of the chunk is that of the ticks since its observation
        assert tick_grid.first_at_or_after(tick_ns, 50) - int(row[5]) in sent


def test_steps_follow_the_sim_clock_while_the_executor_of_the_node_is_busy(rig, spec):
    node = rig.runner(spec, spins=False, use_sim_time=True)  # no executor runs its callbacks
    assert node.autostart()
    executed = rig.listen(Float32MultiArray, "/policy_runner/executed")
    clock = rig.clock()
    for _ in range(3):
        clock.step()
        newest_ns = clock.now_ns
        clock.until(lambda ns=newest_ns: len(executed) and read_fused(executed.newest)[0] == ns, "the step of a tick")
    assert abs(node.get_clock().now().nanoseconds - clock.now_ns) <= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, 0])
def test_a_runner_that_is_killed_or_interrupted_or_quit_leaves_zero_velocity(rig, spec, policy, number):
    program = rig.program("run", policy, "--spec", rig.write(spec), "--takeover-button", "1")
    robot = Robot(rig)
    robot.wait_for(lambda: program.runs() and robot.newest and robot.newest[0] >= 7, "commands of the policy")
    if number:
        program.popen.send_signal(number)
    else:
        joy = rig.publisher(Joy, "/joy")
        intervention = rig.listen(Bool, "/policy_runner/intervention", latched=True)

        def taken_over():
            return len(intervention) and intervention.newest.data

        until(repeating(lambda: joy.publish(Joy(buttons=[0, 1])), taken_over, 0.02), "the takeover")
        for line in ("jump", "s", "q"):
            program.say(line)
    assert program.wait() == (-signal.SIGKILL if number == signal.SIGKILL else 0), program.log.read_text()
    until(lambda: robot.newest == [0, 0], "zero velocity")
    assert number or "'jump' is no action" in program.log.read_text()


CODE = """
import os
from pathlib import Path
import numpy as np

Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))

def ones(frame):
    return np.ones((50, WIDTH))
"""
ARRAY, JOINTS, TWIST = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState", "geometry_msgs/msg/TwistStamped"
JOG = "control_msgs/msg/JointJog"
VELOCITY_SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 10,
    "streams": {
        "joints": {"topic": "/joints", "type": JOINTS, "names": ["a"], "on_invalid": "hold"},
        "wheels": {"topic": "/wheels", "type": ARRAY, "dim": 2, "unit": "rad/s", **ACTION},
        "fingers": {"topic": "/fingers", "type": JOINTS, "names": ["l", "r"], "field": "velocity", "role": "action"},
        "base": {"topic": "/base", "type": TWIST, "field": ["twist.linear", "twist.angular"], **ACTION},
    },
    "run": {
        "coast_ticks": 100,  # on a busy machine
        "outputs": {"wheels": {"accept_no_timeout": True}, "fingers": {"accept_no_timeout": True}},
    },
}
# The type of the commands of each output, and how their velocities are read.
VELOCITIES: dict[str, tuple[type[Any], Callable[[Any], list[float]]]] = {
    "wheels": (Float64MultiArray, lambda message: list(message.data)),
    "fingers": (JointState, lambda message: list(message.velocity)),
    "base": (TwistStamped, lambda message: [message.twist.linear.x]),
}
if find_spec("control_msgs"):  # a package of ROS that is not on PyPI: of a sourced ROS, or of a workspace
    from control_msgs.msg import JointJog

    VELOCITIES["jog"] = (JointJog, lambda message: list(message.velocities))
    VELOCITY_SPEC["streams"]["jog"] = {"topic": "/jog", "type": JOG, "field": "velocities", "dim": 2, **ACTION}
    VELOCITY_SPEC["run"]["outputs"]["jog"] = {"names": ["l", "r"]}


@pytest.mark.parametrize(
    "killed", ["fusion", pytest.param("policy", marks=pytest.mark.slow), pytest.param("runner", marks=pytest.mark.slow)]
)
def test_the_last_velocity_is_zero_on_every_output_whatever_is_killed(rig, tmp_path, killed):
    (tmp_path / "mine.py").write_text(CODE.replace("WIDTH", "12" if "jog" in VELOCITIES else "10"))
    fusion = rig.process(VELOCITY_SPEC)
    words = ("run", f"{tmp_path / 'mine.py'}:ones", "--spec", rig.write(VELOCITY_SPEC), "--fusion", "fusion_node")
    runner = rig.program(*words)
    joints = rig.publisher(JointState, "/joints")
    inboxes = {name: rig.listen(kind, f"/{name}") for name, (kind, _) in VELOCITIES.items()}

    def move() -> None:
        joints.publish(stamped(JointState(name=["a"], position=[0.0])))

    def wait_for(velocity: float, what: str) -> None:
        def found() -> bool:
            reads = [(inboxes[name], read) for name, (_, read) in VELOCITIES.items()]
            return all(len(inbox) and set(read(inbox.newest)) == {velocity} for inbox, read in reads)

        until(repeating(move, found, 0.01), what)

    wait_for(1.0, "commands of the policy")
    pids = {"fusion": fusion.popen.pid, "runner": runner.popen.pid, "policy": int((tmp_path / "mine.pid").read_text())}
    os.kill(pids[killed], signal.SIGKILL)
    wait_for(0.0, "zero velocity")
    assert runner.wait() == -signal.SIGKILL if killed == "runner" else runner.runs()
    for name in VELOCITIES.keys() & {"base", "fingers", "jog"}:
        stamps_ns = [stamp_ns(message.header) for message in inboxes[name].messages]
        assert np.diff(stamps_ns).min() >= 0  # a receiver ignores a command that is old


def test_each_robot_is_commanded_and_recorded_by_its_own_nodes(rig, tmp_path):
    """Two robots in one graph: fusion node, policy runner and recorder of each in a namespace, with one spec."""
    robots = {"left": 1.0, "right": 2.0}  # the position of the joints
    arm = {"topic": "arm/commands", "type": ARRAY, "dim": 2, "on_invalid": "mask", **ACTION}
    joints = {"topic": "joint_states", "type": JOINTS, "names": ["a", "b"], "on_invalid": "hold"}
    spec = rig.write({"robocache": 1, "delay_ms": 20, "streams": {"joints": joints, "arm": arm}})
    (tmp_path / "mine.py").write_text("def follow(frame):\n    return [list(frame['joints'][-1])] * 40\n")

    def start(kind: Any, robot: str, **values: Any) -> None:
        remap = ["--ros-args", "-r", "joint_states:=joints"]  # as a driver of another maker names it
        rig.make(kind, {"spec": str(spec), **values}, namespace=robot, cli_args=remap).autostart()

    publishers, commands = {}, {}
    for robot in robots:
        start(FusionNode, robot)
        start(PolicyRunner, robot, policy=f"{tmp_path / 'mine.py'}:follow")
        start(EpisodeRecorder, robot, out=str(tmp_path / robot), task="follow")
        publishers[robot] = rig.publisher(JointState, f"/{robot}/joints")
        commands[robot] = rig.listen(Float64MultiArray, f"/{robot}/arm/commands")

    def move() -> None:
        for robot, value in robots.items():
            publishers[robot].publish(stamped(JointState(name=["a", "b"], position=[value, value])))

    with publishing(move):
        until(lambda: all(len(each) > 5 for each in commands.values()), "commands of both")
        for robot in robots:
            started = rig.call(Trigger, f"/{robot}/episode_recorder/start")
            assert started.success, started.message
        count = {robot: len(each) for robot, each in commands.items()}
        until(lambda: all(len(commands[each]) > count[each] + 20 for each in robots), "an episode")
        for robot in robots:
            ended = rig.call(SetBool, f"/{robot}/episode_recorder/end", data=True)
            assert ended.success, ended.message

    for robot, value in robots.items():
        assert {tuple(message.data) for message in commands[robot].messages} == {(value, value)}
        (file,) = (tmp_path / robot).glob("*.mcap")
        with Bag(file) as bag:
            recorded = {name for name, topic in bag.topics.items() if topic.count}
        assert f"/{robot}/joint_states" in recorded
        assert f"/{robot}/policy_runner/executed" in recorded
        assert not any(name.startswith(f"/{other}/") for name in recorded for other in robots if other != robot)
