"""Ends a long command after Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

T = TypeVar("T")


class StopSignals:
    """Raises KeyboardInterrupt after Ctrl-C and SystemExit after SIGTERM.

    Python prints and ignores an exception that a signal raises in a destructor or in the callback of a weak reference.
    Functions that the command calls from time to time therefore raise it again.
    """

    def __init__(self) -> None:
        self._number = 0
        signal.signal(signal.SIGTERM, self._stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores Ctrl-C
            signal.signal(signal.SIGINT, self._stop)

    def checked(self, call: Callable[[T], None]) -> Callable[[T], None]:
        """Return a function that ends the command if a signal has come, and else calls another one."""

        def run(value: T) -> None:
            self._check()
            call(value)

        return run

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if not self._number:
            sys.unraisablehook = partial(_print_others, sys.unraisablehook)
        self._number = number
        self._check()

    def _check(self) -> None:
        if self._number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._number:
            sys.exit(128 + self._number)


def _print_others(shown: Callable[[UnraisableHookArgs], object], ignored: UnraisableHookArgs) -> None:
    """Print an ignored exception, unless it is one of a signal, which is raised again."""
    if not isinstance(ignored.exc_value, (KeyboardInterrupt, SystemExit)):
        shown(ignored)
