"""The processes of a measurement, and the numbers that they record."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError


class Columns:
    """Rows of int64 in memory that is allocated at the start, so that it does not grow during a measurement.

    Args:
        names: of the columns.
        rows: the most that are kept; later ones are counted in `lost`.
    """

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self.names = tuple(names)
        self.lost = 0
        self._data = np.full((rows, len(self.names)), 0, np.int64)  # written to, so that its pages are there
        self._count = 0

    def add(self, *values: int) -> None:
        """Keep a row."""
        if self._count == len(self._data):
            self.lost += 1
            return
        self._data[self._count] = values
        self._count += 1

    def to_dict(self) -> dict[str, NDArray[np.int64]]:
        """The columns by name."""
        return {name: self._data[: self._count, i] for i, name in enumerate(self.names)}


def percentiles(values: Iterable[float] | NDArray[Any]) -> dict[str, float] | None:
    """p50, p99, max and count; None without values."""
    data = np.asarray(list(values) if not isinstance(values, np.ndarray) else values, np.float64)
    if not data.size:
        return None
    p50, p99, most = np.percentile(data, [50, 99, 100]).tolist()
    return {"p50": p50, "p99": p99, "max": most, "count": float(data.size)}


def slope_per_minute(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Growth per minute, by least squares; 0 for fewer than two values."""
    if len(times_s) < 2:
        return 0.0
    slope: float = np.polyfit(np.asarray(times_s) - times_s[0], values, 1)[0]
    return float(slope) * 60


READY, GO, STOP = "ready", "go", "stop"
START_S = 60.0  # a process imports torch and rclpy, and compiles kernels
END_S = 30.0


def say_ready() -> None:
    """In a child: report that it is ready."""
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()


def await_command(command: str) -> None:
    """In a child: wait for a command, or for the end of the parent."""
    for line in sys.stdin:
        if line.strip() in (command, STOP):
            return


class Child:
    """A process of this package's environment.

    Args:
        name: for messages.
        module: of robocache_ros.bench, run with `arguments`.
        log: file for what it writes to stderr.
        env: besides the environment of this process.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"robocache_ros.bench.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C ends the measurement in this process, which then ends its children
            )
        os.set_blocking(self.process.stdout.fileno(), False)  # type: ignore[union-attr]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def await_ready(self) -> None:
        """Return when it is ready; RoboCacheError with the end of its log where it ends before, or takes too long."""
        end = time.monotonic() + START_S
        heard = b""
        while READY.encode() not in heard.split():
            if self.process.poll() is not None:
                code = self.process.returncode
                raise RoboCacheError(f"{self.name}: ended with exit code {code}; its log ends with:\n{self.log_tail()}")
            if time.monotonic() > end:
                raise RoboCacheError(
                    f"{self.name}: was not ready within {START_S:g} s; its log ends with:\n{self.log_tail()}"
                )
            heard += self.process.stdout.read() or b""  # type: ignore[union-attr]
            time.sleep(0.02)

    def send(self, command: str) -> None:
        """Send it a command."""
        try:
            self.process.stdin.write(f"{command}\n".encode())  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            raise RoboCacheError(f"{self.name}: has ended; its log ends with:\n{self.log_tail()}") from None

    def end(self) -> None:
        """Interrupt it, and kill it where that is not enough."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGABRT)  # it writes where each of its threads is, and ends
                try:
                    self.process.wait(END_S)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream and not stream.closed:
                stream.close()

    def log_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-6000:].strip()


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM at the end of a block of the main thread."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)


class Family:
    """The children of one measurement; all are ended on leaving.

    Args:
        folder: for their logs and results.
        env: of all of them.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._env = env
        self._children: list[Child] = []

    def start(self, name: str, module: str, **options: Any) -> Child:
        """Start a process; it writes its result to `<name>.json`, and gets its options as JSON."""
        options = {"result": str(self.result_file(name)), **options}
        log = self.folder / f"{name}.log"
        with _deferred_signals():  # otherwise one that arrives meanwhile would leave the process running
            self._children.append(Child(name, module, [json.dumps(options)], log, self._env))
        return self._children[-1]

    def result_file(self, name: str) -> Path:
        """The file for the result of a child."""
        return self.folder / f"{name}.json"

    def result(self, child: Child) -> dict[str, Any]:
        """The result of a child, with its arrays; RoboCacheError if it wrote none."""
        path = self.result_file(child.name)
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            if path.with_suffix(".npz").exists():
                with np.load(path.with_suffix(".npz")) as arrays:
                    found |= dict(arrays)
            return found
        except (OSError, ValueError):
            raise RoboCacheError(f"{child.name}: left no result; its log ends with:\n{child.log_tail()}") from None

    def shared_memory(self) -> set[str]:
        """The middleware's segments in /dev/shm that the children have mapped, which killed ones leave there."""
        found = set()
        for child in self._children:
            with suppress(OSError):
                for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines():
                    place = line.rpartition(" ")[2]
                    if place.startswith("/dev/shm/fast"):
                        found.add(place.removeprefix("/dev/shm/"))
        return found

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        segments = self.shared_memory()
        for child in reversed(self._children):
            child.end()
        for name in segments:
            Path("/dev/shm", name).unlink(missing_ok=True)


def leave_result(path: str, result: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
    """In a child: write the result."""
    if arrays:
        np.savez(Path(path).with_suffix(".npz"), allow_pickle=False, **arrays)
    Path(path).write_text(json.dumps(result))


def read_options() -> dict[str, Any]:
    """In a child: its options."""
    faulthandler.enable(all_threads=True)
    options: dict[str, Any] = json.loads(sys.argv[1])
    return options
