"""Runs the command line: errors become lines on stderr, or a JSON document, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from robocache_ros.cli.output.json_output import LOG_OPTION, OPTION, log_line, print_document
from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.extras import install_hint

LINE_CHARACTERS = 188  # with the prefix `robocache: `, a line has fewer than 200 characters
INTERRUPTED = 130


def run(app: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Run an application; leaves with SystemExit. A user error prints one line per error and exits with code 2."""
    if OPTION in arguments:
        _run_for_json(app, arguments)
    try:
        app(args=list(arguments), standalone_mode=True)
    except RoboCacheError as error:
        for line in lines_of(error):
            if LOG_OPTION in arguments:
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
        for line in lines if LOG_OPTION in arguments else ():
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
