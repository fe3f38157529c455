"""`simulator`: the simulated robot of `robocache_ros.sim` as a ROS 2 node, which owns /clock."""

from __future__ import annotations

import math
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger

from robocache_ros.bags.player import SteadyClock
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import middleware, process, transport
from robocache_ros.nodes.managed_node import Declared, declare
from robocache_ros.sim.command import SimArguments, parse
from robocache_ros.sim.simulation import COMMANDS, EPISODE, OPERATOR, SUCCESS, TYPES, Simulation
from robocache_ros.sim.so101 import JOINTS
from robocache_ros.units import NS_PER_S

QUEUE_DEPTH = 5000  # messages kept for a slow subscriber; acknowledged messages are freed
ACKNOWLEDGED_NS = 100_000_000  # the simulation runs ahead of its reliable subscribers by this much at most
WAIT_S = 1.0  # longest wait for an acknowledgement, or for the command of a tick
INTERVENTION = "policy_runner/intervention"  # whether the operator commands
SEEDS = (0, 2**62)
MAX_WAITING = 1000  # commands and calls that wait for the next step


class Simulator(Node):
    """Publishes the robot's topics and /clock, and takes its commands.

    All of the simulation runs in `run`; callbacks hand over what they received.
    """

    def __init__(self, given: SimArguments, context: rclpy.Context | None = None) -> None:
        super().__init__("simulator", context=context)
        self._given = given
        self.simulation = Simulation(given.options)
        seed = Declared("seed", given.seed, "Seed of the episode that ~/reset begins; it then is one more.", "", SEEDS)
        declare(self, [seed])
        reliable, latched = middleware.reliable(QUEUE_DEPTH), middleware.latched()
        self._outputs: dict[str, Any] = {
            topic: self.create_publisher(
                middleware.load_message_class(kind) or Bool, topic, latched if topic in (SUCCESS, EPISODE) else reliable
            )
            for topic, kind in TYPES.items()
        }
        if given.operator:
            self._outputs[OPERATOR] = self.create_publisher(JointState, OPERATOR, reliable)
        self._clock_output: Any = self.create_publisher(Clock, "/clock", reliable)
        self._changed = threading.Condition()
        self._received: deque[Callable[[], None]] = deque()
        self._commanded_ns: int | None = None  # newest stamp of a command from another node since the last wait
        self._waited_ns = -1  # time on /clock during the last wait
        self._ignored = 0
        self._is_locked = False  # with lockstep: commands come, and each tick waits for its own
        self._awaits_commands = (
            given.lockstep and given.episodes > 0 and not given.expert
        )  # the first episode begins with the first command
        self.create_subscription(JointState, COMMANDS, self._on_command, middleware.reliable(10))
        if given.operator:
            self.create_subscription(Bool, INTERVENTION, self._on_intervention, latched)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.create_service(SetBool, "~/expert", self._on_expert)

    def run(self, ended: Callable[[], bool]) -> tuple[int, int]:
        """Simulate until it has ended, or all episodes are over; returns the successes and the episodes."""
        given, simulation = self._given, self.simulation
        steady = SteadyClock(stopped=ended)
        due_ns, last_ns = time.monotonic_ns(), simulation.now_ns
        successes = episodes = 0
        simulation.begin(given.seed, expert=given.expert)
        acknowledged_ns = simulation.now_ns
        if self._awaits_commands:
            self.get_logger().info(f"the first episode begins with the first command on {COMMANDS}")
        while not ended():
            self._take()
            self._publish()
            if given.lockstep and simulation.at_tick:
                self._wait_for_command(ended)
            simulation.step()
            if self._awaits_commands:
                if self._is_locked or simulation.episode_has_ended:
                    self._awaits_commands = not self._is_locked
                    simulation.begin(given.seed, expert=False)
            elif given.episodes and simulation.episode_has_ended:
                successes, episodes = successes + simulation.robot.is_success, episodes + 1
                word = "success" if simulation.robot.is_success else "failure"
                self.get_logger().info(f"episode {episodes} of {given.episodes}: {word}")
                simulation.end()
                self._publish()
                simulation.step()
                if episodes == given.episodes:
                    break
                simulation.begin(given.seed + episodes, expert=given.expert)
            elapsed_ns, last_ns = simulation.now_ns - last_ns, simulation.now_ns
            if rate := self._rate():
                due_ns += round(elapsed_ns / rate)
                steady.sleep_until(due_ns)
                if (late_ns := time.monotonic_ns() - due_ns) > NS_PER_S:  # a slow machine: do not catch up
                    due_ns += late_ns
            else:
                due_ns = time.monotonic_ns()
            if simulation.now_ns - acknowledged_ns >= ACKNOWLEDGED_NS:
                acknowledged_ns = simulation.now_ns
                self.wait_for_acknowledgement()
        return successes, episodes

    def _rate(self) -> float:
        """The speed now; 0: as fast as subscribers follow.

        In lockstep it is real time at most while no commands come: a faster simulation leaves the fusion node behind,
        so that the policy starts with invalid observations.
        """
        rate = self._given.rate
        return rate if self._is_locked or not self._given.lockstep else min(rate or 1.0, 1.0)

    def wait_for_acknowledgement(self) -> None:
        """Wait until all reliable subscribers have all messages, so that the simulation does not run away from them."""
        middleware.wait_acknowledged(self._outputs.values(), WAIT_S)

    def _publish(self) -> None:
        self._publish_clock(self.simulation.now_ns)
        for message in self.simulation.publish():
            self._outputs[message.topic].publish(message.data)

    def _publish_clock(self, now_ns: int) -> None:
        self._clock_output.publish(struct.pack("<4siI", b"\0\1\0\0", *divmod(now_ns, NS_PER_S)))

    def _take(self) -> None:
        """Do what callbacks have handed over."""
        while self._received:
            self._received.popleft()()

    def _wait_for_command(self, ended: Callable[[], bool]) -> None:
        """Wait for the command of this tick, once commands come; go on without, if none comes for a second.

        It is stamped after /clock of the tick before: else it is a late command of that tick.
        """
        if not self._is_locked and self._commanded_ns is None:
            return
        before_ns, self._waited_ns = self._waited_ns, self.simulation.now_ns + 1
        self.wait_for_acknowledgement()  # a message that the transport has lost is sent again, and comes after /clock
        self._publish_clock(self._waited_ns)  # all messages of this time are there: its ticks can be computed
        end = time.monotonic() + WAIT_S
        with self._changed:
            while not (came := (self._commanded_ns or -1) > before_ns) and not ended():
                if (left := end - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 0.1))
            self._is_locked, self._commanded_ns = came, None
        self._take()

    def _hand_over(self, action: Callable[[], None]) -> bool:
        if len(self._received) >= MAX_WAITING:
            return False
        self._received.append(action)
        return True

    def _on_command(self, message: JointState) -> None:
        if self.simulation.expert_on:
            return  # the expert's own commands, on the same topic
        by_name = dict(zip(message.name, message.position, strict=False))
        targets = [by_name.get(name, math.nan) for name in JOINTS]

        def command() -> None:
            try:
                self.simulation.command(targets)
            except RoboCacheError as error:
                if not self._ignored:
                    self.get_logger().warning(f"{COMMANDS}: {printable(error, 120)}; further ones are not logged")
                self._ignored += 1

        if self._hand_over(command):
            stamp = message.header.stamp
            with self._changed:
                time_ns = stamp.sec * NS_PER_S + stamp.nanosec or self.simulation.now_ns  # without a stamp: now
                self._commanded_ns = max(time_ns, self._commanded_ns or 0)
                self._changed.notify()

    def _on_intervention(self, message: Bool) -> None:
        self._hand_over(lambda: self.simulation.advise(on=bool(message.data)))

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin the episode of the parameter `seed`, which then is one more."""
        seed = self.get_parameter("seed").value
        expert = self.simulation.expert_on
        response.success = self._hand_over(lambda: self.simulation.begin(seed, expert=expert))
        response.message = f"seed {seed}"
        self.set_parameters([Parameter("seed", value=seed + 1)])
        return response

    def _on_expert(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        response.success = self._hand_over(lambda: self.simulation.switch_expert(on=bool(request.data)))
        return response


def main(args: Sequence[str] | None = None) -> int:
    """Simulate the robot; returns the exit status: 1 if an episode failed."""
    process.prepare()
    argv = list(sys.argv if args is None else ["simulator", *args])
    given = parse(remove_ros_args(argv)[1:])
    transport.use_profile()
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    stopped = process.stop_on_signals()
    node = None
    try:
        node = Simulator(given)
        with process.spun(node):
            successes, episodes = node.run(stopped.is_set)
            node.wait_for_acknowledgement()
        if episodes:
            node.get_logger().info(f"{successes} of {episodes} episodes were a success")
        return int(successes < episodes)
    except RoboCacheError as error:
        rclpy.logging.get_logger("simulator").error(str(error))
        return 1
    finally:
        process.ignore_sigint()
        if node is not None:
            node.simulation.close()
            node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
