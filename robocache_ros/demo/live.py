"""The live part of the demo: a fusion node and a player in separate processes, and the ticks received."""

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
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec
from robocache_ros.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:  # needs ROS, which --help does not
    from robocache_ros.client import FusedFrame

NODE = "fusion_node"
START_S = 30.0  # on a loaded machine, the import of torch alone takes seconds
QUIET_S = 0.5  # time without messages or ticks after which the run is finished


@dataclass
class Tick:
    """A published tick, reduced to the data required for a bitwise comparison."""

    row: bytes  # values by stream, then ages
    valid: list[int]  # by stream
    media: dict[str, str]  # digest of each image and voxel grid


@dataclass
class Live:
    """The output of the node so far."""

    spec: FusionSpec
    ticks: dict[int, Tick] = field(default_factory=dict)  # by tick_ns
    first_s: float = 0.0  # receive times of the first and the newest tick, on the monotonic clock
    newest_s: float = 0.0
    diagnostics: dict[str, dict[str, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, frame: FusedFrame) -> None:
        """Add a frame that the client received."""
        tick = kept(frame, self.spec)
        with self.lock:
            self.newest_s = time.monotonic()
            self.first_s = self.first_s or self.newest_s
            self.ticks[frame.tick_ns] = tick

    @property
    def rate_hz(self) -> float:
        """Ticks per second since the first tick."""
        passed = self.newest_s - self.first_s
        return (len(self.ticks) - 1) / passed if passed > 0 else 0.0

    @property
    def missed(self) -> int:
        """Number of ticks between the first and the newest that were not received."""
        with self.lock:
            span = max(self.ticks) - min(self.ticks) if self.ticks else 0
            return round(span * self.spec.rate_hz / NS_PER_S) + bool(self.ticks) - len(self.ticks)

    def shares(self, stream: int) -> tuple[float, float, float]:
        """Return the shares of ticks at which a stream was invalid, aligned and held."""
        with self.lock:
            states = np.bincount([tick.valid[stream] for tick in self.ticks.values()] or [0], minlength=3)
        invalid, aligned, held = (states / max(1, states.sum())).tolist()
        return invalid, aligned, held


def kept(frame: FusedFrame, spec: FusionSpec) -> Tick:
    """Reduce the newest tick of a frame for a bitwise comparison, to use little memory."""
    names = [stream.name for stream in spec.streams]
    values = b"".join(frame.tensors[s.name][-1].numpy().tobytes() for s in spec.vectors)
    age_ns = np.array([int(frame.age_ns[name][-1]) for name in names], np.int64)
    ages = (age_ns / NS_PER_MS).astype(np.float32).tobytes()  # as in the message; shared memory contains nanoseconds
    valid = [int(frame.valid[name][-1]) for name in names]
    return Tick(values + ages, valid, {s.name: digest(frame.tensors[s.name]) for s in spec.media})


def digest(tensor: Tensor) -> str:
    """Return a digest of the bytes, shape and dtype of a tensor."""
    array = tensor.contiguous().numpy()
    return hashlib.blake2b(repr((array.shape, array.dtype)).encode() + array.tobytes(), digest_size=16).hexdigest()


@contextmanager
def running(bag: Path, spec_file: Path, spec: FusionSpec, rate: float, log: Path) -> Iterator[tuple[Live, Player]]:
    """Run a fusion node, a player and a client; all stop at the end of the context."""
    # A separate domain: the demo and a robot on the same network do not receive each other's messages.
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    from robocache_ros.client import FusedSubscriber
    from robocache_ros.nodes.client.diagnostics_watch import DiagnosticsWatch
    from robocache_ros.nodes.middleware import process

    process.prepare()  # this process acts as the policy: its work per tick must take less than a period
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
    """The processes of the demo, and whether they have finished."""

    live: Live
    node: subprocess.Popen[bytes]
    player: subprocess.Popen[bytes]
    log: Path
    _ended_s: float = 0.0

    def done(self) -> bool:
        """Whether the replay has ended and no more ticks are expected; RoboCacheError if a process failed."""
        if self.node.poll() is not None:
            raise RoboCacheError(
                f"demo: the fusion node ended with exit code {self.node.returncode}; read its log {self.log}"
            )
        if self.player.poll() is None:
            return False
        if self.player.returncode:
            raise RoboCacheError(
                f"demo: the player ended with exit code {self.player.returncode}; read its log {self.log}"
            )
        self._ended_s = self._ended_s or time.monotonic()
        # The clock stopped with the player, so only ticks that are already published can still arrive.
        return time.monotonic() - max(self.live.newest_s, self._ended_s) > QUIET_S


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
