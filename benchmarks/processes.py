"""A process that prints a line per figure, and has a limit of time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def stacks_after(delay_s: float) -> Iterator[None]:
    """Print the Python stacks of all threads on stderr after a delay, if the block has not ended by then.

    `faulthandler.dump_traceback_later` reads the stacks of threads while they run, which can crash the process. This
    waits for the interpreter's lock: a thread that hangs in native code without releasing it prevents the output.
    """
    timer = threading.Timer(delay_s, _print_stacks, (delay_s,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_stacks(delay_s: float) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"after {delay_s:g} s:\n"]
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            lines += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame)]
    sys.stderr.write("".join(lines))


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, with the process of `lines_of`, which is in another group."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class ProcessEndedError(Exception):
    """The process failed, or was ended. The reason is in its output."""


def lines_of(command: Sequence[str], limit_s: float) -> Iterator[str]:
    """Yield the lines of a process as it prints them. Its errors go to those of this process.

    Args:
        command: of the process.
        limit_s: after which it is ended, with all processes that it has started.

    Errors:
        ProcessEndedError: it failed or was ended, after its last line.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, end)
    with process:
        timer.start()
        try:
            assert process.stdout is not None
            yield from process.stdout
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if late.is_set() or status:
        reason = f"ended after {limit_s:g} s" if late.is_set() else f"exit status {status}"
        raise ProcessEndedError(f"{reason}; the reason is in its output")
