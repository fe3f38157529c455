"""The simulator over real DDS: /clock, commands, services, and the wait for the command of a tick."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger

from robocache_ros.nodes.frame_messages import stamp_ns
from robocache_ros.sim.so101 import JOINTS, STEP_NS
from test.nodes.rig import PATIENCE_S, repeating, stamped, until


@pytest.fixture
def simulator(rig):
    with rig.simulator("--rate=1") as node:
        yield node


def test_the_simulator_owns_the_clock_moves_by_commands_and_resets(rig, simulator):
    clock = rig.listen(Clock, "/clock")
    joints = rig.listen(JointState, "/so101/joint_states")
    episode = rig.listen(Bool, "/so101/episode", latched=True)
    commands = rig.publisher(JointState, "/so101/commands")

    # Joint states bear the time of /clock, and an episode runs.
    until(lambda: len(clock) > 20 and len(joints) > 20 and len(episode), "messages")
    assert episode.newest.data
    stamps = [stamp_ns(message.header) for message in joints.messages[:20]]
    steps = [after - before for before, after in pairwise(stamps)]
    assert all(step > 0 and step % 2_000_000 == 0 for step in steps)  # a reader that stalls misses some

    # A wrong command is ignored; the arm follows a good one, and stays when no more come: the clock goes on.
    until(commands.get_subscription_count, "the subscription")
    commands.publish(JointState(name=["shoulder_pan"], position=[1.0]))
    command = JointState(name=list(reversed(JOINTS)), position=[0.0, 0.0, 0.0, 0.0, 0.0, 0.3])
    follows = repeating(lambda: commands.publish(command), lambda: abs(joints.newest.position[0] - 0.3) < 0.05)
    until(follows, "the arm to follow")
    before = len(clock)
    until(lambda: len(clock) > before + 50, "the clock after the last command")

    # A reset brings it home; the next one has the next seed.
    assert rig.call(Trigger, "/simulator/reset").message == "seed 0"
    until(lambda: abs(joints.newest.position[0]) < 0.01, "the arm at home")
    assert rig.call(Trigger, "/simulator/reset").message == "seed 1"

    # The expert acts when it is switched on.
    assert rig.call(SetBool, "/simulator/expert", data=True).success
    until(lambda: joints.newest.position[5] > 1.0, "the expert to open the gripper")


def test_in_lockstep_a_late_command_of_an_earlier_tick_does_not_end_the_wait(rig, monkeypatch):
    monkeypatch.setattr("robocache_ros.nodes.simulator.WAIT_S", PATIENCE_S)
    clock = rig.listen(Clock, "/clock")
    commands = rig.publisher(JointState, "/so101/commands")
    with rig.simulator() as node:
        until(lambda: commands.get_subscription_count() and len(clock), "the simulator")

        def send(time_ns: int) -> None:
            commands.publish(stamped(JointState(name=list(JOINTS), position=[0.25] * 6), time_ns))

        def waits() -> list[int]:
            times = (message.clock.sec * 10**9 + message.clock.nanosec for message in clock.messages)
            return sorted({time_ns - 1 for time_ns in times if time_ns % 1000})

        send(node.simulation.now_ns)  # ends the first wait, whatever its time
        for done in range(2, 7):
            tick_ns = until(lambda count=done: waits()[count - 1 : count], "the wait of a tick")[0]
            assert len(waits()) == done
            for _ in range(3):
                send(tick_ns - 20_000_000)
            send(tick_ns)
            until(lambda count=done: len(waits()) > count, "the next tick")
        assert [after - before for before, after in pairwise(waits())] == [20_000_000] * 6


def test_in_lockstep_the_first_episode_begins_with_the_first_command(rig, monkeypatch):
    longest_ns = 10**8
    monkeypatch.setattr("robocache_ros.sim.simulation.LONGEST_NS", longest_ns)
    clock = rig.listen(Clock, "/clock")
    episode = rig.listen(Bool, "/so101/episode", latched=True)
    commands = rig.publisher(JointState, "/so101/commands")
    begin_ns = time.monotonic_ns()
    with rig.simulator("--episodes=1", "--rate=0") as node:
        first_ns = node.simulation.now_ns
        until(lambda: len(clock) and node.simulation.now_ns > first_ns + 3 * longest_ns, "the time of three episodes")
        assert episode.newest.data
        # In real time at most, though `rate` is 0: else the first observations of a policy would be invalid.
        assert node.simulation.now_ns - first_ns <= time.monotonic_ns() - begin_ns + STEP_NS

        begun_ns = node.simulation.now_ns
        command = JointState(name=list(JOINTS), position=[0.25] * 6)
        ended = repeating(lambda: commands.publish(command), lambda: not episode.newest.data, 0.02)
        until(ended, "the end of the episode")
        assert node.simulation.now_ns - begun_ns >= longest_ns
