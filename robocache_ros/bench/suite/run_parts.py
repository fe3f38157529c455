"""Runs parts of the suite one after the other, each in a process, and collects their results."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from robocache_ros.bench.suite.benchmark_parts import PARTS
from robocache_ros.bench.suite.system_state import activity, busy_seconds, disturbances, system
from robocache_ros.errors import RoboCacheError

ENOUGH_S = 1800.0  # a part that takes longer is ended
LAST_LINES = 5  # of the output of a part that failed

Tell = Callable[[str], None]


def run_suite(names: Sequence[str], out: Path, tell: Tell) -> int:
    """Run parts into a folder, and write suite.json and suite.md about all of them.

    Args:
        names: of the parts.
        out: the folder; each part has a folder of its name in it.
        tell: called with a line about each part.

    Returns:
        The number of parts that failed. Parts for which the machine lacks something do not count.

    Errors:
        RoboCacheError: a part is unknown.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise RoboCacheError(f"bench: {unknown[0]!r} is not a part; choose from {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": system(), "parts": {}}
    for name in names:
        result["parts"][name] = told = run_part(name, out / name)
        reason = f": {told['reason']}" if told["reason"] else ""
        tell(f"{name}: {told['state']}{reason} ({told['seconds']:.0f} s)")
        (out / "suite.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (out / "suite.md").write_text(as_markdown(result, out), encoding="utf-8")
    return sum(told["state"] == "failed" for told in result["parts"].values())


def run_part(name: str, out: Path) -> dict[str, Any]:
    """Run a part in a process; return its state (measured, failed, not run), the reason, seconds and disturbances."""
    part = PARTS[name]
    told: dict[str, Any] = {"state": "not run", "reason": None, "seconds": 0.0, "disturbed": []}
    if (missing := part.missing()) is not None:
        return {**told, "reason": f"needs {missing}"}
    out.mkdir(parents=True, exist_ok=True)
    before, begun, busy, own = activity(), time.monotonic(), busy_seconds(), _children_s()
    log = out / "output.txt"
    commands = [[*part.command, *part.in_suite, "--out", str(out)]]
    if part.plot:
        commands.append([part.plot, "--results", str(out), "--out", str(out)])
    reason = next((found for command in commands if (found := _failure(command, log))), None)
    seconds = time.monotonic() - begun
    disturbed = disturbances(before, seconds, _children_s() - own, busy_seconds() - busy)
    state = "failed" if reason else "measured"
    return {"state": state, "reason": reason, "seconds": round(seconds, 1), "disturbed": disturbed}


def _failure(command: Sequence[str], log: Path) -> str | None:
    """Run a command with its output in a file; return why it failed, None if it did not."""
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT, timeout=ENOUGH_S
            )
        except subprocess.TimeoutExpired:
            return f"ended after {ENOUGH_S:.0f} s; see {log}"
    if done.returncode == 0:
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LAST_LINES:]
    return f"exit status {done.returncode}: {' / '.join(lines)[-300:]}; see {log}"


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        "| part | state | seconds | disturbed by |",
        "| --- | --- | --- | --- |",
    ]
    for name, told in result["parts"].items():
        state = told["state"] + (f": {told['reason']}" if told["reason"] else "")
        lines.append(f"| {name} | {state.replace('|', '/')} | {told['seconds']:g} | {'; '.join(told['disturbed'])} |")
    for name in result["parts"]:
        for page in sorted((out / name).glob("*.md")):
            text = page.read_text(encoding="utf-8").strip().splitlines()
            lines += ["", *(f"#{line}" if line.startswith("#") else line for line in text)]
        lines += [f"\n![{image.stem}]({name}/{image.name})" for image in sorted((out / name).glob("*.png"))]
    return "\n".join([*lines, ""])
