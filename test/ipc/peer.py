"""A process at the other end of the ring, told on stdin what to do: one line of JSON each way."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch

from robocache_ros import ipc
from robocache_ros.ipc import shared_memory

FIELDS = (
    ipc.Field("fused", "float32", (2, 3)),
    ipc.Field("front", "uint8", (3, 4, 5)),
    ipc.Field("age_ns", "int64", (2,), host=True),
)


def values(tick_ns: int, device: str = "cpu") -> dict[str, Any]:
    """A frame whose every element shows the tick it belongs to."""
    return {
        "fused": torch.full((2, 3), float(tick_ns), device=device),
        "front": torch.full((3, 4, 5), tick_ns % 256, dtype=torch.uint8, device=device),
        "age_ns": torch.full((2,), 2**60 + tick_ns).numpy(),
    }


def shown(lease: ipc.SlotLease | None) -> Any:
    """A frame as JSON; the different elements of each array."""
    if lease is None:
        return None
    read = {name: value.unique().tolist() for name, value in lease.tensors.items()}
    host = {name: value.tolist() for name, value in lease.host.items()}
    return {"tick_ns": lease.tick_ns, **read, **host}


class Half:
    """An array that calls a function when it is copied, in the middle of a frame; the function does not return."""

    shape, dtype = (2,), numpy.dtype(numpy.int64)

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self._interrupt = interrupt

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._interrupt()


def wait_to_be_killed() -> None:
    say("half")
    threading.Event().wait()


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def reader(path: str) -> None:
    leases: list[ipc.SlotLease] = []
    late = torch.empty(0)
    try:
        source = ipc.Reader(path)
    except ipc.IpcUnavailableError as error:
        say({"refused": str(error)})
        return
    say({"generation": source.generation, "pid": os.getpid()})
    for line in sys.stdin:
        name, *args = json.loads(line)
        answer: Any = None
        if name in ("latest", "wait"):
            frame = getattr(source, name)(*args)
            answer = shown(frame)
            if frame:
                leases.append(frame)
        elif name == "again":
            answer = {**shown(leases[-1]), "overwritten": leases[-1].overwritten}
        elif name == "read_slowly":  # the GPU reads the frame long after this process has let go of it
            torch.cuda._sleep(args[0])
            late = leases[-1].tensors["fused"].clone()
            leases.pop().release()
        elif name == "late":
            answer = late.unique().tolist()
        elif name == "release":
            leases.pop().release()
            source.latest()  # gives back what the GPU has finished with
        elif name == "alive":
            source.latest()
            answer = source.alive
        say(answer)


def writer(path: str, device: str) -> None:
    ring = ipc.Writer(path, FIELDS, slots=3, device=device)
    say({"generation": ring.generation, "pid": os.getpid()})
    for line in sys.stdin:
        name, *args = json.loads(line)
        if name == "publish":
            ring.publish(args[0], values(args[0], device))
        elif name == "half":
            ring.publish(args[0], {**values(-1, device), "age_ns": Half(wait_to_be_killed)})
        elif name == "close":
            ring.close()
        say({"readers": ring.readers, "overwritten": ring.overwritten})


if __name__ == "__main__":
    shared_memory.CONNECT_S = 120.0  # for a writer on a busy machine
    role, path, device, user = sys.argv[1:]
    if user != str(os.geteuid()):
        os.setgid(int(user))
        os.setuid(int(user))
    reader(path) if role == "reader" else writer(path, device)
