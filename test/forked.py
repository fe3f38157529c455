"""Processes that run Python as `subprocess` does, forked by a server that has imported torch.

Torch takes two seconds to import, and a hundred tests start Python. `Popen` and `run` take commands whose first word is
`sys.executable`, followed by `-c`, `-m` or a script:

    process = forked.Popen([sys.executable, "-c", CODE, "argument"], stdout=subprocess.PIPE, text=True)
    done = forked.run([sys.executable, "-m", "robocache_ros", "check", spec], capture_output=True, text=True)

Differences from a new process: modules that the server has imported are there already, so a test of what is imported,
or of the memory that it takes, starts Python by `subprocess`. What is in reference cycles as the process ends is not
collected. `preload` names modules that the server imports first.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_REQUEST_BYTES = 1 << 20
# What the processes of many tests import, except rclpy and pyarrow, which start threads. A module that does not exist
# costs time, and no more.
EXPORT = ("av", "PIL.Image", "typer", "rich.console", "jinja2", "robocache_ros.exporter.job")
NODE = ("robocache_ros.engine", "robocache_ros.ipc", "robocache_ros.decode", "robocache_ros.spec.layout")
_server: list[socket.socket] = []  # the connection to it, once it is needed


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` of a Python command, in a fork of the server."""

    def __init__(self, command: Sequence[object], *, preload: Sequence[str] = (), **options: Any) -> None:
        assert command[0] == sys.executable
        assert options.get("preexec_fn") is None
        self._preload = list(preload)
        super().__init__([str(word) for word in command], **options)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        cwd, env, start_new_session = given[4], given[5], given[20]
        pipes = given[9:15]
        self._status, theirs = socket.socketpair()
        weakref.finalize(self, self._status.close)
        request = {
            "arguments": args[1:],
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(env if env is not None else os.environ),
            "session": bool(start_new_session),
            "preload": self._preload,
        }
        ends = [fd if fd != -1 else default for fd, default in ((pipes[0], 0), (pipes[3], 1), (pipes[5], 2))]
        with theirs:
            socket.send_fds(_connected(), [json.dumps(request).encode()], [*ends, theirs.fileno()])
        answer = self._status.recv(4)
        if not answer:
            raise OSError(f"the server of forks could not start {args}")
        self.pid = int.from_bytes(answer, "little")
        self._child_created = True
        self._close_pipe_fds(*pipes)  # the ends of the child

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        answer = self._status.recv(4)
        return self.pid, int.from_bytes(answer, "little") if answer else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._status.fileno() >= 0:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def run(
    command: Sequence[object], *, capture_output: bool = False, timeout: float | None = None, check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """`subprocess.run` of a Python command, in a fork of the server."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _connected() -> socket.socket:
    """The server of this process, which ends when this process does."""
    if not _server:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        root = str(Path(__file__).parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment, cwd=root,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        _server.append(ours)
        atexit.register(_end, process)
    return _server[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    _server.pop().close()
    process.wait()


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns the request in the forked process, and never in the server."""
    import importlib

    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(children)
        if requests not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not data:
            os._exit(0)
        request: dict[str, Any] = json.loads(data)
        for name in request["preload"]:
            if name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        assert len(os.listdir("/proc/self/task")) == 1, f"one of {request['preload']} starts threads: a fork has none"
        gc.freeze()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (requests, woken, wakes):
                end.close()
            for fd in children.values():
                os.close(fd)
            for number, fd in enumerate(fds[:3]):
                os.dup2(fd, number)
            for fd in fds:
                os.close(fd)
            return request
        children[pid] = fds[3]
        for fd in fds[:3]:
            os.close(fd)
        os.write(fds[3], pid.to_bytes(4, "little"))


def _reap(children: dict[int, int]) -> None:
    """Send the status of each child that has ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        fd = children.pop(pid)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(fd, status.to_bytes(4, "little"))
        os.close(fd)


def _become(request: dict[str, Any]) -> dict[str, Any]:
    """Make this process what a new one would be; returns what its main module starts with."""
    # A node unfreezes what the server has frozen, and Python would look at it all once more as it ends.
    atexit.register(gc.freeze)
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    option, *rest = request["arguments"]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = "" if option == "-c" else os.getcwd() if option == "-m" else str(Path(option).resolve().parent)
    root = str(Path(__file__).parents[1])
    sys.path[:] = [first, *paths, *(path for path in sys.path[1:] if path != root)]
    sys.argv = ["-c", *rest[1:]] if option == "-c" else ["-m", *rest[1:]] if option == "-m" else [option, *rest]
    return {"option": option, "what": rest[0] if option in ("-c", "-m") else option}


if __name__ == "__main__":
    # In the forked process the program runs here, at the top: what ends it ends the interpreter as usual.
    _todo = _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    if _todo["option"] == "-m":
        import runpy

        sys.modules.pop(_todo["what"], None)  # or runpy warns that it is run twice
        runpy._run_module_as_main(_todo["what"])  # type: ignore[attr-defined]
    else:
        _name, _code = "<string>", _todo["what"]
        if _todo["option"] == "-c":
            del __file__
        else:
            __file__ = _name = _todo["what"]
            _code = Path(_name).read_text(encoding="utf-8")
        exec(compile(_code, _name, "exec"))
