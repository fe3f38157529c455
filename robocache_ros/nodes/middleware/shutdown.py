"""The end of a program when its ROS context is shut down, and of a loop at Ctrl-C or SIGTERM."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rclpy.context import Context
from rclpy.executors import ExternalShutdownException


@contextmanager
def until_shutdown(context: Context) -> Iterator[None]:
    """Run a block, such as a spinning executor, that ends when the context is shut down.

    rclpy documents only ExternalShutdownException. But a signal shuts the context down in another thread: an executor
    that is building its wait set, or a callback that publishes, then raises an RCLError.
    """
    try:
        yield
    except ExternalShutdownException:
        pass
    except Exception:
        if context.ok():
            raise


SIGACTION_BYTES = 512  # more than any libc's struct sigaction, which begins with the handler
_signalled: dict[int, list[int]] = {}  # of each loop that signals end: the signals that it has received


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM end a loop instead of the program; yields whether one has come.

    Python's own handling is replaced during the loop, in the main thread only. A handler of the program stays, and so
    do the handlers of `rclpy.init()`: at a signal they run first, and shut the contexts down. After the first signal,
    and after the loop, signals have the effect that they had before: a second Ctrl-C interrupts a body that does not
    end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []
    _signalled[id(received)] = received
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and _is_default(_action(signal.SIGTERM)):
        _set_handler(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _set_handler(signal.SIGINT, _on_signal)
    try:
        yield lambda: bool(received)
    finally:
        del _signalled[id(received)]
        if not _signalled:
            _restore_handlers()


def _on_signal(number: int, frame: object) -> None:
    for received in _signalled.values():
        received.append(number)
    _restore_handlers()


def _restore_handlers() -> None:
    with suppress(ValueError):  # a loop that is abandoned may be collected in another thread
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is _on_signal:
                _set_handler(number, handler)


def _set_handler(number: int, handler: Any) -> None:
    """Set Python's handler of a signal; the process' own, such as rclpy's, still calls it if it did so before."""
    action = _action(number)
    signal.signal(number, handler)
    if number == signal.SIGINT and action is not None:
        ctypes.CDLL(None).sigaction(number, action, None)


def _action(number: int) -> Any:
    """The process' struct sigaction for a signal; None if it is not known."""
    action = ctypes.create_string_buffer(SIGACTION_BYTES)
    with suppress(AttributeError, OSError):
        if ctypes.CDLL(None).sigaction(int(number), None, action) == 0:
            return action
    return None


def _is_default(action: Any) -> bool:
    return action is None or action.raw[: ctypes.sizeof(ctypes.c_void_p)].strip(b"\0") == b""
