"""Runs the module of a part as a program: a mistake is one line, Ctrl-C has no traceback, SIGTERM leaves no files.

python -m benchmarks.run_part NAME MODULE [ARGUMENTS]
"""

from __future__ import annotations

import runpy
import sys

from benchmarks.processes import end_on_sigterm
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.programs import run


def main() -> None:
    """Run the module as `python -m` does; its own workers find it by its name."""
    try:
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    except OSError as error:
        if error.filename is None:
            raise
        raise RoboCacheError(
            f"{printable(error.filename)}: {error.strerror}; check --out and the other paths"
        ) from None


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(run(f"benchmarks: {sys.argv.pop(1)}", main))
