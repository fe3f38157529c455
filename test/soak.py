"""Run the tests again and again on a busy machine, and report every test that ever failed.

    make soak                                                   # 30 runs of `make test` at load 6
    make soak SOAK_ARGS="--runs 10 test/nodes test/ipc"         # of some tests
    python test/soak.py --help

Processes that only compute keep the machine busy: as many as are missing to the load, beside those of pytest. The
output of each run is in out/soak; the report names the tests that failed, how often, and those that came close to the
time limit of a test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BUSY = "import os\nwhile os.getppid() == {parent}: sum(range(100_000))"
SLOW_S = 60.0  # a test that takes longer is reported: its time limit is 300 s


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processors busy."""
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", BUSY.format(parent=os.getpid())]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(
    number: int, folder: Path, processes: int, arguments: list[str]
) -> tuple[str, dict[str, str], dict[str, float]]:
    """Run pytest once; its last line, the tests that failed with their first line, and the seconds of each test."""
    report, log = folder / f"{number:02d}.xml", folder / f"{number:02d}.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    command += ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    with log.open("w") as output:
        status = subprocess.run([*command, *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            seconds[name] = float(case.get("time") or 0)
            for outcome in (*case.iter("failure"), *case.iter("error")):
                failed[name] = (outcome.get("message") or outcome.tag).splitlines()[0][:160]
    if status.returncode and not failed:
        failed[f"pytest ended with status {status.returncode}"] = f"see {log}"
    return log.read_text(errors="replace").strip().rpartition("\n")[2], failed, seconds


def main() -> int:
    """Run, report, and return 1 if any test failed in any run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--load", type=int, default=6, help="processes that want to run, with those of pytest")
    parser.add_argument("--processes", type=int, default=2, help="processes of pytest")
    parser.add_argument("--marker", default="not slow and not gpu", help="tests to run, as `pytest -m` takes them")
    parser.add_argument("pytest", nargs="*", help="files and folders of tests")
    given, more = parser.parse_known_args()
    folder = ROOT / "out" / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    failures: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    longest: Counter[str] = Counter()
    with busy(max(0, given.load - given.processes)):
        for number in range(1, given.runs + 1):
            started = time.monotonic()
            last, failed, seconds = run(number, folder, given.processes, ["-m", given.marker, *given.pytest, *more])
            load = os.getloadavg()[0]
            print(
                f"run {number} of {given.runs}: {time.monotonic() - started:.0f} s, load {load:.1f}: {last}", flush=True
            )
            for name, why in failed.items():
                failures[name].append((number, why))
                print(f"  FAILED {name}: {why}", flush=True)
            for name, took in seconds.items():
                longest[name] = max(longest[name], round(took))
    print(f"\n{given.runs} runs, {len(failures)} tests failed in at least one of them; logs: {folder}")
    for name, runs in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(
            f"  {len(runs)} of {given.runs} (runs {', '.join(str(number) for number, _ in runs)}): {name}: {runs[0][1]}"
        )
    for name, took in longest.most_common(20):
        if took >= SLOW_S:
            print(f"  took up to {took} s: {name}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
