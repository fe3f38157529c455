"""A signal ends a command, also where Python ignores the exception that its handler raises."""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Iterator

import pytest

from robocache_ros.cli.program import StopSignals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of the tests, afterwards."""
    hook = sys.unraisablehook
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_next_call_ends_the_command_if_the_exception_was_ignored(number: int, error: type[BaseException]) -> None:
    seen: list[int] = []
    call = StopSignals().checked(seen.append)
    call(1)
    with pytest.raises(error):
        signal.raise_signal(number)
    with pytest.raises(error):
        call(2)
    assert seen == [1]


def test_an_exception_that_python_ignores_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Held:
        pass

    held, call = Held(), StopSignals().checked(lambda _value: None)
    weakref.finalize(held, signal.raise_signal, signal.SIGINT)
    del held
    with pytest.raises(KeyboardInterrupt):
        call(1)
    assert capfd.readouterr().err == ""


def test_ctrl_c_stays_ignored_in_the_background() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    call = StopSignals().checked(lambda _value: None)
    signal.raise_signal(signal.SIGINT)
    call(1)
