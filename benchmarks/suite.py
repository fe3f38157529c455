"""The parts of the suite, and a run of them one after the other, each in a process with a limit of time."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import activity, busy_seconds, children_seconds, disturbances, system, write_results
from robocache_ros.errors import RoboCacheError, printable

# The parts of the suite: a command each, which measures one thing and writes its results into a folder.


def _has_gpus(count: int) -> bool:
    import torch  # here, because the list of commands does without it

    return torch.cuda.device_count() >= count


def _has(*modules: str) -> Callable[[], bool]:
    return lambda: all(importlib.util.find_spec(module) is not None for module in modules)


# What a part needs -> whether this machine has it, and how to get it.
NEEDS: Mapping[str, tuple[Callable[[], bool], str]] = {
    "GPU": (lambda: _has_gpus(1), "a CUDA device that torch finds"),
    "GPUs": (lambda: _has_gpus(2), "two CUDA devices that torch finds"),
    "CuPy": (_has("cupy"), "CuPy: pip install 'robocache_ros[cuda13]', or [cuda12] for an older driver"),
    "ROS": (_has("rclpy"), "rclpy: source a ROS 2 installation, or pip install 'robocache_ros[ros]'"),
    "datasets": (_has("h5py", "PIL"), "pip install 'robocache_ros[datasets]'"),
    "jpeg": (_has("simplejpeg"), "pip install 'robocache_ros[datasets]', for simplejpeg"),
    "recordings": (_has("rosbags"), "pip install 'robocache_ros[export]'"),
    "plots": (_has("matplotlib"), "matplotlib: pip install 'robocache_ros[export]'"),
}


@dataclass(frozen=True)
class Part:
    """A part of the suite.

    Args:
        command: after `python -m`; it takes `--out FOLDER` and writes its results there, as JSON and Markdown.
        measures: what it measures, for the help.
        needs: some of `NEEDS`.
        in_suite: more arguments in a run of the whole suite, which has 20 minutes.
        plots: its results are drawn by `benchmarks.plots`. Without matplotlib that is left out.
        tiny_on_cpu: with `--quick` it needs no GPU.
        limit_s: a run of it in the whole suite is ended after so many seconds. What it has written by then is kept.
    """

    command: tuple[str, ...]
    measures: str
    needs: tuple[str, ...] = ()
    in_suite: tuple[str, ...] = ()
    plots: bool = False
    tiny_on_cpu: bool = False
    limit_s: float = 120.0

    def missing(self, *, quick: bool = False) -> str | None:
        """Return what this machine lacks for the part, None if nothing."""
        needs = [need for need in self.needs if not (quick and self.tiny_on_cpu and need in ("GPU", "GPUs"))]
        return next((hint for there, hint in (NEEDS[need] for need in needs) if not there()), None)


# Without `jobs` and `commands`, which start many processes.
EXPORT_PARTS = ("--part", "peers", "--part", "reading", "--part", "formats")
# The most important ones first: a budget of time that is too short leaves out the last ones. With these arguments all
# parts together take about 12 minutes on a machine with one H200, and those without ROS and recordings about 9.
PARTS: Mapping[str, Part] = {
    "training": Part(
        ("benchmarks.training",),
        "trainings on ready tensors, from disk and from the cache, and against torch's DataLoader",
        ("GPU", "datasets"),
        ("--seconds", "2"),
        plots=True,
        tiny_on_cpu=True,
        limit_s=330.0,
    ),
    "scaling": Part(
        ("benchmarks.scaling",),
        "loading, alignment and training on 1, 2, 4 and 8 GPUs, weak and strong",
        ("GPUs", "datasets"),
        plots=True,
        tiny_on_cpu=True,
        limit_s=300.0,
    ),
    "formats": Part(
        ("benchmarks.formats",),
        "batches of 16 to 256 windows of each format, read and cached, and torch's DataLoader beside them",
        ("recordings", "datasets"),
        ("--limit-s", "75"),
        plots=True,
        limit_s=100.0,
    ),
    "loading-gpu": Part(
        ("benchmarks.loading.on_gpu",),
        "the loader and its caches on the GPU, against DataLoaders that align with NumPy",
        ("GPU", "datasets"),
        ("--seconds", "1"),
        plots=True,
        limit_s=90.0,
    ),
    "vectors": Part(
        ("benchmarks.ops.vectors",),
        "resample and fuse on the GPU, against torch.compile and eager torch",
        ("GPU", "CuPy"),
        ("--quick",),
        plots=True,
        limit_s=90.0,
    ),
    "spatial": Part(
        ("benchmarks.ops.spatial",),
        "voxels, clouds and images on the GPU, against torch.compile and eager torch",
        ("GPU", "CuPy"),
        plots=True,
        limit_s=90.0,
    ),
    "tick": Part(
        ("benchmarks.ops.tick",),
        "a whole tick of the engine, on the GPU and the host",
        ("GPU", "CuPy"),
        ("--ticks", "300"),
        limit_s=45.0,
    ),
    "roofline": Part(
        ("benchmarks.ops.roofline",),
        "each operation's bytes per second against the measured ceilings of the GPU",
        ("GPU", "CuPy"),
        limit_s=40.0,
    ),
    "windows": Part(
        ("benchmarks.ops.windows",),
        "streams with windows beside linear ones",
        ("GPU", "CuPy"),
        ("--ticks", "500"),
        limit_s=40.0,
    ),
    "profile": Part(
        ("benchmarks.ops.traces",),
        "traces of a tick, with the time of each kernel",
        ("GPU", "CuPy"),
        limit_s=30.0,
    ),
    "live": Part(
        ("robocache_ros", "bench", "live"),
        "losses, latency and cost of the node under the load of a robot, and of a naive node",
        ("ROS",),
        ("--naive", "--seconds", "12"),
        limit_s=80.0,
    ),
    "ingest": Part(
        ("benchmarks.ingest_cost",),
        "what receiving costs a node, by the kind of subscription",
        ("ROS",),
        ("--seconds", "2"),
        limit_s=80.0,
    ),
    "loading": Part(
        ("benchmarks.loading",),
        "datasets of each format through the loader, beside the loaders that others use",
        ("recordings", "datasets", "jpeg"),
        ("--rounds", "1"),
        plots=True,
        limit_s=80.0,
    ),
    "export": Part(
        ("benchmarks.export",),
        "exports of recordings, against the encoders alone and forge-robotics",
        ("recordings",),
        ("--rounds", "1", "--seconds", "5", "--minutes", "2", *EXPORT_PARTS),
        limit_s=100.0,
    ),
}


# Runs parts of the suite one after the other, each in a process, and collects their results.


BUDGET_S = 1200.0
MIN_PART_S = 5.0  # with less time left, no part is begun
OUTPUT = "output.txt"
PROGRAM = "benchmarks.run_part"
PLOT_S = 60.0
GRACE_S = 5.0
LAST_CHARACTERS = 200  # of the output of a part that failed

Tell = Callable[[str], None]


def run_suite(names: Sequence[str], out: Path, tell: Tell, budget_s: float = BUDGET_S) -> int:
    """Run parts into a folder, and write suite.json and suite.md about all of them after each.

    Args:
        names: of the parts.
        out: a new folder, so that results of two runs are not mixed; each part has a folder of its name in it.
        tell: called with a line about each part, when it begins and when it is over.
        budget_s: for all parts. One that does not end in time is ended, and the following ones are not run.

    Returns:
        The number of parts that failed. Those that lack something of the machine, or time of the budget, do not count.

    Errors:
        RoboCacheError: a part is unknown, or the folder has something in it or cannot be created.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise RoboCacheError(f"bench: {unknown[0]!r} is not a part; choose from {', '.join(PARTS)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise RoboCacheError(f"{printable(out)}: is not empty; give a new folder, so that two runs are not mixed")
    except OSError as error:
        raise RoboCacheError(f"{printable(out)}: {error.strerror}; give another --out") from None
    result: dict[str, Any] = {"machine": system(), "budget_s": budget_s, "parts": {}}
    started = time.monotonic()
    end = started + budget_s
    for name in names:
        left_s = end - time.monotonic()
        limit_s = min(PARTS[name].limit_s, left_s)
        if (reason := _not_run(name, left_s, budget_s)) is None:
            tell(f"{time.strftime('%H:%M:%S')} {name}: at most {limit_s:.0f} s; its output is in {out / name / OUTPUT}")
        outcome, part_begun = _outcome("cut short", "interrupted", limit_s), time.monotonic()
        try:
            outcome = run_part(name, out / name, limit_s, reason)
        finally:  # also after Ctrl-C and SIGTERM
            outcome["seconds"] = round(time.monotonic() - part_begun, 1)
            result["parts"][name] = outcome
            result["seconds"] = round(time.monotonic() - started, 1)
            write_results(out, "suite", result, as_markdown(result, out))
        reason = f": {outcome['reason']}" if outcome["reason"] else ""
        tell(f"{time.strftime('%H:%M:%S')} {name}: {outcome['state']}{reason} ({outcome['seconds']:.0f} s)")
    return sum(outcome["state"] == "failed" for outcome in result["parts"].values())


def _not_run(name: str, left_s: float, budget_s: float) -> str | None:
    if (missing := PARTS[name].missing()) is not None:
        return f"needs {missing}"
    return f"the {budget_s:.0f} s are over; run it alone, or with a larger --budget-s" if left_s < MIN_PART_S else None


def run_part(name: str, out: Path, limit_s: float, not_run: str | None) -> dict[str, Any]:
    """Run a part in a process; return its state, the reason, its limit and disturbances.

    The state is measured, failed, not run, or cut short: by the time that is left, which is less than its own limit.
    """
    part = PARTS[name]
    if not_run is not None:
        return _outcome("not run", not_run, part.limit_s)
    out.mkdir(parents=True, exist_ok=True)
    before, started, busy, own = activity(), time.monotonic(), busy_seconds(), children_seconds()
    log = out / OUTPUT
    program = (PROGRAM, name, *part.command, *part.in_suite, "--out", str(out))
    reason, late = _failure(program, log, limit_s)
    drawable, how = NEEDS["plots"]
    measured = reason is None or any(out.glob("*.json"))  # also a part of it, before its end
    if part.plots and measured and drawable():
        drawn, _ = _failure(["benchmarks.plots", "--results", str(out), "--out", str(out)], log, PLOT_S)
        reason, late = reason or drawn, late and not drawn
    seconds = time.monotonic() - started
    disturbed = disturbances(before, seconds, children_seconds() - own, busy_seconds() - busy)
    state = "measured" if reason is None else "cut short" if late and limit_s < part.limit_s else "failed"
    if part.plots and not drawable():  # what was measured is not lost
        reason = f"{reason}; no plot, which needs {how}" if reason else f"no plot, which needs {how}"
    return _outcome(state, reason, limit_s, disturbed)


def _outcome(state: str, reason: str | None, limit_s: float, disturbed: Sequence[str] = ()) -> dict[str, Any]:
    return {"state": state, "reason": reason, "limit_s": round(limit_s, 1), "disturbed": list(disturbed)}


def _failure(command: Sequence[str], log: Path, limit_s: float) -> tuple[str | None, bool]:
    """Run a command with its output in a file; return why it failed or None, and whether it took too long."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s; see {log}", True
        finally:  # also the processes that it has started, and after Ctrl-C
            _end(process)
    if status == 0:
        return None, False
    how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    return f"{how}: {lines[-1][-LAST_CHARACTERS:]}; see {log}", False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and what it has started: it has some seconds to end that itself."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def as_markdown(result: dict[str, Any], out: Path) -> str:
    """Return the suite's result as text: the machine, a table of the parts, and the tables of each part."""
    machine = result["machine"]
    gpus = ", ".join(f"{gpu['name']} ({gpu['clocks.sm']}, driver {gpu['driver_version']})" for gpu in machine["gpus"])
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        "# Benchmark suite",
        "",
        f"{machine['date']}; {machine['cores']} cores of an {machine['cpu']}, {machine['memory_gib']} GiB; "
        f"{gpus or 'no GPU'}; Python {machine['python']}; {versions}.",
        "",
        f"All parts together: {result['seconds']:,.0f} s, of at most {result['budget_s']:,.0f} s.",
        "",
        "| part | state | seconds | limit, s | disturbed by |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for name, outcome in result["parts"].items():
        state = outcome["state"] + (f": {outcome['reason']}" if outcome["reason"] else "")
        state, disturbed = state.replace("|", "/"), "; ".join(outcome["disturbed"])
        lines.append(f"| {name} | {state} | {outcome['seconds']:g} | {outcome['limit_s']:g} | {disturbed} |")
    for name in result["parts"]:
        for page in sorted((out / name).glob("*.md")):
            text = page.read_text(encoding="utf-8").strip().splitlines()
            lines += ["", *(f"#{line}" if line.startswith("#") else line for line in text)]
        lines += [f"\n![{image.stem}]({name}/{image.name})" for image in sorted((out / name).glob("*.png"))]
    return "\n".join([*lines, ""])
