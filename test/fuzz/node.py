"""A live fusion node under hostile input: its ticks under garbage, image bombs, bad clocks and exhausted resources.

Each case starts a new fusion node and a publisher of valid joint states at 200 Hz, each process in a separate session.
The middleware provides the times at which the node publishes the ticks and at which this process receives them. Both
depend on other load on the machine, which `other_load` states: measure without it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from std_msgs.msg import Float32MultiArray

from benchmarks.report import busy_seconds
from robocache_ros import ipc
from robocache_ros.nodes import frame_messages, middleware
from robocache_ros.nodes.subscriptions import RawSubscriber
from robocache_ros.resources import resource as package_file
from test.fuzz.node_sender import JOINTS

# The processes of a case of hostile input: a fusion node, its monitor, and the senders.


NODE = "/fusion_node"
RATE_HZ = 50
START_S, END_S = 60.0, 30.0
SIM_OFFSET_NS = 1_000_000_000 * 1_000_000_000  # by how much sim time is behind the wall clock
_QOS = {"reliability": "reliable", "depth": 1000}
_IMAGE = {"image": {"size": [64, 64]}, "qos": _QOS}
SPEC: dict[str, Any] = {
    "robocache": 1,
    "rate_hz": RATE_HZ,
    "delay_ms": 40,
    "streams": {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": list(JOINTS), "qos": _QOS},
        "garbage": {"topic": "/garbage", "type": "sensor_msgs/msg/JointState", "names": ["a"], "qos": _QOS},
        "camera": {"topic": "/camera", "type": "sensor_msgs/msg/CompressedImage", **_IMAGE},
        "raw": {"topic": "/raw", "type": "sensor_msgs/msg/Image", **_IMAGE},
    },
}


class Tick(NamedTuple):
    """A tick as the monitor received it; its times are those of the middleware."""

    tick_ns: int
    published_ns: int
    received_ns: int
    valid: bool  # the joints


class Monitor:
    """Records the ticks that a node publishes, and its newest diagnostics."""

    def __init__(self) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context)
        self._node = rclpy.create_node("monitor", context=self._context)
        group: Any = middleware.ManualCallbackGroup()

        def subscribe(kind: type[Any], topic: str, depth: int) -> Any:
            qos = QoSProfile(depth=depth)
            return self._node.create_subscription(kind, topic, lambda _: None, qos, raw=True, callback_group=group)

        self._fused = subscribe(Float32MultiArray, f"{NODE}/fused", 5000)
        self._diagnostics = subscribe(DiagnosticArray, "/diagnostics", 10)
        self._waiter = middleware.Waiter(self._node, 2)
        self._subscriber = RawSubscriber()
        self.ticks: list[Tick] = []
        self.values: dict[str, dict[str, str]] = {}

    def poll(self, seconds: float, ended: Callable[[], bool] = lambda: False) -> None:
        """Record for some time, or until something has ended."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not ended():
            self._waiter.wait(50_000_000, [self._fused, self._diagnostics])
            while (message := self._subscriber.take(self._fused)) is not None:
                tick_ns, window = frame_messages.read_fused(deserialize_message(bytes(message.data), Float32MultiArray))
                valid = bool(window[-1][len(JOINTS) + 1] > 0)
                self.ticks.append(Tick(tick_ns, message.source_ns, message.received_ns, valid))
            while (message := self._subscriber.take(self._diagnostics)) is not None:
                for status in deserialize_message(bytes(message.data), DiagnosticArray).status:
                    self.values[status.name.rpartition(": ")[2]] = {pair.key: pair.value for pair in status.values}

    def count(self, stream: str, key: str) -> int:
        """A counter of the newest diagnostics."""
        return int(self.values.get(stream, {}).get(key) or 0)

    def close(self) -> None:
        """Destroy the node."""
        self._waiter.destroy()
        self._node.destroy_node()
        rclpy.shutdown(context=self._context)


