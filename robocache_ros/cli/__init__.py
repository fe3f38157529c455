"""The `robocache` command."""

from __future__ import annotations

import typer

if tuple(map(int, typer.__version__.split(".")[:2])) < (0, 9):  # older versions do not read options from annotations
    raise ImportError(f"version {typer.__version__}, needs 0.9", name="typer")


def main(arguments: list[str] | None = None) -> None:
    """Run `robocache`. A user error prints one line per error to stderr and exits with code 2."""
    from robocache_ros.cli.commands import main as run

    run(arguments)
