"""The `robocache` command."""

from __future__ import annotations

import typer

if tuple(map(int, typer.__version__.split(".")[:2])) < (0, 9):  # it does not read options from annotations
    raise ImportError(f"version {typer.__version__}, needs 0.9", name="typer")


def main(arguments: list[str] | None = None) -> None:
    """Run `robocache`; a mistake of the user is one line for each error on stderr and exit code 2."""
    from robocache_ros.cli.commands import main as run

    run(arguments)
