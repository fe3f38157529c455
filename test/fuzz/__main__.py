"""`python -m test.fuzz --recordings 4000`: hostile input, counted by outcome."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from benchmarks.report import argument_parser, table, write_results
from robocache_ros.errors import RoboCacheError
from test.fuzz import datasets, messages, recordings, specs


def _messages(count: int) -> dict[str, Any]:
    found = messages.run(count)
    unfit = [f"{found['unfit_texts']} errors are not one short printable line"] if found["unfit_texts"] else []
    return {**found, "failures": [*found["exceptions"].items(), *unfit]}


def _node(count: int) -> dict[str, Any]:
    from test.fuzz import node  # needs ROS

    columns = {
        "rate, Hz": "rate_hz", "missing ticks": "missing", "longest pause of the node, ms": "longest_pause_ms",
        "longest silence at a subscriber, ms": "longest_silence_ms", "ticks with valid joints": "valid",
        "memory growth, MB": "grown_mb", "processors used by others": "other_load",
    }  # fmt: skip
    rows, failures = [], []
    for name, case in node.run(count).items():
        rows.append({"case": name.replace("_", " "), **{title: case[key] for title, key in columns.items()}})
        if case["missing"] or not case["alive"] or case["longest_silence_ms"] > MAX_SILENCE_MS or case["valid"] < 0.99:
            failures.append(f"{name}: {rows[-1]}")
    return {"garbage_messages": count, "rows": rows, "failures": failures}


# Each part: its option, what is counted, and what runs it. A part returns counts, `failures`, and `rows` for a table.
PARTS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "recordings": ("damaged recordings", recordings.run),
    "datasets": ("damaged datasets", datasets.run),
    "specs": ("damaged specs", specs.run),
    "messages": ("damaged messages", _messages),
    "node": ("garbage messages to a live node", _node),
}
MAX_SILENCE_MS = 100.0
LIBRARIES = ("torch", "numpy", "rosbags", "backports.zstd", "lz4", "PyYAML", "h5py", "pyarrow", "av", "pillow")


def main() -> int:
    """Run the parts that are asked for and write hostile.json and hostile.md; 1 where one of them failed."""
    parser = argument_parser(__doc__)
    for name, (what, _) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"number of {what}")
    given = parser.parse_args()
    file = given.out / "hostile.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    failures = []
    for name, (_, run) in PARTS.items():
        if (count := getattr(given, name)) > 0:
            began = datetime.datetime.now(datetime.timezone.utc)
            found[name] = {**about(f"--{name} {count}", began), **run(count)}
            found[name]["seconds"] = round((datetime.datetime.now(datetime.timezone.utc) - began).total_seconds())
            failures += found[name]["failures"]
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    write_results(given.out, "hostile", found, page(found))
    sys.stdout.write(f"wrote {file}\n")
    return int(bool(failures))


def about(options: str, began: datetime.datetime) -> dict[str, Any]:
    """The command, the date, the machine and the versions."""
    installed = {each.name: each.version for each in metadata.distributions()}
    return {
        "command": f"python -m test.fuzz {options}",
        "date": began.date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: installed[name] for name in LIBRARIES if name in installed},
    }


def page(found: dict[str, Any]) -> str:
    """The results in Markdown."""
    lines = ["# Hostile input", ""]
    for name, part in found.items():
        versions = ", ".join(f"{library} {version}" for library, version in part["versions"].items())
        lines += [f"## {name.capitalize()}", "", f"`{part['command']}`, {part['date']}, {part['seconds']} s.", ""]
        lines += [f"{part['machine']}; {versions}.", ""]
        if rows := part.get("rows"):
            lines += [*table(rows[0], (row.values() for row in rows)), ""]
        numbers = {key: value for key, value in part.items() if isinstance(value, (int, float)) and key != "seconds"}
        lines += [f"- {key}: {value:g}" for key, value in numbers.items()]
        lines += [f"- failures: {len(part['failures'])}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RoboCacheError as error:
        sys.exit(f"robocache: {error}")
