"""The memory and the time of an export of a long recording: 30 minutes and 3 GB, synthetic.

Run: python -m benchmarks.export.memory [--tree NAME=PLACE ...] [--minutes 30] [--media none]

Each tree exports the same recording in a separate process. PLACE is a checkout or a commit of this project;
without `--tree` it is this checkout. The parent samples RssAnon of the child every 20 ms and ends it if the machine
runs out of memory. The same is measured for a process that only imports torch. Needs 7 GB of disk in the temporary
folder until it ends. Prints a table; writes export_memory.json and .md into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, machine, write_results
from robocache_ros.bags.write import write_bag
from robocache_ros.extras import need

ROOT = Path(__file__).parents[2]
TORCH = "import torch"
LEAST_FREE_KB = 2 << 20  # with less memory left on the machine, a measurement ends
START_NS = 1_760_000_000_000_000_000
SAMPLE_S = 0.02
POINTS = 9_100  # of a cloud, 16 bytes each
JOINTS = [f"joint{k}" for k in range(1, 8)]
SPEC = {
    "robocache": 1,
    "rate_hz": 50,
    "streams": {
        "joint_position": {
            "topic": "/joint_states", "type": "sensor_msgs/msg/JointState", "names": JOINTS, "align": "linear",
        },
        "joint_velocity": {
            "topic": "/joint_states", "type": "sensor_msgs/msg/JointState", "field": "velocity", "names": JOINTS,
            "align": "linear",
        },
        "force": {
            "topic": "/wrench", "type": "geometry_msgs/msg/WrenchStamped", "field": "wrench.force", "align": "linear",
        },
        "voxels": {
            "topic": "/points", "type": "sensor_msgs/msg/PointCloud2", "max_age_ms": 200,
            "voxels": {"origin_m": [-1, -1, -1], "size_m": 0.03125, "shape": [64, 64, 64], "reduce": "occupancy"},
        },
        "action": {
            "topic": "/command", "type": "sensor_msgs/msg/JointState", "names": JOINTS, "align": "hold",
            "role": "action",
        },
    },
}  # fmt: skip


@dataclass(frozen=True)
class Topic:
    """A topic of the recording: its type, its rate and the message that the others are made from."""

    name: str
    type: str
    rate_hz: int
    message: bytes
    values_at: int  # offset in the message of the numbers that change
    values: int  # their count: float64, or float32 for a cloud


def main() -> None:
    """Make the recording, measure each tree and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="a checkout to measure")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--media", default="none", choices=("none", "image", "video"))
    options = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in options.tree) or {"now": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="robocache-export-") as scratch, ExitStack() as worktrees:
        folder = Path(scratch)
        places = {
            name: checkout(place, folder / f"tree{number}", worktrees)
            for number, (name, place) in enumerate(trees.items())
        }
        (folder / "spec.yaml").write_text(json.dumps(SPEC), encoding="utf-8")
        bag = write_bag(folder / "bag", {t.name: t.type for t in topics()}, messages(topics(), options.minutes * 60))
        result: dict[str, Any] = {
            "machine": machine(),
            "recording": {
                "minutes": options.minutes,
                "bytes": sum(f.stat().st_size for f in bag.iterdir()),
                "topics": {t.name: f"{t.rate_hz} Hz, {len(t.message)} bytes" for t in topics()},
            },
            "media": options.media,
            "measured": {TORCH: measured([sys.executable, "-c", TORCH], ROOT)},
        }
        for name, tree in places.items():
            shutil.rmtree(folder / "set", ignore_errors=True)
            export = ["export", str(bag), "--spec", str(folder / "spec.yaml"), "--out", str(folder / "set")]
            command = [sys.executable, "-m", "robocache_ros", *export, "--media", options.media]
            result["measured"][name] = measured(command, tree)
    text = report(result)
    write_results(RESULTS, "export_memory", result, text)
    print(text)


def checkout(place: str, folder: Path, worktrees: ExitStack) -> Path:
    """The folder of a tree; of a commit, a worktree that is removed with `worktrees`."""
    if Path(place).is_dir():
        return Path(place).resolve()
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), place], check=True)
    worktrees.callback(subprocess.run, [*git, "remove", "--force", str(folder)], check=True)
    return folder


