"""Parts of an export: reading beside `rosbags`, several processes, several formats in one pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from robocache_ros.bench.export import camera_recording
from robocache_ros.bench.export.machine import middle, told
from robocache_ros.export.formats import known_formats

MODULES = "robocache_ros.bench.export"
JOBS = 2
COMPRESSIONS = ("none", "lz4", "storage", "message", "sqlite3")  # storage: zstd chunks; message: zstd messages


def reading(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """MB/s of all messages by compression, and how many times that of `rosbags`."""
    bags = {name: camera_recording.write(folder / f"read-{name}", seconds, 1, name) for name in COMPRESSIONS}
    runs: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {name: [] for name in bags}
    for _ in range(rounds):
        for name, bag in bags.items():
            ours, theirs = (
                told(sys.executable, f"{MODULES}.run_reader", reader, str(bag)) for reader in ("robocache", "rosbags")
            )
            runs[name].append((ours, theirs))
    return {
        name: {
            "robocache_mb_s": round(middle([ours["bytes"] / ours["cpu_seconds"] / 1e6 for ours, _ in found])),
            "rosbags_mb_s": round(middle([their["bytes"] / their["cpu_seconds"] / 1e6 for _, their in found])),
            "times_rosbags": middle([theirs["cpu_seconds"] / ours["cpu_seconds"] for ours, theirs in found]),
        }
        for name, found in runs.items()
    }


def processes(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Seconds of an export of short recordings of one camera to AV1, by the number of processes."""
    bags = [camera_recording.write(folder / f"short{k}", seconds, 1) for k in range(count)]
    found = {}
    for jobs in (1, JOBS):
        done = _exported(bags, 1, folder / f"jobs{jobs}", {}, jobs)
        found[f"jobs_{jobs}"] = {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")}
    ratio = found["jobs_1"]["seconds"] / found["jobs_2"]["seconds"]
    return {"recordings": count, "seconds_each": seconds, **found, "times_faster": round(ratio, 2)}


def one_pass(folder: Path, seconds: float, codec: str = "h264") -> dict[str, Any]:
    """Seconds of each format alone, and of all formats in one pass, with the same codec and two jobs."""
    bag = camera_recording.write(folder / "formats", seconds, 2)
    alone = {}
    for name in known_formats():
        done = _exported([bag], 2, folder / f"alone-{name}", {"formats": [name], "codec": codec}, JOBS)
        alone[name] = {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")}
    done = _exported([bag], 2, folder / "together", {"formats": list(known_formats()), "codec": codec}, JOBS)
    return {
        "recording_s": seconds,
        "codec": codec,
        "alone": alone,
        "together": {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")},
        "times_the_slowest": _times_the_largest("seconds", done, alone),
        "times_the_slowest_cpu": _times_the_largest("cpu_seconds", done, alone),
        "times_the_slowest_wanted": 1.3,
    }


def _times_the_largest(unit: str, done: dict[str, Any], alone: dict[str, dict[str, float]]) -> float:
    return round(float(done[unit]) / max(told[unit] for told in alone.values()), 2)


def devices(folder: Path, bag: Path, spec: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Seconds of an export with the CPU and with a GPU: of a recording, and of two raw cameras that are resized."""
    cameras = camera_recording.spec(2)
    for name in ("camera0", "camera1"):
        cameras["streams"][name]["image"] = {"size": [224, 224], "resize": "area"}
    cases = {bag.name: (bag, str(spec)), "two cameras": (camera_recording.write(folder / "raw", seconds, 2), cameras)}
    found: dict[str, Any] = {}
    for case, (recording, its_spec) in cases.items():
        runs: dict[str, list[dict[str, Any]]] = {"cpu": [], "cuda": []}
        for number in range(rounds):
            for device, done in runs.items():
                wanted = {"bags": [str(recording)], "spec": its_spec, "jobs": 1, "options": {}, "device": device}
                wanted["out"] = str(folder / f"{case}-{device}-{number}")
                done.append(told(sys.executable, f"{MODULES}.run_export", json.dumps(wanted)))
        found[case] = {
            device: {key: middle([one[key] for one in done]) for key in ("seconds", "cpu_seconds")}
            for device, done in runs.items()
        }
        found[case]["times_faster"] = round(found[case]["cpu"]["seconds"] / found[case]["cuda"]["seconds"], 2)
    return found


def _exported(bags: list[Path], cameras: int, out: Path, options: dict[str, Any], jobs: int = 1) -> dict[str, Any]:
    wanted = {
        "bags": [str(bag) for bag in bags],
        "spec": camera_recording.spec(cameras),
        "out": str(out),
        "jobs": jobs,
        "options": options,
    }
    return told(sys.executable, f"{MODULES}.run_export", json.dumps(wanted))
