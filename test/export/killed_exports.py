"""Runs an export again and again, each time killed with SIGKILL at a later file operation in its folder, to its end.

A program of its own, because it forks: the processes of an export then start with everything imported, in milliseconds.
Its argument is the JSON object {"bags", "spec", "out", "step"}: the first export is killed at the file operation number
`step`, the second at twice that number, and so on. Prints as JSON how many pieces each kill has left.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors as local
from robocache_ros.exporter.target import piece_store
from robocache_ros.spec import load_spec
from test.exporting import export

FORK = multiprocessing.get_context("fork")
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def attempt(bags: list[str], spec: Any, out: Path, moment: int) -> tuple[int, str]:
    """Run an export to its end, or until its file operation number `moment`, which kills all its processes.

    Returns:
        The exit status, and the error that the export raised.
    """
    operations = FORK.Value("i")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()  # the group of the export and its workers
        os.close(read)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            if event in OPERATIONS and str(arguments[0]).startswith(f"{out}/"):
                with operations.get_lock():
                    operations.value += 1
                    if operations.value == moment:
                        os.killpg(0, signal.SIGKILL)

        sys.addaudithook(count)
        local.multiprocessing.get_context = lambda _: FORK  # type: ignore[attr-defined,assignment,return-value]
        try:
            export(bags, load_spec(spec), out, jobs=2, report=False)
        except RoboCacheError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        error = pipe.read()  # which ends when all processes of the group have ended
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error


def main(bags: list[str], spec: Any, out: str, step: int) -> None:
    pieces, moment, error = list[int](), step, ""
    while True:
        status, error = attempt(bags, spec, Path(out), moment)
        if status != -signal.SIGKILL:
            break
        pieces.append(piece_store(Path(out)).count())
        moment += step
    print(json.dumps({"pieces": pieces, "status": status, "error": error}))  # noqa: T201 - its output


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
