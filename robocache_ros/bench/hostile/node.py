"""A live fusion node under hostile input: its ticks under garbage, image bombs, bad clocks and exhausted resources.

`python -m robocache_ros.bench.hostile.node [--messages N] [--seconds S]` prints the result as JSON. Each case starts a
new fusion node and a publisher of valid joint states at 200 Hz, each process in a separate session. The middleware
provides the times at which the node publishes the ticks and at which this process receives them. Both depend on other
load on the machine, which `other_load` states: measure without it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from robocache_ros import ipc
from robocache_ros.bench.hostile.node_case import NODE, Case
from robocache_ros.resources import resource as package_file

GARBAGE_S = 600.0  # time limit for sending the garbage


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for some time."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
    text: list[str] = []

    def sent() -> bool:
        text.append(sender.stdout.readline() or "")  # type: ignore[union-attr]
        return bool(text[-1]) or sender.poll() is not None

    case.monitor.poll(GARBAGE_S, sent)
    took_s = time.monotonic() - begin_s
    case.monitor.poll(2.0)
    if not text[-1]:
        case.close()
        log = (folder / "garbage.log").read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"the sender of garbage ended with status {sender.poll()}: {log[-1] if log else 'no log'}")
    return case.result(**json.loads(text[-1]), seconds=round(took_s, 1))


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
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(runtime)], capture_output=True, check=False
    ).returncode
    try:
        if mounted:
            (runtime / "full").write_bytes(bytes(4096))
        else:
            (runtime / "robocache").write_bytes(b"")
        case = Case(folder / "case", runtime=runtime)
        case.monitor.poll(seconds)
        return case.result(mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", str(runtime)], check=False)


def linked_lock(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """A symbolic link in place of the lock of the node's socket."""
    runtime = folder / "runtime"
    with environment("XDG_RUNTIME_DIR", str(runtime)):
        runtime.mkdir(parents=True)
        lock = ipc.socket_path(NODE).with_suffix(".lock")
    lock.symlink_to(folder / "elsewhere")
    case = Case(folder / "case", runtime=runtime)
    case.monitor.poll(seconds)
    return case.result()


def descriptors(folder: Path, seconds: float, _count: int) -> dict[str, Any]:
    """No file descriptors left, while 16 consumers connect to the node's socket."""
    with environment("XDG_RUNTIME_DIR", str(folder / "case")):
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


CASES: tuple[Callable[[Path, float, int], dict[str, Any]], ...] = (
    quiet,
    garbage,
    bombs,
    clocks,
    full_runtime,
    linked_lock,
    descriptors,
)


def run(*, messages: int = 1_000_000, seconds: float = 10.0, cases: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the cases one after another; the result of each by its name.

    Args:
        messages: garbage messages that are sent.
        seconds: of each other case.
        cases: names of the cases to run; none: all.
    """
    profile = str(package_file("config", "fastdds.xml"))
    found: dict[str, Any] = {}
    with (
        environment("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"),
        environment("FASTDDS_DEFAULT_PROFILES_FILE", profile),
        TemporaryDirectory(prefix="robocache-hostile-") as folder,
    ):
        for case in CASES:
            if not cases or case.__name__ in cases:
                found[case.__name__] = case(Path(folder) / case.__name__, seconds, messages)
    return found


def main() -> None:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description="Measure the ticks of a fusion node under hostile input.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="garbage messages to send (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each other case (%(default)s)")
    parser.add_argument(
        "--cases", nargs="*", default=[], choices=[case.__name__ for case in CASES], help="run only these"
    )
    given = parser.parse_args()
    result = run(messages=given.messages, seconds=given.seconds, cases=tuple(given.cases))
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