def tick_statistics(ticks: list[Tick]) -> dict[str, float | int]:
    """Rate, missing ticks, longest times without one, and share of ticks with valid joints of recorded ticks.

    `longest_pause_ms` is between two publications by the node, `longest_silence_ms` between two receptions by this
    process: it includes how long this process, or the middleware, waited for a processor.
    """
    if len(ticks) < 2:
        silence = {"longest_pause_ms": float("inf"), "longest_silence_ms": float("inf")}
        return {"ticks": len(ticks), "rate_hz": 0.0, "missing": 0, **silence, "valid": 0.0}
    times, published, received, valid = (list(column) for column in zip(*ticks, strict=True))
    pause_ns, silence_ns = (max(b - a for a, b in pairwise(column)) for column in (published, received))
    return {
        "ticks": len(ticks),
        "rate_hz": round((len(ticks) - 1) * 1e9 / (received[-1] - received[0]), 3),
        "missing": round((times[-1] - times[0]) * RATE_HZ / 1e9) + 1 - len(set(times)),
        "longest_pause_ms": round(pause_ns / 1e6, 1),
        "longest_silence_ms": round(silence_ns / 1e6, 1),
        "valid": round(sum(valid) / len(ticks), 4),
    }


def others_s() -> float:
    """The processors' time that other processes of the machine have taken; Linux only."""
    return busy_seconds() - sum(os.times()[:4])


