"""Measures exports of recordings to datasets; with all parts it takes about six minutes on two cores.

    python -m benchmarks.export --forge /path/to/venv/bin/python [--part peers --part reading …]

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

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.export import parts
from benchmarks.export.parts import Peers, commands
from benchmarks.report import ROOT, argument_parser, machine, table, tell, write_results
from robocache_ros.errors import RoboCacheError, printable


def as_markdown(result: dict[str, Any]) -> str:
    """The result as text: a table for each part."""
    on = result["machine"]
    lines = [
        "# Exports of recordings to datasets",
        "",
        f"`python -m benchmarks.export` on {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
        f"{on['date']}, load before {on['load_before']}. Times without the start of Python and imports.",
    ]
    for part, text in TEXTS.items():
        if part in result:
            lines += ["", *text(result[part])]
    return "\n".join([*lines, ""])


def _peers(found: dict[str, Any]) -> list[str]:
    rows = []
    for case, measured in found.items():
        peers = measured["peers"]
        names = ("robocache", "forge", "encoders alone")
        rate = [peers[name]["rows_per_s"] if name in peers else "-" for name in names]
        rows.append(
            [
                case,
                *rate,
                _against(measured, "times_forge"),
                _against(measured, "times_seconds_of_encoders"),
                measured.get("times_cpu_seconds_of_encoders", "-"),
            ]
        )
    head = [
        "rows/s",
        "ours",
        "forge 0.2.0",
        "encoders alone",
        "x forge (wanted)",
        "x time of the encoders (wanted)",
    ]
    return [
        "## Against forge-robotics, and against the encoders alone",
        "",
        "Two 640x480 rgb8 cameras at 30 Hz with joints at 500 Hz, nothing resized; and joints alone. Ours includes "
        "checksums, statistics and the report.",
        "",
        *table([*head, "x their CPU time"], rows),
    ]


def _against(measured: dict[str, Any], key: str) -> str:
    return f"{measured[key]} ({measured[f'{key}_wanted']})" if key in measured else "-"


def _reading(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["robocache_mb_s"], one["rosbags_mb_s"], one["times_rosbags"]] for name, one in found.items()]
    return ["## Reading, MB per CPU second", "", *table(["compression", "ours", "rosbags", "x rosbags"], rows)]


def _jobs(found: dict[str, Any]) -> list[str]:
    rows = [[key.removeprefix("jobs_"), *found[key].values()] for key in ("jobs_1", "jobs_2")]
    title = f"## {found['recordings']} recordings of {found['seconds_each']:g} s, one camera, AV1"
    return [title, "", *table(["processes", "seconds", "CPU seconds"], rows)]


def _formats(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["seconds"], one["cpu_seconds"]] for name, one in found["alone"].items()]
    rows.append(["all in one pass", found["together"]["seconds"], found["together"]["cpu_seconds"]])
    return [
        f"## Formats, {found['recording_s']:g} s with two cameras, {found['codec']}",
        "",
        *table(["format", "seconds", "CPU seconds"], rows),
        "",
        f"One pass takes {found['times_the_slowest']} times the slowest alone ({found['times_the_slowest_wanted']}), "
        f"and {found['times_the_slowest_cpu']} times the largest CPU time.",
    ]


def _devices(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            case,
            *(one[device][key] for key in ("seconds", "cpu_seconds") for device in ("cpu", "cuda")),
            one["times_faster"],
        ]
        for case, one in found.items()
    ]
    head = ["recording", "CPU, s", "GPU, s", "CPU, CPU s", "GPU, CPU s", "x faster"]
    return ["## Images and clouds converted on a GPU, video", "", *table(head, rows)]


def _commands(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["process_s"], one.get("conversion_s", "-")] for name, one in found["jobs"].items()]
    quality = [f"{key}: {one['all_frames']} dB ({one['codec']})" for key, one in found["video_psnr_db"].items()]
    return [
        f"## Commands, {found['bag']}",
        "",
        *table(["command", "process, s", "conversion, s"], rows),
        "",
        f"PSNR of the video: {'; '.join(quality)}.",
    ]


TEXTS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "peers": _peers,
    "reading": _reading,
    "jobs": _jobs,
    "formats": _formats,
    "devices": _devices,
    "commands": _commands,
}


PARTS = ("peers", "reading", "jobs", "formats", "commands")


def main() -> None:
    """Measure and write the result."""
    parser = argument_parser(__doc__)
    parser.add_argument("--forge", default=os.environ.get("ROBOCACHE_FORGE_PYTHON"), help="Python that has forge.")
    parser.add_argument("--part", action="append", choices=(*PARTS, "devices"), help="Measure this part.")
    parser.add_argument("--rounds", type=int, default=2, help="Runs of each peer and of each command.")
    parser.add_argument("--seconds", type=float, default=20, help="Length of the recording with cameras.")
    parser.add_argument("--minutes", type=float, default=10, help="Length of the recording of joints.")
    parser.add_argument(
        "--bag", type=Path, default=ROOT / "test" / "data" / "panda_lift", help="For the commands and devices."
    )
    parser.add_argument("--spec", type=Path, default=ROOT / "config" / "panda_lift.yaml", help="For the commands.")
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
        write_results(given.out, "export", result, as_markdown(result))
    print(as_markdown(result))


if __name__ == "__main__":
    main()
