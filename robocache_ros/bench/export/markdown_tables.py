"""The result of the benchmark of exports as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def as_markdown(result: dict[str, Any]) -> str:
    """The result as text: a table for each part."""
    on = result["machine"]
    lines = [
        "# Exports of recordings to datasets",
        "",
        f"`python -m robocache_ros.bench.export` on {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
        f"{on['date']}, load before {on['load_before']}. Times without the start of Python and imports.",
    ]
    for part, text in TEXTS.items():
        if part in result:
            lines += ["", *text(result[part])]
    return "\n".join([*lines, ""])


def _table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def _peers(found: dict[str, Any]) -> list[str]:
    rows = []
    for case, told in found.items():
        peers = told["peers"]
        names = ("robocache", "forge", "encoders alone")
        rate = [peers[name]["rows_per_s"] if name in peers else "-" for name in names]
        rows.append(
            [
                case,
                *rate,
                _against(told, "times_forge"),
                _against(told, "times_seconds_of_encoders"),
                told.get("times_cpu_seconds_of_encoders", "-"),
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
        *_table([*head, "x their CPU time"], rows),
    ]


def _against(told: dict[str, Any], key: str) -> str:
    return f"{told[key]} ({told[f'{key}_wanted']})" if key in told else "-"


def _reading(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["robocache_mb_s"], one["rosbags_mb_s"], one["times_rosbags"]] for name, one in found.items()]
    return ["## Reading, MB per CPU second", "", *_table(["compression", "ours", "rosbags", "x rosbags"], rows)]


def _jobs(found: dict[str, Any]) -> list[str]:
    rows = [[key.removeprefix("jobs_"), *found[key].values()] for key in ("jobs_1", "jobs_2")]
    title = f"## {found['recordings']} recordings of {found['seconds_each']:g} s, one camera, AV1"
    return [title, "", *_table(["processes", "seconds", "CPU seconds"], rows)]


def _formats(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["seconds"], one["cpu_seconds"]] for name, one in found["alone"].items()]
    rows.append(["all in one pass", found["together"]["seconds"], found["together"]["cpu_seconds"]])
    return [
        f"## Formats, {found['recording_s']:g} s with two cameras, {found['codec']}",
        "",
        *_table(["format", "seconds", "CPU seconds"], rows),
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
    return ["## Images and clouds converted on a GPU, video", "", *_table(head, rows)]


def _commands(found: dict[str, Any]) -> list[str]:
    rows = [[name, one["process_s"], one.get("conversion_s", "-")] for name, one in found["jobs"].items()]
    quality = [f"{key}: {one['all_frames']} dB ({one['codec']})" for key, one in found["video_psnr_db"].items()]
    return [
        f"## Commands, {found['bag']}",
        "",
        *_table(["command", "process, s", "conversion, s"], rows),
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