def report(result: dict[str, Any]) -> str:
    """The result as Markdown: what was measured, and one table."""
    recording, on = result["recording"], result["machine"]
    topics_in_words = "; ".join(f"{name} {topic}" for name, topic in recording["topics"].items())
    torch_mb = result["measured"][TORCH]["peak_anonymous_mb"]
    rows = []
    for name, one in result["measured"].items():
        peak, load = one["peak_anonymous_mb"], f"{one['load_before']:.1f}, {one['load_after']:.1f}"
        done = "yes" if one["complete"] else "no: the machine had no more memory"
        rows.append(
            f"| {name} | {peak:,} MB | {peak - torch_mb:,} MB "
            f"| {one['seconds']:.1f} | {one['cpu_seconds']:.1f} | {load} | {done} |"
        )
    return "\n".join(
        [
            f"# Memory and time of an export: {recording['minutes']:g} minutes, {recording['bytes'] / 1e9:.2f} GB",
            "",
            "`python -m benchmarks.export.memory` (`--tree NAME=FOLDER` for others) makes a synthetic",
            f"recording ({topics_in_words}) and exports it with `--media {result['media']}`.",
            "The clouds become occupancy voxels. The parent samples RssAnon of the exporting process every 20 ms.",
            f"{on['cores']} cores of an {on['cpu']}, Python {on['python']}, {on['date']}. Seconds are those of the",
            "process, with the start of Python and the import of torch. The load average of the machine, before and",
            "after, shows how much other programs slowed it down. CPU seconds are of all its threads.",
            "",
            f"| | peak anonymous memory | above `{TORCH}` | seconds | CPU seconds | load | complete |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def topics() -> list[Topic]:
    """The recording's topics, each with a message of its size."""
    store: Any = need("rosbags.typesys", "bags").get_typestore(need("rosbags.typesys", "bags").Stores.LATEST)
    types = store.types
    mark = 1234.5
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](0, 0), "base")
    vector = types["geometry_msgs/msg/Vector3"]
    numbers = np.full(7, mark)
    joints = types["sensor_msgs/msg/JointState"](header, JOINTS, numbers, numbers, numbers)
    wrench = types["geometry_msgs/msg/Wrench"](vector(mark, mark, mark), vector(mark, mark, mark))
    field = types["sensor_msgs/msg/PointField"]
    fields = [field(name, 4 * k, 7, 1) for k, name in enumerate(("x", "y", "z", "intensity"))]
    cloud = types["sensor_msgs/msg/PointCloud2"](
        header, 1, POINTS, fields, False, 16, 16 * POINTS,
        np.full(4 * POINTS, mark, "<f4").view(np.uint8), True,
    )  # fmt: skip
    made = []
    for name, rate_hz, message, dtype, values in (
        ("/joint_states", 500, joints, "<f8", 7),
        ("/wrench", 500, types["geometry_msgs/msg/WrenchStamped"](header, wrench), "<f8", 6),
        ("/command", 50, joints, "<f8", 7),
        ("/points", 10, cloud, "<f4", 4 * POINTS),
    ):
        data = bytes(store.serialize_cdr(message, message.__msgtype__))
        made.append(
            Topic(name, message.__msgtype__, rate_hz, data, data.index(np.array(mark, dtype).tobytes()), values)
        )
    return made


def messages(topics: list[Topic], seconds: float) -> Iterator[tuple[str, int, bytes]]:
    """The messages in the order of their times: every number changes from one to the next."""
    clouds = np.random.default_rng(0).uniform(-1, 1, (16, 4 * POINTS)).astype("<f4")
    for tick in range(int(seconds * 500)):
        now_ns = START_NS + tick * 2_000_000
        for topic in topics:
            if tick % (500 // topic.rate_hz):
                continue
            data = bytearray(topic.message)
            data[4:12] = (now_ns // 10**9).to_bytes(4, "little") + (now_ns % 10**9).to_bytes(4, "little")
            if topic.name == "/points":
                values = clouds[tick // 50 % 16] * np.float32(0.5 + tick % 1000 / 2000)
            else:
                values = np.sin(np.arange(topic.values) + tick / 500)
            data[topic.values_at : topic.values_at + values.nbytes] = values.tobytes()
            yield topic.name, now_ns + 1_000_000, bytes(data)


def measured(command: list[str], tree: Path) -> dict[str, Any]:
    """Run a command of a checkout; its time and the most anonymous memory that it held, sampled."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    load_before = os.getloadavg()[0]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    peak_kb, ended, complete = 0, 0, True
    while not ended:
        peak_kb = max(peak_kb, anonymous_kb(process.pid))
        if complete and available_kb() < LEAST_FREE_KB:
            complete = False
            process.kill()
        time.sleep(SAMPLE_S)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if complete and process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),  # does not depend on other load
        "peak_anonymous_mb": round(peak_kb * 1024 / 1e6),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "complete": complete,
    }


def available_kb() -> int:
    """Available memory of the machine, without swap."""
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return int(found[1]) if found else LEAST_FREE_KB


def anonymous_kb(pid: int) -> int:
    """RssAnon of a process; 0 if it has just ended."""
    try:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
