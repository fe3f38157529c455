"""How a command ends: errors as lines on stderr or as a JSON document, exit codes, Ctrl-C and SIGTERM."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.extras import install_hint
from robocache_ros.json_values import plain

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


JSON_OPTION = "--json"
LOG_JSON_OPTION = "--log-json"


def print_document(command: str, content: Mapping[str, Any], *, exit_code: int = 0, errors: Iterable[str] = ()) -> None:
    """Print the document of a command to stdout: `content`, its exit code, and the lines that are else on stderr.

    NumPy numbers, paths and dataclasses become plain values, NaN becomes null.
    """
    document = {"command": command, "exit_code": exit_code, "errors": list(errors), **content}
    typer.echo(_escaped(json.dumps(plain(document), indent=2, allow_nan=False, ensure_ascii=False)))


def finish(
    command: str,
    content: Mapping[str, Any],
    show: Callable[[], None],
    *,
    json: bool,
    code: int = 0,
    errors: Sequence[str] = (),
) -> None:
    """Print the document of a command, or show its result; exit with a code other than 0."""
    if json:
        print_document(command, content, exit_code=code, errors=errors)
    else:
        show()
    if code:
        raise typer.Exit(code)


def log_line(event: str, **content: Any) -> None:
    """Write an object in one line to stderr, for `--log-json`."""
    line = json.dumps(plain({"event": event, "time": time.time(), **content}), ensure_ascii=False, allow_nan=False)
    typer.echo(_escaped(line), err=True)


def _escaped(text: str) -> str:
    """Escape what a terminal would act on, and what no encoding has; the document stays the same."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


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


LINE_CHARACTERS = 188  # with the prefix `robocache: `, a line has fewer than 200 characters
INTERRUPTED = 130


def run(app: Callable[..., Any], arguments: Sequence[str], name: str) -> None:
    """Run an application; leaves with SystemExit. A user error prints one line per error and exits with code 2."""
    if logging.lastResort:  # where no other handler is: warnings of the engine, among the output of a command
        logging.lastResort.setFormatter(logging.Formatter(f"{name}: %(levelname)s: %(message)s"))
    if JSON_OPTION in arguments:
        _run_for_json(app, arguments)
    try:
        app(args=list(arguments), prog_name=name, standalone_mode=True)
    except RoboCacheError as error:
        for line in lines_of(error):
            if LOG_JSON_OPTION in arguments:
                log_line("error", message=line)
            else:
                typer.echo(f"robocache: {line}", err=True)
        sys.exit(2)


def lines_of(error: RoboCacheError) -> list[str]:
    """Return the lines of an error, each of bounded length."""
    lines = str(error).splitlines() if isinstance(error, SeveralErrors) else [str(error)]
    return [printable(line, LINE_CHARACTERS) for line in lines]


def _run_for_json(app: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Run an application whose only output to stdout is a JSON document, also for errors."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")

    def refuse(code: int, *lines: str) -> None:
        print_document(command, {}, exit_code=code, errors=lines)
        for line in lines if LOG_JSON_OPTION in arguments else ():
            log_line("error", message=line)
        sys.exit(code)

    try:
        sys.exit(int(app(args=list(arguments), standalone_mode=False) or 0))
    except RoboCacheError as error:
        refuse(2, *lines_of(error))
    except ImportError as error:
        if (hint := install_hint(error)) is None:
            raise
        refuse(2, hint)
    except KeyboardInterrupt:
        refuse(INTERRUPTED, "interrupted")
    except Exception as error:  # typer's own: which class depends on its version
        if hasattr(error, "format_message"):
            refuse(int(getattr(error, "exit_code", 2)), printable(error.format_message(), LINE_CHARACTERS))
        if type(error).__name__ == "Abort":
            refuse(INTERRUPTED, "interrupted")
        raise
