"""The live half of the demo: node and player as processes of their own, and what came out of the node."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from robocache_ros.client import FusedFrame, FusedSubscriber
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.units import NS_PER_MS, NS_PER_S

NODE = "fusion_node"
START_S = 30.0  # on a loaded machine torch alone takes seconds to load
QUIET_S = 0.5  # so long after the last message or tick nothing more is on its way


@dataclass
class Tick:
    """What is kept of a published tick: enough to compare every bit of it."""

    row: bytes  # values by stream, then ages
    valid: list[int]  # by stream
    media: dict[str, str]  # digest of each image and voxel grid


@dataclass
class Live:
    """What the node has published so far."""

    spec: FusionSpec
    ticks: dict[int, Tick] = field(default_factory=dict)  # by tick_ns
    first_s: float = 0.0  # when the first and the newest one came, on the steady clock
    newest_s: float = 0.0
    diagnostics: dict[str, dict[str, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, frame: FusedFrame) -> None:
        """Take in a frame of the client."""
        tick = kept(frame, self.spec)
        with self.lock:
            self.newest_s = time.monotonic()
            self.first_s = self.first_s or self.newest_s
            self.ticks[frame.tick_ns] = tick

    @property
    def rate_hz(self) -> float:
        """Ticks a second since the first."""
        passed = self.newest_s - self.first_s
        return (len(self.ticks) - 1) / passed if passed > 0 else 0.0

    @property
    def missed(self) -> int:
        """Ticks between the first and the newest that never came."""
        with self.lock:
            span = max(self.ticks) - min(self.ticks) if self.ticks else 0
            return round(span * self.spec.rate_hz / NS_PER_S) + bool(self.ticks) - len(self.ticks)

    def shares(self, stream: int) -> tuple[float, float, float]:
        """Shares of the ticks at which a stream was invalid, aligned, held."""
        with self.lock:
            states = np.bincount([tick.valid[stream] for tick in self.ticks.values()] or [0], minlength=3)
        invalid, aligned, held = (states / max(1, states.sum())).tolist()
        return invalid, aligned, held


def kept(frame: FusedFrame, spec: FusionSpec) -> Tick:
    """The newest tick of a frame with all its bits, in little memory."""
    names = [stream.name for stream in spec.streams]
    values = b"".join(frame.tensors[s.name][-1].numpy().tobytes() for s in spec.vectors)
    age_ns = np.array([int(frame.age_ns[name][-1]) for name in names], np.int64)
    ages = (age_ns / NS_PER_MS).astype(np.float32).tobytes()  # as a message has them; shared memory has the nanoseconds
    valid = [int(frame.valid[name][-1]) for name in names]
    return Tick(values + ages, valid, {s.name: digest(frame.tensors[s.name]) for s in spec.media})


def digest(tensor: Tensor) -> str:
    """A short name for all the bits of a tensor, its shape and its type."""
    array = tensor.contiguous().numpy()
    return hashlib.blake2b(repr((array.shape, array.dtype)).encode() + array.tobytes(), digest_size=16).hexdigest()


@contextmanager
def running(bag: Path, spec_file: Path, spec: FusionSpec, rate: float, log: Path) -> Iterator[tuple[Live, Player]]:
    """A fusion node, a player that feeds it, and a policy's client that listens; all of it ends with the context."""
    # A domain of one's own: a robot on the same network neither hears the demo nor is heard by it.
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    from robocache_ros.nodes.client.diagnostics_watch import DiagnosticsWatch
    from robocache_ros.nodes.middleware import process

    process.prepare()  # this process is the policy's here: what it does per tick must fit into one
    live = Live(spec)
    node_arguments = {"spec": spec_file, "autostart": "true", "use_sim_time": "true", "device": "cpu"}
    parameters = [word for name, value in node_arguments.items() for word in ("-p", f"{name}:={value}")]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("w", encoding="utf-8"))

        def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", f"robocache_ros.nodes.{module}", *arguments]
            started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(_end, started)
            return started

        node = start("fusion_node", "--ros-args", *parameters)
        client = FusedSubscriber(NODE, images=[s.name for s in spec.media], callback=live.add)
        watch = stack.enter_context(DiagnosticsWatch(NODE))
        stack.enter_context(client)
        live.diagnostics = watch.values
        client.wait_for_layout(START_S)
        player = start("bag_player", str(bag), "--clock", "--rate", str(rate), "--wait-for-subscribers", str(START_S))
        yield live, Player(live, node, player, log)


@dataclass
class Player:
    """Whether there is more to come."""

    live: Live
    node: subprocess.Popen[bytes]
    player: subprocess.Popen[bytes]
    log: Path
    _ended_s: float = 0.0

    def done(self) -> bool:
        """True when the recording is over and no tick is awaited; RoboCacheError where a process failed."""
        if self.node.poll() is not None:
            raise RoboCacheError(f"the fusion node ended with {self.node.returncode}; its log is {self.log}")
        if self.player.poll() is None:
            return False
        if self.player.returncode:
            raise RoboCacheError(f"the player ended with {self.player.returncode}; its log is {self.log}")
        self._ended_s = self._ended_s or time.monotonic()
        # The clock stopped with the player: what is under way now is all that comes.
        return time.monotonic() - max(self.live.newest_s, self._ended_s) > QUIET_S


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
