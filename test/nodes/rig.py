"""A node to test with: it starts fusion nodes, publishes, listens, calls services, and waits for conditions."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from test import forked

ROOT = Path(__file__).parents[2]
PANDA = ROOT / "test" / "data" / "panda_lift"
_QOS = {"reliability": "reliable", "depth": 100}
# Two joints by header stamp, and a command by its receive time.
JOINT_SPEC: dict[str, Any] = {
    "robocache": 1,
    "horizon": 4,
    "delay_ms": 20,
    "streams": {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"], "qos": _QOS},
        "command": {
            "topic": "/command", "type": "std_msgs/msg/Float32MultiArray", "dim": 1, "align": "hold", "qos": _QOS,
        },
    },
}  # fmt: skip
ACTION = {"align": "hold", "role": "action"}  # keys of a stream of commands
PATIENCE_S = 120.0  # for a condition that holds at once on an idle machine


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = PATIENCE_S) -> Any:
    """The condition's value once it is true; the test fails if that takes too long."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what or condition}"
        time.sleep(0.005)
    return value


def repeating(action: Callable[[], Any], condition: Callable[[], Any], period_s: float = 0.2) -> Callable[[], Any]:
    """A condition to wait for, which repeats an action while it is false: for messages that may be lost."""
    next_s = time.monotonic() + period_s

    def repeated() -> Any:
        nonlocal next_s
        value = condition()
        if not value and time.monotonic() >= next_s:
            next_s = time.monotonic() + period_s
            action()
        return value

    return repeated


def stamped(message: Any, stamp_ns: int | None = None) -> Any:
    """A message with a time in its header; None: now."""
    stamp = message.header.stamp
    stamp.sec, stamp.nanosec = divmod(time.time_ns() if stamp_ns is None else stamp_ns, 10**9)
    return message


@contextmanager
def publishing(publish: Callable[[], Any], period_s: float = 0.01) -> Iterator[None]:
    """Call a function from a thread, again and again."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(period_s):
            publish()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def clock_cdr(time_ns: int) -> bytes:
    """A message of /clock."""
    return struct.pack("<4siI", b"\0\1\0\0", *divmod(time_ns, 10**9))


class Inbox:
    """The serialized messages of a topic."""

    def __init__(self, message_class: type[Any]) -> None:
        self.raw: list[bytes] = []
        self._class = message_class
        self.subscription: Any = None

    def __len__(self) -> int:
        return len(self.raw)

    def __call__(self, data: bytes) -> None:
        self.raw.append(data)

    @property
    def messages(self) -> list[Any]:
        """All that came."""
        return [self._read(data) for data in list(self.raw)]

    @property
    def newest(self) -> Any:
        """The last that came."""
        return self._read(self.raw[-1])

    def _read(self, data: bytes) -> Any:
        from rclpy.serialization import deserialize_message

        return deserialize_message(data, self._class)


class SimClock:
    """/clock, in steps of a tick, for a node with a delay of one tick.

    A subscription to /clock is best effort and may lose a message. While a test waits, the newest time is published
    again and again: a node that has it already does nothing.
    """

    TICK_NS = 20_000_000

    def __init__(self, publisher: Any) -> None:
        self.now_ns = 10 * 10**9
        self._publisher = publisher
        until(publisher.get_subscription_count, "the node's subscription to /clock")

    @property
    def due_ns(self) -> int:
        """The newest tick that is due."""
        return self.now_ns - self.TICK_NS

    def step(self) -> None:
        """Go on by one tick."""
        self.now_ns += self.TICK_NS
        self.publish()

    def publish(self) -> None:
        """Publish the newest time, and 1 ns more: a tick is computed when the clock has passed its deadline."""
        self._publisher.publish(clock_cdr(self.now_ns + 1))

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, which may depend on the newest time."""
        return until(repeating(self.publish, condition), what)


