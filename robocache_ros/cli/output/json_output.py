"""The output of a command as one JSON document, for `--json`: docs/reference/json_output.md lists the keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import typer

from robocache_ros.export.report.plain_values import plain

OPTION = "--json"
LOG_OPTION = "--log-json"


def print_document(command: str, content: Mapping[str, Any], *, exit_code: int = 0, errors: Iterable[str] = ()) -> None:
    """Print the document of a command to stdout.

    Args:
        command: name of the command.
        content: its keys and values; NumPy numbers, paths and dataclasses become plain values, NaN becomes null.
        exit_code: exit code of the command.
        errors: lines that are printed to stderr without `--json`.
    """
    document = {"command": command, "exit_code": exit_code, "errors": list(errors), **content}
    typer.echo(_escaped(json.dumps(plain(document), indent=2, allow_nan=False, ensure_ascii=False)))


def log_line(event: str, **content: Any) -> None:
    """Write an object in one line to stderr, for `--log-json`."""
    line = json.dumps(plain({"event": event, "time": time.time(), **content}), ensure_ascii=False, allow_nan=False)
    typer.echo(_escaped(line), err=True)


def _escaped(text: str) -> str:
    """Escape what a terminal would act on, and what no encoding has; the document stays the same."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
