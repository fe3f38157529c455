"""The keys of a terminal, or the lines of stdin without one."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

MAX_LINE = 4096
POLL_S = 0.1


def pressed_keys(running: Callable[[], bool]) -> Iterator[str]:
    """The keys of a terminal in lower case, or the lines of stdin without spaces around them, while `running`."""
    handle = sys.stdin.fileno()
    terminal = sys.stdin.isatty()
    with _single_keys(handle) if terminal else nullcontext():
        pending = b""
        while running():
            if not select.select([handle], [], [], POLL_S)[0]:
                continue
            data = os.read(handle, MAX_LINE)
            if not data:
                return
            if terminal:
                yield from data.decode(errors="replace").lower()
                continue
            *lines, pending = (pending + data).split(b"\n")
            pending = pending[-MAX_LINE:]
            yield from (line.decode(errors="replace").strip().lower() or " " for line in lines)


@contextmanager
def _single_keys(handle: int) -> Iterator[None]:
    """Deliver each key of a terminal at once, without showing it; Ctrl-C still interrupts."""
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
