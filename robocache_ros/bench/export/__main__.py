"""Measures exports of recordings to datasets; with all parts it takes about six minutes on two cores.

    python -m robocache_ros.bench.export --forge /path/to/venv/bin/python [--part peers --part reading …]

peers     a recording with two cameras and one of joints: an export, forge-robotics 0.2.0, and the encoders alone
reading   all messages of a recording, for each compression, beside `rosbags`
jobs      short recordings with one process and with two
formats   each format alone, and all in one pass
devices   an export with the CPU and with a GPU; only if it is named
commands  `robocache info` and `robocache export` as processes, and the quality of the video

forge is left out unless --forge or ROBOCACHE_FORGE_PYTHON names the Python of an environment with
`pip install "forge-robotics[lerobot,mcap,video]==0.2.0"`. Times do not include the start of Python and imports, except
those of processes. Peers run in turn; ratios are medians over the rounds. CPU seconds depend less on other load.
Needs 3 GB in the temporary folder. Writes export.json and export.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robocache_ros.bench.export import parts
from robocache_ros.bench.export.against_peers import Peers
from robocache_ros.bench.export.command_line import commands
from robocache_ros.bench.export.machine import RESULTS, ROOT, machine
from robocache_ros.bench.export.markdown_tables import as_markdown
from robocache_ros.bench.result_files import replace, tell
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.programs import HelpFormatter

PARTS = ("peers", "reading", "jobs", "formats", "commands")


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--forge", default=os.environ.get("ROBOCACHE_FORGE_PYTHON"), help="Python that has forge.")
    parser.add_argument("--part", action="append", choices=(*PARTS, "devices"), help="Measure this part.")
    parser.add_argument("--rounds", type=int, default=2, help="Runs of each peer and of each command.")
    parser.add_argument("--seconds", type=float, default=20, help="Length of the recording with cameras.")
    parser.add_argument("--minutes", type=float, default=10, help="Length of the recording of joints.")
    parser.add_argument(
        "--bag", type=Path, default=ROOT / "test" / "data" / "panda_lift", help="For the commands and devices."
    )
    parser.add_argument("--spec", type=Path, default=ROOT / "config" / "panda_lift.yaml", help="For the commands.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="Folder of the result.")
    given = parser.parse_args()
    if {"commands", "devices"} & set(given.part or PARTS) and not given.bag.exists():
        raise RoboCacheError(
            f"{printable(given.bag, 60)}: does not exist; give --bag and --spec, or leave `commands` out with --part"
        )

    def peers(folder: Path) -> dict[str, Any]:
        found = Peers(folder, given.forge, given.seconds, given.minutes)
        for _ in range(given.rounds):
            found.round()
        return found.result()

    measure: dict[str, Callable[[Path], dict[str, Any]]] = {
        "peers": peers,
        "reading": lambda folder: parts.reading(folder, given.seconds / 4, given.rounds + 1),
        "jobs": lambda folder: parts.processes(folder, 6, given.seconds / 4),
        "formats": lambda folder: parts.one_pass(folder, given.seconds / 2),
        "devices": lambda folder: parts.devices(folder, given.bag, given.spec, given.seconds, given.rounds),
        "commands": lambda folder: commands(given.bag, given.spec, given.rounds),
    }
    result: dict[str, Any] = {"machine": machine()}
    for part in given.part or PARTS:
        tell(part)
        with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
            result[part] = measure[part](Path(folder))
        replace(given.out / "export.json", json.dumps(result, indent=2) + "\n")
        replace(given.out / "export.md", as_markdown(result))
    print(as_markdown(result))


if __name__ == "__main__":
    main()
