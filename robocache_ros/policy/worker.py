"""A policy in a process of its own, so that one that hangs or dies delays no command."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from robocache_ros.engine.frames import FusedFrame, frame_of_arrays
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy, observed_ticks, open_policy
from robocache_ros.policy.runner import Reply, Worker
from robocache_ros.recorder.run_log import RunLog
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

END_S = 2.0  # until a process that shall end is killed


class ProcessWorker(Worker):
    """Runs a policy in a new process."""

    def __init__(self, policy: str, spec: FusionSpec, device: str = "cpu", log: RunLog | None = None) -> None:
        self._arguments = (policy, spec, device)
        self._log = log
        self._lock = threading.Lock()
        self._observed_ticks = observed_ticks(policy)
        self._observed: deque[tuple[int, dict[str, Any]]] = deque(maxlen=self._observed_ticks)
        self._start()

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def observe(self, frame: FusedFrame, tick: int) -> None:
        """Copy a frame for the next plans, if the policy observes several ticks."""
        if self._observed_ticks > 1:
            arrays = {name: value.copy() for name, value in frame.arrays().items()}
            self._observed.append((tick, arrays))

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        """Plan from a frame; it is copied."""
        self.busy = True
        try:
            arrays = frame.arrays()  # copied: torch would share their memory
            self._connection.send((tick, arrays, prefix, self._frames_before(tick)))
        except OSError:
            self._set_dead()

    def _frames_before(self, tick: int) -> list[dict[str, Any]]:
        """Return the frames of the ticks before, oldest first; a missing one is that after it, as in the training."""
        known = dict(self._observed)
        found: list[dict[str, Any]] = []
        for back in range(1, self._observed_ticks):
            if (packed := known.get(tick - back, found[0] if found else None)) is not None:
                found.insert(0, packed)
        return found

    def poll(self) -> list[Reply]:
        """Return the answers since the last call; notes when the process has ended."""
        found: list[Reply] = []
        if not self._lock.acquire(blocking=False):
            return found  # it restarts
        try:
            while not self.dead and self._connection.poll():
                kind, value = self._connection.recv()
                if kind == "failed":
                    self.dead = value
                    break
                self.busy = False
                if kind == "reply":
                    found.append(value)
                elif self._log:
                    self._log.event("ready", value)
        except (EOFError, OSError):
            self._set_dead()
        finally:
            self._lock.release()
        return found

    def restart(self) -> None:
        """Start a new process, if this one is dead."""
        with self._lock:
            if self.dead:
                self._end()
                self._start()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self.dead = self.dead or "it was closed"
            self._end()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.busy, self.dead = True, ""

    def _set_dead(self) -> None:
        self._process.join(END_S)
        code = self._process.exitcode
        self.dead = f"its process ended with exit code {code}" if code is not None else "its process does not answer"

    def _end(self) -> None:
        self._connection.close()  # the process ends when it has planned
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, policy: str, spec: FusionSpec, device: str) -> None:
    """Open the policy, and answer frames until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which then closes the connection
    try:
        opened = open_policy(policy, spec, device)
    except Exception as error:
        text = str(error) if isinstance(error, RoboCacheError) else repr(error)
        connection.send(("failed", printable(text.removeprefix("policy: "), 150)))
        return
    layout = Layout(spec)
    connection.send(("ready", environment()))
    try:
        while True:
            tick, arrays, prefix, before = connection.recv()
            earlier = [frame_of_arrays(each, layout) for each in before]
            connection.send(("reply", answer(opened, frame_of_arrays(arrays, layout), tick, prefix, earlier)))
    except (EOFError, OSError):  # the runner has ended
        opened.close()


def environment() -> dict[str, Any]:
    """What the bits of a policy on the CPU depend on, besides its observation."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": cpu}


def answer(
    policy: RunnablePolicy,
    frame: FusedFrame,
    tick: int,
    prefix: Prefix | None = None,
    earlier: Sequence[FusedFrame] = (),
) -> Reply:
    """Plan from a frame; an error of the policy is part of the answer."""
    start = time.perf_counter()
    chunk: Chunk | None = None
    error = ""
    try:
        chunk = policy.plan(frame, tick, prefix, earlier)
    except Exception as raised:  # of the policy: the next frame may be better
        error = str(raised) if isinstance(raised, RoboCacheError) else repr(raised)
    return Reply(tick, chunk, (time.perf_counter() - start) * 1e3, printable(error, 200))
