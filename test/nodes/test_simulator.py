"""The simulator over real DDS: /clock, commands, services, and the wait for the command of a tick."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from robocache_ros.sim.so101 import JOINTS
from test.nodes.rig import Rig, repeating, until

pytest.importorskip("rclpy", reason="needs the `ros` extra")
pytest.importorskip("std_srvs", reason="needs the `ros` extra")


@pytest.fixture
def simulator(rig: Rig) -> Iterator[Any]:
    from robocache_ros.nodes.simulator import Simulator
    from robocache_ros.sim.command import SimArguments
    from robocache_ros.sim.simulation import SimOptions

    node = Simulator(SimArguments(SimOptions(camera=False), rate=1.0, lockstep=True), context=rig.context)
    rig.executor.add_node(node)
    stopped = threading.Event()
    thread = threading.Thread(target=node.run, args=(stopped.is_set,), daemon=True)
    thread.start()
    yield node
    stopped.set()
    thread.join(30)
    rig.executor.remove_node(node)
    node.destroy_node()


def test_the_simulator_owns_the_clock_moves_by_commands_and_resets(rig: Rig, simulator: Any) -> None:
    from rosgraph_msgs.msg import Clock
    from sensor_msgs.msg import JointState
    from std_msgs.msg import Bool
    from std_srvs.srv import SetBool, Trigger

    clock = rig.listen(Clock, "/clock")
    joints = rig.listen(JointState, "/so101/joint_states")
    episode = rig.listen(Bool, "/so101/episode", latched=True)
    commands = rig.publisher(JointState, "/so101/commands")

    # Joint states bear the time of /clock, and an episode runs.
    until(lambda: len(clock) > 20 and len(joints) > 20 and len(episode), "messages")
    assert episode.newest.data
    stamps = [message.header.stamp.sec * 10**9 + message.header.stamp.nanosec for message in joints.messages[:20]]
    steps = [after - before for before, after in pairwise(stamps)]
    assert all(step > 0 and step % 2_000_000 == 0 for step in steps)  # a reader that stalls misses some

    # A wrong command is ignored; the arm follows a good one, and stays when no more come: the clock goes on.
    until(commands.get_subscription_count, "the subscription")
    commands.publish(JointState(name=["shoulder_pan"], position=[1.0]))
    command = JointState(name=list(reversed(JOINTS)), position=[0.0, 0.0, 0.0, 0.0, 0.0, 0.3])
    until(
        repeating(lambda: commands.publish(command), lambda: abs(joints.newest.position[0] - 0.3) < 0.05),
        "the arm to follow",
    )
    before = len(clock)
    until(lambda: len(clock) > before + 50, "the clock after the last command")

    # A reset brings it home; the next one has the next seed.
    assert rig.call(Trigger, "/simulator/reset", Trigger.Request()).message == "seed 0"
    until(lambda: abs(joints.newest.position[0]) < 0.01, "the arm at home")
    assert rig.call(Trigger, "/simulator/reset", Trigger.Request()).message == "seed 1"

    # The expert acts when it is switched on.
    assert rig.call(SetBool, "/simulator/expert", SetBool.Request(data=True)).success
    until(lambda: joints.newest.position[5] > 1.0, "the expert to open the gripper")
