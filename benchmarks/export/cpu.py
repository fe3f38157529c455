"""CPU seconds of what users wait for, of one or several versions: exports, one pass of all formats, reading, info.

    python -m benchmarks.export.cpu [--tree before=COMMIT --tree now=.] [--rounds 2]

Every number is the CPU time, user and system, of a process tree, and the minimum of some runs. The versions and their
peers take turns, so that other programs of the machine slow all of them down alike; wall time says nothing there. Use
`python -m benchmarks.export` on a machine without other load. Writes export_cpu.json and export_cpu.md; with `--part
reading`, only that is measured, and written to export_cpu_reading.json and .md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import recordings
from benchmarks.export import memory
from benchmarks.export.parts import CASES, COMPRESSIONS, JOBS
from benchmarks.report import ROOT, argument_parser, children_seconds, machine, tell, write_results
from robocache_ros.bags.write import write_bag
from robocache_ros.formats.registry import WRITERS

ENCODERS, ROSBAGS = "encoders alone", "rosbags"
PARTS = ("exports", "formats", "reading", "commands")
HELP, INFO, ALL = "robocache --help", "robocache info", "all in one pass"
SHARES = {"lerobot": ["lerobot"], ALL: list(WRITERS)}  # exports whose parts are measured


class Measurements:
    """The minimum of the CPU seconds, by what is measured and by version or peer.

    Args:
        folder: for recordings and datasets.
        trees: the checkouts of the versions, by name.
    """

    def __init__(self, folder: Path, trees: Mapping[str, Path]) -> None:
        self._folder, self._trees = folder, trees
        self.seconds: dict[str, dict[str, float]] = {}

    def part(self, what: str, kind: str, wanted: dict[str, Any], peers: Mapping[str, tuple[str, Any]]) -> None:
        """Run a part of `benchmarks.export.run` in each version, and the peers in the newest one."""
        for name, tree in self._trees.items():
            self._keep(what, name, self._run(tree, kind, wanted)["cpu_seconds"])
        for name, (kind_of_peer, wanted_of_peer) in peers.items():
            found = self._run(list(self._trees.values())[-1], kind_of_peer, wanted_of_peer)
            self._keep(what, name, found["cpu_seconds"])

    def shares(self, wanted: dict[str, Any]) -> dict[str, float]:
        """Return the CPU seconds of the parts of an export in the newest version, the largest first."""
        found = self._run(list(self._trees.values())[-1], "shares", {**wanted, "jobs": 1})
        parts = {**found["shares"], "all": found["cpu_seconds"]}
        return {part: round(parts[part], 2) for part in sorted(parts, key=parts.__getitem__, reverse=True)}

    def command(self, what: str, *arguments: str) -> None:
        """Run a command of robocache in each version, with the start of Python and imports."""
        for name, tree in self._trees.items():
            before = children_seconds()
            command = [sys.executable, "-m", "robocache_ros", *arguments]
            subprocess.run(command, check=True, capture_output=True, env=_environment(tree), cwd=tree)
            self._keep(what, name, children_seconds() - before)

    def _run(self, tree: Path, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        out = self._folder / "set"
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "benchmarks.export.run", kind, json.dumps({**wanted, "out": str(out)})]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment(tree), cwd=tree)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def _keep(self, what: str, name: str, seconds: float) -> None:
        of = self.seconds.setdefault(what, {})
        of[name] = round(min(of.get(name, seconds), seconds), 4)


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}


def parts(folder: Path, of: Measurements, cameras: Path, seconds: float, minutes: float) -> list[Callable[[], None]]:
    """Make the recordings but that of the cameras; return what measures each part once."""
    read = {name: recordings.write(folder / name, seconds / 2, 1, name) for name in COMPRESSIONS}
    topics = memory.topics()
    long = write_bag(folder / "long", {t.name: t.type for t in topics}, memory.messages(topics, 60 * minutes))
    given = {"bags": [str(cameras)], "spec": recordings.spec(2)}

    def exports() -> None:
        for name, case in CASES.items():
            settings = {key: case[key] for key in ("codec", "crf", "preset", "gop")}
            encoders = {"bag": str(cameras), "cameras": 2, **settings}
            of.part(name, "export", {**given, "jobs": 1, "options": settings}, {ENCODERS: ("encoders", encoders)})

    def formats() -> None:
        for name, chosen in ((name, [name]) for name in ("lerobot", "delta")):
            of.part(name, "export", {**given, "jobs": JOBS, "options": {"formats": chosen, "codec": "h264"}}, {})
        of.part(ALL, "export", {**given, "jobs": JOBS, "options": {"formats": list(WRITERS), "codec": "h264"}}, {})

    def reading() -> None:
        for name, bag in read.items():
            peer = {"reader": "rosbags", "bag": str(bag)}
            of.part(f"reading {name}", "reader", {**peer, "reader": "robocache"}, {ROSBAGS: ("reader", peer)})

    def commands() -> None:
        of.command(HELP, "--help")
        of.command(INFO, "info", str(long))

    return [exports, formats, reading, commands]


def as_markdown(result: dict[str, Any]) -> str:
    """The result as text: a table."""
    on, rows = result["machine"], []
    names = list(result["versions"])
    for what, of in result["cpu_seconds"].items():
        peer = next((name for name in of if name not in names), None)
        ratio = ""
        if peer == ENCODERS:
            ratio = f"{of[names[-1]] / of[peer]:.2f} x {peer}"
        elif peer == ROSBAGS:
            ratio = f"{of[peer] / of[names[-1]]:.2f} x as fast as {peer}"
        elif what == ALL:
            slowest = max(result["cpu_seconds"][name][names[-1]] for name in ("lerobot", "delta"))
            ratio = f"{of[names[-1]] / slowest:.2f} x the slowest format alone"
        rows.append(f"| {what} | {' | '.join(f'{of[name]:.3f}' for name in names)} | {of.get(peer, '')} | {ratio} |")
    of_parts = result.get("shares", {})
    of_part = f" --part {result['part']}" if result.get("part") else ""
    info = ""
    if "info_minutes" in result:
        info = (
            f"`robocache info`: a recording of {result['info_minutes']:g} minutes, "
            f"{result['info_bytes'] / 1e9:.2f} GB, 1060 messages a second. "
        )
    shares = [
        "",
        "## Parts of an export with h264, one process, CPU seconds",
        "",
        f"| | {' | '.join(of_parts)} |",
        f"|---|{'---|' * len(of_parts)}",
    ]
    first = of_parts.get("lerobot", {})
    share_rows = [
        f"| {part} | {' | '.join(f'{found.get(part, 0):.2f}' for found in of_parts.values())} |"
        for part in sorted(first, key=of_parts.get(ALL, first).__getitem__, reverse=True)
    ]
    return "\n".join(
        [
            "# CPU seconds of exports, of reading and of commands",
            "",
            f"`python -m benchmarks.export.cpu{of_part}` on {on['cores']} cores of an {on['cpu']}, Python "
            f"{on['python']}, {on['date']}, beside other programs (load before: {on['load_before']}). CPU time of the "
            f"process tree, the minimum of {result['rounds']} runs in turn. Exports: {result['recording_s']:g} s of "
            "two 640x480 rgb8 cameras at 30 Hz with joints at 500 Hz; the formats with h264. Reading: half as long, "
            f"with one camera. {info}Imports are not counted, except those of commands.",
            "",
            f"| | {' | '.join(names)} | peer | {names[-1]} |",
            f"|---|{'---|' * len(names)}---|---|",
            *rows,
            *(shares if of_parts else ()),
            *share_rows,
            "",
        ]
    )


def main() -> None:
    """Measure and write the result."""
    parser = argument_parser(__doc__)
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PLACE", help="A checkout, or a commit.")
    parser.add_argument("--part", choices=PARTS, help="Measure only this; all parts without it.")
    parser.add_argument("--rounds", type=int, default=2, help="Runs, of which the minimum counts.")
    parser.add_argument("--seconds", type=float, default=10, help="Length of the recording with cameras.")
    parser.add_argument("--minutes", type=float, default=15, help="Length of the recording for info.")
    given = parser.parse_args()
    places = dict(tree.split("=", 1) for tree in given.tree) or {"now": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="robocache-cpu-") as scratch, ExitStack() as worktrees:
        folder = Path(scratch)
        trees = {name: memory.checkout(place, folder / name, worktrees) for name, place in places.items()}
        result = {"machine": machine(), "versions": list(trees), "recording_s": given.seconds}
        of = Measurements(folder, trees)
        cameras = recordings.write(folder / "cameras", given.seconds, 2)
        measure = parts(folder, of, cameras, given.seconds, given.minutes)
        name_of_result = f"export_cpu_{given.part}" if given.part else "export_cpu"
        if given.part:
            measure = [part for part in measure if part.__name__ == given.part]
            result["part"] = given.part
        if given.part in (None, "commands"):
            info_bytes = sum(file.stat().st_size for file in folder.glob("long/*"))
            result |= {"info_minutes": given.minutes, "info_bytes": info_bytes}
        for number in range(given.rounds):
            for part in measure:
                tell(f"round {number + 1}: {part.__name__}")
                part()
            result |= {"rounds": number + 1, "cpu_seconds": of.seconds}
            write_results(given.out, name_of_result, result, as_markdown(result))
        for name, formats in SHARES.items() if not given.part else ():
            options = {"formats": formats, "codec": "h264"}
            wanted = {"bags": [str(cameras)], "spec": recordings.spec(2), "options": options}
            result.setdefault("shares", {})[name] = of.shares(wanted)
        write_results(given.out, name_of_result, result, as_markdown(result))
    print(as_markdown(result))


if __name__ == "__main__":
    main()
