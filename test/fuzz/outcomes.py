"""Runs cases of damaged input in a separate process, and counts the outcomes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

MAX_S = 20  # of processor time of a case, with the loading of libraries in the first one
MAX_WAIT_S = 120  # of a case that waits without end
MAX_GROWTH_KIB = 1 << 20
LINE = 200  # characters of an error, less the path of what is read
SHOWN = 20  # cases with an outcome that must not be
FAILURES = ("long error", "traceback", "crash", "hang", "memory")  # outcomes that must not be, of any input


class Case(NamedTuple):
    """One damaged recording, or a damaged file of a dataset."""

    kind: str  # variant of the recordings, or format of the datasets
    damage: str
    seed: int


def cases(count: int, kinds: Iterable[str], damages: Iterable[str]) -> list[Case]:
    """`count` cases, evenly over kinds and damages."""
    kinds = tuple(kinds)
    pairs = [(kind, damage) for damage in damages for kind in kinds]
    return [Case(*pairs[number % len(pairs)], number // len(pairs)) for number in range(count)]


class Judge(ABC):
    """Made in a folder, it damages what it has undamaged and reads it."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def judge(self, case: Case) -> tuple[str, str]:
        """The outcome of a case in a word, and the text that goes with it."""

    def __call__(self, case: Case) -> tuple[str, str]:
        """As `judge`, where that neither raises an error nor takes much memory."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = self.judge(case)
        except Exception:  # what a user would see as a traceback
            return "traceback", traceback.format_exc()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return ("memory", f"{grown} KiB") if grown > MAX_GROWTH_KIB else found


def _work(judge: type[Judge], connection: Connection, wanted: Sequence[Case]) -> None:
    # A short path, wherever temporary files are: of a long one errors have only the end, which LINE would count.
    with tempfile.TemporaryDirectory(prefix="robocache-hostile-", dir="/tmp") as folder:
        call = judge(Path(folder))
        connection.send("ready")
        for case in wanted:
            connection.send(call(case))


def _outcome(worker: Connection, pid: int | None) -> tuple[str, str]:
    """Wait for the outcome of a case; a worker that computes or waits for too long is a hang."""
    first, end_s = _used_s(pid), time.monotonic() + MAX_WAIT_S
    while not worker.poll(1):
        if _used_s(pid) - first > MAX_S or time.monotonic() > end_s:
            return "hang", f"{MAX_S} s"
    outcome, said = worker.recv()
    return outcome, said


def _used_s(pid: int | None) -> float:
    """The processor time of a process so far; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def outcomes(judge: type[Judge], wanted: Sequence[Case]) -> Iterator[tuple[Case, str, str]]:
    """The outcome of each case. A process that crashes or hangs in a library is replaced."""
    context = multiprocessing.get_context("spawn")
    while wanted:
        mine, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(judge, there, wanted))
        process.start()
        there.close()
        try:
            mine.recv()  # without which every case would count as a crash
        except EOFError:
            raise RuntimeError("what is undamaged cannot be read") from None
        try:
            while wanted:
                outcome, said = _outcome(mine, process.pid)
                yield wanted[0], outcome, said
                wanted = wanted[1:]
                if outcome == "hang":
                    break
        except EOFError:
            process.join()
            yield wanted[0], "crash", f"exit code {process.exitcode}"
            wanted = wanted[1:]
        finally:
            process.kill()
            process.join()


def counted(
    judge: type[Judge], wanted: Sequence[Case], column: str, good: Sequence[str], bad: Collection[str]
) -> dict[str, Any]:
    """Count the outcomes of cases, of which those in `good` may be and those in `bad` must not be.

    Returns:
        `count`; `rows`: by kind, in the column of that name, how often each outcome came; `failures`: the first cases
        with an outcome of `bad`; and `identical_with_a_note`.
    """
    table: dict[str, Counter[str]] = {case.kind: Counter() for case in wanted}
    failures: list[dict[str, Any]] = []
    noted = 0
    for case, outcome, said in outcomes(judge, wanted):
        table[case.kind][outcome] += 1
        noted += outcome == "identical" and bool(said)
        if outcome in bad and len(failures) < SHOWN:
            failures.append({"case": list(case), "outcome": outcome, "said": said})
    rows = [{column: name, **{word: counts[word] for word in (*good, *bad)}} for name, counts in table.items()]
    return {"count": len(wanted), "identical_with_a_note": noted, "rows": rows, "failures": failures}
