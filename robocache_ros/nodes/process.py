"""The process of a node: memory, timers, signals, shutdown and log."""

from __future__ import annotations

import ctypes
import gc
import logging
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from robocache_ros.errors import printable
from robocache_ros.processes import set_malloc

# Settings of malloc to keep the blocks of large messages: page faults cost more than copying a message.
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20),
}


_PR_SET_TIMERSLACK = 29
SWITCH_INTERVAL_S = 0.0005  # longest time that a tick waits for a callback that holds the interpreter's lock


def prepare() -> None:
    """Set up this process for large messages and evenly spaced ticks."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    torch.set_num_threads(1)  # tensors are small; a thread pool would only take cores from the middleware
    set_malloc(_MALLOPT)


def reduce_timer_slack() -> None:
    """Make this thread's sleeps end on time; by default the kernel delays the end by up to 50 us to save power."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


def freeze_gc() -> None:
    """Exclude all existing objects from garbage collection, so that later collections are short."""
    gc.collect()
    gc.freeze()


def unfreeze_gc() -> None:
    """Undo `freeze_gc`, so that objects such as a stopped node are collected."""
    gc.unfreeze()


def ignore_sigint() -> None:
    """Ignore further SIGINTs, which would interrupt the shutdown: at Ctrl-C the shell sends one, and launch another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of interrupting the program."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


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


@contextmanager
def spun(node: Node, name: str = "robocache-callbacks") -> Iterator[None]:
    """Run the callbacks of a node in a thread, so that its parameters and services answer during a block.

    A callback may end the block too; the thread then ends after it.
    """
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    ended: Future[Any] = Future()

    def spin() -> None:
        with until_shutdown(node.context):
            executor.spin_until_future_complete(ended)

    thread = threading.Thread(target=spin, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # First the end of the loop: an executor that is shut down as a callback ends raises InvalidHandle.
        ended.set_result(None)
        if thread is not threading.current_thread():
            thread.join()
        executor.shutdown(timeout_sec=0.0)


@dataclass(eq=False)
class Repeated:
    """A step that a thread repeats until it is stopped. Its sleeps end on time."""

    name: str  # of the thread
    step: Callable[[], object]  # called again and again; it returns soon after `stopped` is set
    failed: Callable[[Exception], None]  # called once, from the thread, if a step raises an error

    def __post_init__(self) -> None:
        self.stopped = threading.Event()  # set when the thread is to end
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended; from the thread itself, return at once."""
        self.stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        reduce_timer_slack()
        try:
            while not self.stopped.is_set():
                self.step()
        except Exception as error:
            if not self.stopped.is_set():
                self.failed(error)


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


PACKAGE = "robocache_ros"  # the parent of its loggers
LONGEST = 500  # characters of a line, which may contain text from messages
WAITING = 1000  # lines that are not logged yet; others are dropped and counted


class RosHandler(logging.Handler):
    """Passes Python's log records to a ROS logger, with control characters escaped.

    Of several handlers, a record goes to the one that has the module of the record in `modules`, else to the first.

    A separate thread logs them: a ROS logger looks up the line of code that logs and publishes on /rosout, which
    takes 10 to 100 ms, and the thread that computes the ticks logs too.

    Attributes:
        dropped: lines that arrived while `WAITING` others were not logged yet; a warning states their number.
    """

    def __init__(self, logger: Any, modules: Collection[str] = ()) -> None:
        super().__init__()
        self.modules = modules
        self.dropped = 0
        self._reported = 0  # the number of these that warnings have stated
        self._logger = logger
        self._lines: queue.Queue[tuple[int, str] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="robocache-log", daemon=True)
        self._thread.start()

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether the record is logged here."""
        attached = [each for each in logging.getLogger(PACKAGE).handlers if isinstance(each, RosHandler)]
        chosen = [each for each in attached if record.name in each.modules] or attached
        return chosen[:1] in ([], [self]) and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record, to be logged at its level."""
        try:
            self._lines.put_nowait((record.levelno, printable(record.getMessage(), LONGEST)))
        except queue.Full:
            self.dropped += 1  # `handle` holds the handler's lock

    def close(self) -> None:
        """Return when all records are logged."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._log(*line)
            if self._lines.qsize() <= WAITING // 2:
                self._report_dropped()
        self._report_dropped()

    def _report_dropped(self) -> None:
        count = self.dropped - self._reported
        if count:
            self._reported += count
            lines = "1 line was" if count == 1 else f"{count} lines were"
            text = f"log: {lines} dropped; they came faster than they can be published on /rosout"
            self._log(logging.WARNING, text)

    def _log(self, level: int, text: str) -> None:
        # One call for each level: rclpy refuses a call site that logs at two levels.
        if level >= logging.ERROR:
            self._logger.error(text)
        elif level >= logging.WARNING:
            self._logger.warning(text)
        elif level >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)


def attach(logger: Any, modules: Collection[str] = ()) -> RosHandler:
    """Route the package's log to a ROS logger, until `detach`; where others are attached, that of some modules."""
    handler = RosHandler(logger, modules)
    package = logging.getLogger(PACKAGE)
    package.addHandler(handler)
    package.setLevel(min(package.level or logging.INFO, logging.INFO))
    package.propagate = False
    return handler


def detach(handler: RosHandler) -> None:
    """Stop routing to a handler, and return when all earlier records have been written."""
    package = logging.getLogger(PACKAGE)
    package.removeHandler(handler)
    package.propagate = not package.handlers
    handler.close()
