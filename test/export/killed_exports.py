"""Runs exports that are killed with SIGKILL at given file operations in their folder; prints as JSON what happened.

A program of its own, because it forks: the processes of an export then start with everything imported, in milliseconds.
Its argument is the JSON object {"bags", "spec", "media", "jobs", "shares": {folder: [share of the operations, ...]}}.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors as local
from robocache_ros.exporter.target import piece_store
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export

FORK = multiprocessing.get_context("fork")
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def attempt(reported: dict[str, Any], spec: FusionSpec, out: Path, moment: int = 0) -> tuple[int, int, str]:
    """Run an export to its end, or until its file operation number `moment`, which kills all its processes.

    Returns:
        The exit status, the number of operations, and the error that the export raised.
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
            export(
                reported["bags"],
                spec,
                out,
                DatasetOptions(media=reported["media"]),
                jobs=reported["jobs"],
                report=False,
            )
        except RoboCacheError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        error = pipe.read()  # which ends when all processes of the group have ended
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, operations.get_obj().value, error  # without the lock, which a killed process may hold


def killed_attempt(reported: dict[str, Any], spec: FusionSpec, out: Path, share: float, expected: float) -> int:
    """Run an export that is killed after a share of its operations; return its exit status.

    Exports of the same recordings differ by some operations, because processes wait for each other elsewhere.
    One that ends before the moment is begun again from the same folder, with the number of operations that it had.
    """
    before = out.with_name(f"{out.name}_before")
    if out.exists():
        shutil.copytree(out, before)
    while True:
        status, operations, error = attempt(reported, spec, out, 1 + int(share * expected))
        if status or error:
            break
        expected = operations
        shutil.rmtree(out)
        if before.exists():
            shutil.copytree(before, out)
    shutil.rmtree(before, ignore_errors=True)
    return status


def main() -> None:
    """Count the operations of an export; then kill several exports to each folder, and complete the dataset."""
    reported = json.loads(sys.argv[1])
    spec = load_spec(reported["spec"])
    folders = [Path(out) for out in reported["shares"]]
    measured, again = (folders[0].with_name(name) for name in ("measured", "measured_again"))
    _, complete, _ = attempt(reported, spec, measured)
    attempt(reported, spec, again, round(0.9 * complete))  # which leaves all pieces
    _, merge, _ = attempt(reported, spec, again)
    results = {}
    for out in folders:
        killed = []
        for share in reported["shares"][str(out)]:
            missing = 1 - piece_store(out).count() / len(reported["bags"])
            expected = merge + missing * (complete - merge)
            status = killed_attempt(reported, spec, out, share, expected)
            killed.append({"status": status, "pieces": piece_store(out).count()})
        status, _, error = attempt(reported, spec, out)
        results[str(out)] = {"killed": killed, "status": status, "error": error}
    print(json.dumps(results))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