class Process:
    """A module of the package that runs in a process of its own, and its output."""

    def __init__(self, words: Sequence[object], log: Path) -> None:
        self.log = log
        command, pipes = [sys.executable, "-m", *words], {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with log.open("w") as out:
            self.popen = forked.Popen(command, preload=forked.NODE, cwd=ROOT, stdout=out, **pipes)

    def runs(self) -> bool:
        """True; an ended process fails the test with its output."""
        assert self.popen.poll() is None, self.log.read_text()
        return True

    def say(self, line: str) -> None:
        """Give it a line of stdin."""
        self.popen.stdin.write(line.encode() + b"\n")
        self.popen.stdin.flush()

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it by a signal, as Ctrl-C does; returns its exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        try:
            return self.popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        finally:
            self.popen.stdin.close()


class Rig:
    """A node to test with, spun in the background."""

    def __init__(self, tmp_path: Path) -> None:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.task import Future

        self.tmp_path = tmp_path
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node("rig", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self._nodes = [self.node]
        self._processes: list[Process] = []
        self._strangers: list[tuple[Any, Any]] = []
        self._closed: Any = Future()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        from rclpy.exceptions import InvalidHandle
        from rclpy.executors import ExternalShutdownException

        with suppress(ExternalShutdownException):
            while not self._closed.done():
                with suppress(InvalidHandle):  # a test destroyed a node while the executor collected its handles
                    self.executor.spin_until_future_complete(self._closed)

    def make(self, kind: type[Any], parameters: dict[str, Any], *, spins: bool = True, **options: Any) -> Any:
        """A node of the package in this process, unconfigured."""
        from rclpy.parameter import Parameter

        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        node = kind(context=self.context, parameter_overrides=overrides, **options)
        self._nodes.append(node)
        if spins:
            self.executor.add_node(node)
        return node

    def fusion(self, spec: dict[str, Any] | Path | str, **parameters: Any) -> Any:
        """A fusion node in this process, unconfigured."""
        from robocache_ros.nodes.fusion_node import FusionNode

        path = str(self.write(spec) if isinstance(spec, dict) else spec)
        return self.make(FusionNode, {"spec": path, "device": "cpu", "diagnostics_period_s": 0.1} | parameters)

    def recorder(self, spec: dict[str, Any], **parameters: Any) -> Any:
        """An episode recorder in this process, which is active."""
        from robocache_ros.nodes.episode_recorder import EpisodeRecorder

        given = {"spec": str(self.write(spec)), "out": str(self.tmp_path / "recordings")} | parameters
        node = self.make(EpisodeRecorder, given)
        assert node.autostart()
        return node

    def runner(self, spec: dict[str, Any], *, spins: bool = True, **parameters: Any) -> Any:
        """A policy runner in this process, unconfigured."""
        from robocache_ros.nodes.policy_runner import PolicyRunner

        return self.make(PolicyRunner, {"spec": str(self.write(spec))} | parameters, spins=spins)

    @contextmanager
    def simulator(self, *options: str) -> Iterator[Any]:
        """The simulated robot without its camera, in lockstep, which runs in this process."""
        from robocache_ros.nodes.simulator import Simulator
        from robocache_ros.sim.command import parse

        node = Simulator(parse(["--no-camera", "--lockstep", *options]), context=self.context)
        self.executor.add_node(node)
        stopped = threading.Event()
        thread = threading.Thread(target=node.run, args=(stopped.is_set,), daemon=True)
        thread.start()
        yield node
        stopped.set()
        thread.join(30)
        self.executor.remove_node(node)
        node.destroy_node()

    def start(self, spec: dict[str, Any], remap: Sequence[str] = (), **parameters: Any) -> Process:
        """A fusion node in a process of its own."""
        given = {"spec": self.write(spec), "device": "cpu"} | parameters
        arguments = [part for name, value in given.items() for part in ("-p", f"{name}:={_yaml(value)}")]
        arguments += [part for rule in remap for part in ("-r", rule)]
        return self._started("robocache_ros.nodes.fusion_node", "--ros-args", *arguments)

    def program(self, *words: object) -> Process:
        """A command of `robocache` in a process of its own."""
        return self._started("robocache_ros", *words)

    def _started(self, *words: object) -> Process:
        process = Process(words, self.tmp_path / f"process_{len(self._processes)}.log")
        self._processes.append(process)
        return process

    def process(self, spec: dict[str, Any], **parameters: Any) -> Process:
        """An active fusion node in a process of its own."""
        from std_msgs.msg import String

        process = self.start(spec, autostart=True, **parameters)
        layout = self.listen(String, "/fusion_node/layout", latched=True)
        until(lambda: process.runs() and len(layout), "the node to become active")
        return process

    def write(self, spec: dict[str, Any]) -> Path:
        """A spec as a file."""
        path = self.tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        return path

    def listen(self, message_class: type[Any], topic: str, latched: bool = False) -> Inbox:
        """Collect a topic's messages."""
        from rclpy.qos import DurabilityPolicy, QoSProfile

        durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
        inbox = Inbox(message_class)
        profile = QoSProfile(depth=5000, durability=durability)
        inbox.subscription = self.node.create_subscription(message_class, topic, inbox, profile, raw=True)
        return inbox

    def publisher(self, message_class: type[Any], topic: str, **qos: Any) -> Any:
        """A reliable publisher."""
        from rclpy.event_handler import PublisherEventCallbacks
        from rclpy.qos import QoSProfile

        # rclpy's default callbacks log by a call that it deprecates itself.
        silent = PublisherEventCallbacks(use_default_callbacks=False)
        profile = QoSProfile(**{"depth": 100} | qos)
        return self.node.create_publisher(message_class, topic, profile, event_callbacks=silent)

    def clock(self) -> SimClock:
        """/clock, once a node listens to it."""
        from rosgraph_msgs.msg import Clock

        return SimClock(self.publisher(Clock, "/clock"))

    def stranger(self) -> Any:
        """A node in a participant of its own, as another process has it."""
        import rclpy

        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node("stranger", context=context)
        self._strangers.append((context, node))
        return node

    def change_state(self, transition: str, node: str = "/fusion_node") -> bool:
        """Call a lifecycle transition as `ros2 lifecycle set` does; whether it succeeded."""
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState

        return bool(self.call(ChangeState, f"{node}/change_state", transition=Transition(label=transition)).success)

    def state(self, node: str = "/fusion_node", timeout_s: float = PATIENCE_S) -> str:
        """The lifecycle state."""
        from lifecycle_msgs.srv import GetState

        return str(self.call(GetState, f"{node}/get_state", timeout_s).current_state.label)

    def call(self, service: type[Any], name: str, timeout_s: float = PATIENCE_S, **fields: Any) -> Any:
        """Call a service with the fields of a request."""
        client = self.node.create_client(service, name)
        until(client.service_is_ready, name, timeout_s)
        future = client.call_async(service.Request(**fields))
        until(future.done, name)
        self.node.destroy_client(client)
        return future.result()

    def set_parameters(self, values: dict[str, Any]) -> Any:
        """Set parameters of the fusion node; returns the result of each."""
        from rcl_interfaces.srv import SetParameters
        from rclpy.parameter import Parameter

        given = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        return self.call(SetParameters, "/fusion_node/set_parameters", parameters=given).results

    def play(self, recording: Path = PANDA, **options: Any) -> Any:
        """Replay a recording, with /clock, once the node listens; returns what was sent."""
        from robocache_ros.bags.reader import Bag
        from robocache_ros.nodes.bag_player import BagPlayer, Options

        with Bag(recording) as bag:
            player = BagPlayer(self.node, bag, Options(**{"clock": True, "wait_s": PATIENCE_S} | options))
            return player.run()

    @cached_property
    def diagnostics(self) -> Inbox:
        """What nodes report, from the first time that a test asks for it."""
        from diagnostic_msgs.msg import DiagnosticArray

        return self.listen(DiagnosticArray, "/diagnostics")

    def status(self, part: str) -> Any:
        """The newest diagnostic status of a stream, the ticks or the run; None before the first one."""
        found = self.diagnostics.newest.status if len(self.diagnostics) else ()
        return next((status for status in found if status.name.endswith(f": {part}")), None)

    def counts(self, part: str) -> dict[str, str]:
        """The values of that status."""
        status = self.status(part)
        return {pair.key: pair.value for pair in status.values} if status else {}

    def close(self) -> None:
        """End everything."""
        import rclpy

        for process in self._processes:
            process.stop()
        self._closed.set_result(None)  # shutdown() while the executor ends a callback would raise InvalidHandle
        self._thread.join()
        self.executor.shutdown()
        for node in self._nodes:
            node.destroy_node()
        rclpy.try_shutdown(context=self.context)
        for context, node in self._strangers:
            node.destroy_node()
            rclpy.try_shutdown(context=context)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
