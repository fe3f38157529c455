"""Run the tests again and again on a busy machine, and report every test that ever failed.

    make soak                                                       # 30 runs of `make test`, one after another
    make soak SOAK_ARGS="--runs 10 test/nodes test/ipc"             # of some tests
    python test/soak.py --parallel 10 --limit 3000                  # 10 runs at once, for at most 50 minutes
    python test/soak.py --help

Processes that only compute keep the machine busy: as many as are missing to the load, beside those of pytest. Runs
share the checkout and nothing else: each has a ROS domain, and folders for temporary files, caches, sockets and logs.
The output of each run is in out/soak. The report names the tests that failed, how often, and those that came close to
the time limit of a test. `--limit`, Ctrl-C and SIGTERM stop the runs; the tests that they had run are reported.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BUSY = "import os\nwhile os.getppid() == {parent}: sum(range(100_000))"
SLOW_S = 60.0  # a test that takes longer is reported: its time limit is 300 s
STOP_S = 60.0  # for pytest to write its report once it is interrupted


@dataclass
class Outcome:
    """Of a run: how it ended, the tests that failed with their first line, and the seconds of each test."""

    number: int
    last: str = "not started"
    stopped: bool = True  # before its end
    took_s: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Deadline:
    """When runs are stopped: after some seconds, or at a signal."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self._end_s = 0.0

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end_s


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processors busy."""
    command = [sys.executable, "-S", "-c", BUSY.format(parent=os.getpid())]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def own_environment() -> Iterator[dict[str, str]]:
    """The environment of a run that shares no folder with another."""
    folder = Path(tempfile.mkdtemp(prefix="soak"))  # a short path: those of sockets have 107 bytes
    folder.chmod(0o711)  # tests run as another user in it
    places = {
        "TMPDIR": "t", "XDG_RUNTIME_DIR": "r", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config",
        "ROS_HOME": "ros", "HYPOTHESIS_STORAGE_DIRECTORY": "hypothesis",
    }  # fmt: skip
    for place in places.values():
        (folder / place).mkdir(mode=0o700)
    (folder / "t").chmod(0o1777)
    kept = {name: value for name, value in os.environ.items() if name not in ("ROBOCACHE_CACHE_DIR", "RAY_TMPDIR")}
    try:
        yield {"OMP_NUM_THREADS": "1", **kept, **{name: str(folder / place) for name, place in places.items()}}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean_shared_memory() -> None:
    """Remove the shared memory of ROS processes that were killed, half a gigabyte in each run of the tests."""
    programs = Path(sys.executable).parent
    if (programs / "fastdds").exists():
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # of the Python that the program starts
        command = [str(programs / "fastdds"), "shm", "clean"]
        subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, check=False)


def run(number: int, folder: Path, processes: int, arguments: list[str], deadline: Deadline) -> Outcome:
    """Run pytest once, until the deadline."""
    found = Outcome(number)
    started = time.monotonic()
    if deadline.passed:
        return found
    clean_shared_memory()
    report, log = folder / f"{number:02d}.xml", folder / f"{number:02d}.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    if processes > 1 and find_spec("xdist"):
        command += ["-n", str(processes), "--dist", "loadfile", "--max-worker-restart=0"]
    with own_environment() as environment, log.open("w") as output:
        command += [f"--basetemp={environment['TMPDIR']}/b", *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and not deadline.passed:
                time.sleep(0.2)
            found.stopped = process.poll() is None
            if found.stopped:
                process.send_signal(signal.SIGINT)  # pytest reports what it has run
                process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"run {number}: pytest did not stop and was killed; its tests are not reported", flush=True)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found.took_s = time.monotonic() - started
    with suppress(OSError, ElementTree.ParseError):
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            found.seconds[name] = float(case.get("time") or 0)
            for outcome in (*case.iter("failure"), *case.iter("error")):
                found.failed[name] = (outcome.get("message") or outcome.tag).partition("\n")[0][:160]
    if process.returncode and not found.failed and not found.stopped:
        found.failed[f"pytest ended with status {process.returncode}"] = f"see {log}"
    found.last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return found


def main() -> int:
    """Run, report, and return 1 if any test failed in any run."""
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--processes", type=int, default=2, help="processes of pytest in each run")
    parser.add_argument("--load", type=int, default=3 * cores, help="processes that want to run, with those of pytest")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which runs are stopped")
    parser.add_argument("--marker", default="not slow and not gpu", help="tests to run, as `pytest -m` takes them")
    parser.add_argument("pytest", nargs="*", help="files and folders of tests, and options of pytest")
    given, more = parser.parse_known_args()
    folder = ROOT / "out" / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = Deadline(given.limit)
    arguments = ["-m", given.marker, *given.pytest, *more]
    failures: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    longest: Counter[str] = Counter()
    stopped = tests = 0
    load = max(0, given.load - given.parallel * given.processes)
    with busy(load), ThreadPoolExecutor(given.parallel) as pool:
        numbers = range(1, given.runs + 1)
        runs = [pool.submit(run, number, folder, given.processes, arguments, deadline) for number in numbers]
        for done in as_completed(runs):
            found = done.result()
            stopped += found.stopped
            tests += len(found.seconds)
            ending = f"stopped after {len(found.seconds)} tests: " if found.stopped else ""
            state = f"{found.took_s:.0f} s, load {os.getloadavg()[0]:.1f}: {ending}{found.last}"
            print(f"run {found.number} of {given.runs}: {state}", flush=True)
            for name, why in found.failed.items():
                failures[name].append((found.number, why))
                print(f"  FAILED {name}: {why}", flush=True)
            for name, took in found.seconds.items():
                longest[name] = max(longest[name], round(took))
    print(
        f"\n{given.runs - stopped} runs complete, {stopped} stopped before their end; {tests} tests run, "
        f"{len(failures)} failed in at least one run; logs: {folder}"
    )
    for name, failed in sorted(failures.items(), key=lambda item: -len(item[1])):
        of = ", ".join(str(number) for number, _ in sorted(failed))
        print(f"  {len(failed)} of {given.runs} (runs {of}): {name}: {failed[0][1]}")
    for name, took in longest.most_common(20):
        if took >= SLOW_S:
            print(f"  took up to {took} s: {name}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
