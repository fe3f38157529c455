"""A policy in a process of its own, so that one that hangs or dies delays no command."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy, observed_ticks, open_policy
from robocache_ros.policy.runner import Reply
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

END_S = 2.0  # until a process that shall end is killed


class ProcessWorker:
    """Runs a policy in a new process; see `runner.Worker`.

    Args:
        policy: as on the command line.
        spec: of the frames; its section `run` has the options of the policy.
        device: of the policy.
    """

    def __init__(self, policy: str, spec: FusionSpec, device: str = "cpu") -> None:
        self._arguments = (policy, spec, device)
        self._lock = threading.Lock()
        self._observed_ticks = observed_ticks(policy)
        self._observed: deque[tuple[int, dict[str, Any]]] = deque(maxlen=self._observed_ticks)
        self._busy, self._dead = True, ""
        self._start()

    @property
    def busy(self) -> bool:
        """Whether it is starting, planning or dead."""
        return self._busy

    @property
    def dead(self) -> str:
        """Why the process has ended; empty while it runs."""
        return self._dead

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def observe(self, frame: FusedFrame, tick: int) -> None:
        """Copy a frame for the next plans, if the policy observes several ticks."""
        if self._observed_ticks > 1:
            self._observed.append((tick, _packed(frame, copy=True)))

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        """Plan from a frame; it is copied."""
        self._busy = True
        try:
            self._connection.send((tick, _packed(frame), prefix, self._frames_before(tick)))
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
            while not self._dead and self._connection.poll():
                kind, value = self._connection.recv()
                if kind == "failed":
                    self._dead = value
                    break
                self._busy = False
                if kind == "reply":
                    found.append(value)
        except (EOFError, OSError):
            self._set_dead()
        finally:
            self._lock.release()
        return found

    def restart(self) -> None:
        """Start a new process, if this one is dead."""
        with self._lock:
            if self._dead:
                self._end()
                self._start()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._dead = self._dead or "it was closed"
            self._end()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._busy, self._dead = True, ""

    def _set_dead(self) -> None:
        self._process.join(END_S)
        code = self._process.exitcode
        self._dead = f"its process ended with exit code {code}" if code is not None else "its process does not answer"

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
    connection.send(("ready", None))
    try:
        while True:
            tick, packed, prefix, before = connection.recv()
            earlier = [_unpacked(each, layout) for each in before]
            connection.send(("reply", _answer(opened, _unpacked(packed, layout), tick, prefix, earlier)))
    except (EOFError, OSError):  # the runner has ended
        opened.close()


def _answer(
    policy: RunnablePolicy, frame: FusedFrame, tick: int, prefix: Prefix | None, earlier: list[FusedFrame]
) -> Reply:
    start = time.perf_counter()
    chunk: Chunk | None = None
    error = ""
    try:
        chunk = policy.plan(frame, tick, prefix, earlier)
    except Exception as raised:  # of the policy: the next frame may be better
        error = str(raised) if isinstance(raised, RoboCacheError) else repr(raised)
    return Reply(tick, chunk, (time.perf_counter() - start) * 1e3, printable(error, 200))


def _packed(frame: FusedFrame, *, copy: bool = False) -> dict[str, Any]:
    """Return a frame as NumPy arrays, which are copied into the pipe; torch would share their memory."""
    if copy:
        frame = replace(frame, tensors={name: value.clone() for name, value in frame.tensors.items()})
    parts = {name: getattr(frame, name) for name in ("tensors", "valid", "age_ns", "sample_age_ms")}
    arrays = {name: {key: value.cpu().numpy() for key, value in part.items()} for name, part in parts.items()}
    return {**arrays, "tick_ns": frame.tick_ns, "ticks_ns": frame.ticks_ns.cpu().numpy()}


def _unpacked(packed: dict[str, Any], layout: Layout) -> FusedFrame:
    def tensors(name: str) -> dict[str, torch.Tensor]:
        return {key: torch.from_numpy(value) for key, value in packed[name].items()}

    return FusedFrame(
        packed["tick_ns"],
        torch.from_numpy(packed["ticks_ns"]),
        tensors("tensors"),
        tensors("valid"),
        tensors("age_ns"),
        tensors("sample_age_ms"),
        layout,
    )
