"""What a user waits for: the start of Python and of the command line, `info` on a large recording, a report.

    python -m benchmarks.waits [--gigabytes 10] [--minutes 30] [--mcap PYTHON]

Processor and wall times are medians of processes, which take turns. `info` reads a recording of raw cameras and joints,
`report` one with small images. With `--mcap`, a Python that has the package mcap, its reader reads the summary of the
same file. Writes waits.json and waits.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import recordings
from benchmarks.report import (
    ROOT,
    argument_parser,
    children_seconds,
    machine,
    middle,
    table,
    tell,
    write_results,
)

GIGABYTE = 10**9
CAMERAS = 3
SUMMARY = "import sys; from mcap.reader import make_reader; make_reader(open(sys.argv[1], 'rb')).get_summary()"
OPEN = "import sys; from rosbags.rosbag2 import Reader; bag = Reader(sys.argv[1]); bag.open(); bag.message_count"
ALL = f"{OPEN}; [data[0] for _, _, data in bag.messages()]"


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; return its wall and its processor time, in seconds."""
    began, before = time.monotonic(), children_seconds()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return time.monotonic() - began, children_seconds() - before


def measure(commands: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    """Measure commands that take turns; each gets a row."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(run(command))
    rows = []
    for name, found in times.items():
        wall, processor = map(middle, zip(*found, strict=True))
        rows.append({"what": name, "wall_s": wall, "cpu_s": processor, "rounds": rounds})
        tell(f"{name}: {wall} s, {processor} s of processor time")
    return rows


def commands_of(given: argparse.Namespace, folder: Path) -> list[tuple[int, dict[str, list[str]]]]:
    """Write the recordings; return what is measured beside each other, with the number of rounds."""
    python, robocache = [sys.executable, "-c"], [sys.executable, "-m", "robocache_ros"]
    large, long_ = folder / "large", folder / "long"
    second = CAMERAS * recordings.CAMERA_HZ * recordings.HEIGHT * recordings.WIDTH * 3
    recordings.write(large, given.gigabytes * GIGABYTE / second, CAMERAS)
    recordings.write(long_, 60 * given.minutes, 1, size=64)
    (folder / "spec.yaml").write_text(json.dumps(recordings.spec(1)), encoding="utf-8")
    tell("the recordings are written")
    (file,) = large.glob("*.mcap")
    info = {
        "robocache info": [*robocache, "info", str(large)],
        "rosbags: open": [*python, OPEN, str(large)],
        **({"mcap: summary": [str(given.mcap), "-c", SUMMARY, str(file)]} if given.mcap else {}),
    }
    report = [*robocache, "report", str(long_), "--spec", str(folder / "spec.yaml"), "--overwrite"]
    return [
        (
            11,
            {
                "python -c pass": [*python, "pass"],
                "import robocache_ros": [*python, "import robocache_ros"],
                "import numpy": [*python, "import numpy"],
                "robocache --help": [*robocache, "--help"],
                "import typer, rich": [*python, "import typer, rich.console"],
            },
        ),
        (5, info),
        (
            3,
            {
                "robocache report": [*report, "--out", str(folder / "report.html")],
                "rosbags: read all messages": [*python, ALL, str(long_)],
            },
        ),
    ]


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argument_parser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=10, help="Size of the recording for info.")
    parser.add_argument("--minutes", type=float, default=30, help="Length of the recording for the report.")
    parser.add_argument("--mcap", type=Path, metavar="PYTHON", help="A Python with the package mcap.")
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "gigabytes": given.gigabytes, "minutes": given.minutes, "rows": []}
    with tempfile.TemporaryDirectory(prefix="robocache-waits-") as scratch:
        for rounds, commands in commands_of(given, Path(scratch)):
            result["rows"] += measure(commands, rounds)
    text = page(result)
    write_results(given.out, "waits", result, text)
    print(text)


def page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    on = result["machine"]
    rows = [(row["what"], f"{row['wall_s']:.3f}", f"{row['cpu_s']:.3f}") for row in result["rows"]]
    return "\n".join(
        [
            "# What a user waits for",
            "",
            f"`info` on {result['gigabytes']:g} GB, `report` on {result['minutes']:g} minutes of joints at 500 Hz and "
            "a camera of 64 x 64 pixels; medians, in seconds.",
            "",
            *table(("what", "wall", "processor"), rows),
            "",
            f"{on['cpu']}, {on['cores']} cores, load {on['load_before']} before, Python {on['python']}, {on['date']}.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