class Case:
    """A fusion node, a publisher of joints, and hostile publishers, in separate processes.

    The folder is for the spec and the logs; with `sim_time` the node follows /clock, and `runtime` is its
    XDG_RUNTIME_DIR.
    """

    def __init__(self, folder: Path, *, sim_time: bool = False, runtime: Path | None = None) -> None:
        folder.mkdir(parents=True)
        self._began_s, self._others_s = time.monotonic(), others_s()
        self._folder, self._log = folder, folder / "node.log"
        self._children: list[subprocess.Popen[str]] = []
        self._sim = {"sim_offset_ns": SIM_OFFSET_NS} if sim_time else {}
        (folder / "spec.yaml").write_text(json.dumps(SPEC))
        given = {"spec": folder / "spec.yaml", "device": "cpu", "autostart": "true", "diagnostics_period_s": "0.5"}
        given["use_sim_time"] = str(sim_time).lower()
        arguments = [part for name, value in given.items() for part in ("-p", f"{name}:={value}")]
        command = [sys.executable, "-m", "robocache_ros.nodes.fusion_node", "--ros-args", *arguments]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime or folder)}
        with self._log.open("w") as log:
            self.node = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        self.monitor = Monitor()
        if sim_time:
            self.send("clocks")
        self.send("joints")
        self.await_count("joints", "accepted")
        self.monitor.poll(2.0)
        self.monitor.ticks.clear()
        self._begin_kb = self._rss_kb()

    def send(self, mode: str, **options: Any) -> subprocess.Popen[str]:
        """Start a sender."""
        options = {"mode": mode, **self._sim, **options}
        command = [sys.executable, "-m", "test.fuzz.node_sender", json.dumps(options)]
        with (self._folder / f"{mode}.log").open("w") as log:
            # In a separate session: Linux shares processors by session, so a flood cannot slow the monitor
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        os.set_blocking(child.stdout.fileno(), False)  # type: ignore[union-attr]
        self._children.append(child)
        return child

    def result(self, **more: Any) -> dict[str, Any]:
        """End every process, and return the results."""
        grown_kb = self._rss_kb() - self._begin_kb
        alive = self.node.poll() is None
        received = {name: self.monitor.count(name, "received") for name in SPEC["streams"]}
        self.close()
        log = self._log.read_text(errors="replace")
        other_load = max(0.0, others_s() - self._others_s) / (time.monotonic() - self._began_s)
        return {
            **tick_statistics(self.monitor.ticks),
            "other_load": round(other_load, 2),  # processors that other processes have taken on average
            "alive": alive,
            "exit_status": self.node.returncode,
            "received": received,
            "grown_mb": round(grown_kb / 1024, 1),
            "log_lines": len(log.splitlines()),
            "longest_log_line": max(map(len, log.splitlines()), default=0),
            "forged_lines": sum(line.startswith("[FATAL] [0]") for line in log.splitlines()),
            "tracebacks": log.count("Traceback"),
            **more,
        }

    def close(self) -> None:
        """End every process."""
        for child in self._children:
            with suppress(OSError):
                child.stdin.close()  # type: ignore[union-attr]
        if self.node.poll() is None:
            self.node.send_signal(signal.SIGINT)
        processes: list[subprocess.Popen[Any]] = [self.node, *self._children]
        for process in processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.monitor.close()

    def await_count(self, stream: str, key: str) -> None:
        """Record until a counter of the node is above 0; RuntimeError if the node ends or it takes too long."""
        end_s = time.monotonic() + START_S
        while not self.monitor.count(stream, key):
            if self.node.poll() is not None or time.monotonic() > end_s:
                self.close()
                raise RuntimeError(f"no {key} of {stream}; the node's log ends with: {self._log.read_text()[-2000:]}")
            self.monitor.poll(0.2)

    def _rss_kb(self) -> int:
        with suppress(OSError):
            for line in Path(f"/proc/{self.node.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        return 0


GARBAGE_S = 600.0  # time limit for sending the garbage


def quiet(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """Only valid joints."""
    case = Case(folder)
    case.monitor.poll(seconds)
    return case.result()


def garbage(folder: Path, _seconds: float, count: int) -> dict[str, Any]:
    """Garbage on three topics, as fast as possible."""
    case = Case(folder)
    begin_s = time.monotonic()
    sender = case.send("garbage", count=count)
    text = ""

    def sent() -> bool:
        nonlocal text
        text = sender.stdout.readline() or ""  # type: ignore[union-attr]
        return bool(text) or sender.poll() is not None

    case.monitor.poll(GARBAGE_S, sent)
    took_s = time.monotonic() - begin_s
    case.monitor.poll(2.0)
    if not text:
        case.close()
        log = (folder / "garbage.log").read_text(errors="replace").strip().rpartition("\n")[2] or "no log"
        raise RuntimeError(f"the sender of garbage ended with status {sender.poll()}: {log}")
    return case.result(**json.loads(text), seconds=round(took_s, 1))


def bombs(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """Images that are small and expensive to decode."""
    case = Case(folder)
    case.send("bombs")
    case.await_count("camera", "received")
    case.monitor.poll(2 * seconds)
    return case.result()


def clocks(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """Invalid messages of /clock between valid ones."""
    case = Case(folder, sim_time=True)
    case.monitor.poll(seconds)
    return case.result(invalid_clocks=case.monitor.count("ticks", "invalid_clocks"))


def full_runtime(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """A runtime folder on a full file system; a file in its place where mounting is not permitted."""
    runtime = folder / "runtime"
    runtime.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(runtime)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        (runtime / ("full" if mounted else "robocache")).write_bytes(bytes(4096 if mounted else 0))
        case = Case(folder / "case", runtime=runtime)
        case.monitor.poll(seconds)
        return case.result(mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", str(runtime)], check=False)


def linked_lock(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """A symbolic link in place of the lock of the node's socket."""
    runtime = folder / "runtime"
    with patch.dict(os.environ, XDG_RUNTIME_DIR=str(runtime)):
        runtime.mkdir(parents=True)
        lock = ipc.socket_path(NODE).with_suffix(".lock")
    lock.symlink_to(folder / "elsewhere")
    case = Case(folder / "case", runtime=runtime)
    case.monitor.poll(seconds)
    return case.result()


def descriptors(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """No file descriptors left, while 16 consumers connect to the node's socket."""
    with patch.dict(os.environ, XDG_RUNTIME_DIR=str(folder / "case")):
        case = Case(folder / "case")
        path = ipc.socket_path(NODE)
    pid = case.node.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1
    with ExitStack() as stack:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
        connected = 0
        for _ in range(16):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            client.settimeout(1.0)
            with suppress(OSError):
                client.connect(os.fspath(path))
                connected += 1
        case.monitor.poll(seconds)
    alive = case.node.poll() is None
    if alive:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    case.monitor.poll(seconds / 2)
    return case.result(connected=connected)


CASES: tuple[Callable[[Path, float, int], dict[str, Any]], ...]
CASES = (quiet, garbage, bombs, clocks, full_runtime, linked_lock, descriptors)


def run(messages: int, seconds: float = 10.0) -> dict[str, Any]:
    """Run the cases one after another, one with garbage messages; the result of each by its name."""
    profile = str(package_file("config", "fastdds.xml"))
    with (
        patch.dict(os.environ, ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST", FASTDDS_DEFAULT_PROFILES_FILE=profile),
        TemporaryDirectory(prefix="robocache-hostile-") as folder,
    ):
        return {case.__name__: case(Path(folder) / case.__name__, seconds, messages) for case in CASES}
