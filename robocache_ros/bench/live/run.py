"""`robocache bench live`: a robot's load through the node to a consumer, each in a separate process."""

from __future__ import annotations

import json
import os
import platform
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from robocache_ros.bench.live.monitor import Monitor
from robocache_ros.bench.live.options import WARM_UP_S, Options
from robocache_ros.bench.live.processes import GO, STOP, Child, Family
from robocache_ros.bench.live.report import print_report, summarize, write_plot
from robocache_ros.nodes.middleware import transport
from robocache_ros.resources import resource

DRAIN_S = 0.5  # wait for messages that are still being transmitted


def main(options: Options, *, naive: bool = False, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and write `live.json` and `live.png` into a folder.

    Args:
        options: what is measured.
        naive: measure the peer first, with the middleware's default settings.
        out: folder for the results; None writes none.
    """
    found: dict[str, Any] = {
        "machine": machine(),
        "options": {**asdict(options), "warm_up_s": WARM_UP_S},
    }
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        if naive:
            found["naive"] = measure_naive(options, Path(folder))
        found["node"] = measure_node(options, Path(folder))
    print_report(found)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        plain = {k: {n: v for n, v in part.items() if n != "curves"} if k in ("node", "naive") else part
                 for k, part in found.items()}  # fmt: skip
        (out / "live.json").write_text(json.dumps(plain, indent=1) + "\n")
        write_plot(found, out / "live.png")
    return found


def measure_node(options: Options, folder: Path) -> dict[str, Any]:
    """The fusion node with the shipped transport profile."""
    place = _subfolder(folder, "node")
    spec = place / "spec.yaml"
    spec.write_text(yaml.safe_dump(_spec(options), sort_keys=False))
    rows = _rows(options)
    with Family(place, environment(tuned=True)) as family:
        node = family.start("node", "traced_node", spec=str(spec), device=options.device, rows=rows)
        node.await_ready()
        images = [s.name for s in options.load.sensors if s.name.startswith(("camera", "cloud"))]
        device = _torch_device(options.device)
        consumer = family.start("consumer", "consumer", via=options.via, images=images, device=device, rows=rows)
        consumer.await_ready()
        costs = {"node": node, "consumer": consumer}
        published, seen = _drive(family, options, costs, tuned=True)
        consumer.end()
        node.end()
        return summarize(options, published, family.result(node), family.result(consumer), seen)


def measure_naive(options: Options, folder: Path) -> dict[str, Any]:
    """The peer with the middleware's defaults, as in a tutorial."""
    place = _subfolder(folder, "naive")
    with Family(place, environment(tuned=False)) as family:
        device = _torch_device(options.device)
        node = family.start("naive", "naive_node", load=asdict(options.load), device=device, rows=_rows(options))
        node.await_ready()
        published, seen = _drive(family, options, {"node": node}, tuned=False)
        node.end()
        return summarize(options, published, family.result(node), None, seen)


def _drive(
    family: Family, options: Options, watched: dict[str, Child], *, tuned: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Publish the load; returns what was sent, and what the watched processes cost meanwhile."""
    common = {"load": asdict(options.load), "reliability": options.reliability if tuned else "best_effort"}
    seconds = WARM_UP_S + options.seconds
    publishers = [
        family.start(f"publisher_{names[0]}", "publisher", sensors=names, seconds=seconds, tuned=tuned, **common)
        for names in _drivers(options)
    ]
    for publisher in publishers:
        publisher.await_ready()
    for publisher in publishers:
        publisher.tell(GO)
    time.sleep(WARM_UP_S)
    gpu = options.device != "cpu"
    monitors = {name: Monitor(child.pid, gpu=gpu and name == "node") for name, child in watched.items()}
    time.sleep(options.seconds)
    seen = {name: monitor.stop() for name, monitor in monitors.items()}
    for publisher in publishers:
        publisher.await_ready()
    time.sleep(DRAIN_S)
    for publisher in publishers:
        publisher.tell(STOP)
    results = [family.result(publisher) for publisher in publishers]
    sent = {name: count for result in results for name, count in result["sent"].items()}
    skipped = {name: count for result in results for name, count in result["skipped"].items()}
    started = min(result["started_ns"] for result in results)
    return {"sent": sent, "skipped": skipped, "started_ns": started}, seen


def _drivers(options: Options) -> list[list[str]]:
    """The sensors of each publisher process."""
    names = [sensor.name for sensor in options.load.sensors]
    if not options.separate_publishers:
        return [names]
    alone = [name for name in names if name.startswith(("camera", "cloud"))]
    rest = [name for name in names if name not in alone]
    return [*([name] for name in alone), *([rest] if rest else [])]


def _spec(options: Options) -> dict[str, Any]:
    spec = options.load.spec(delay_ms=options.delay_ms, reliability=options.reliability)
    return {**spec, "lead_ms": options.lead_ms}


def environment(*, tuned: bool) -> dict[str, str]:
    """The environment of the measured processes: a separate domain on this machine, with or without the profile."""
    own = {"ROS_DOMAIN_ID": str(random.randint(1, 101)), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    profile = dict.fromkeys(transport.PROFILES, str(resource("config", "fastdds.xml"))) if tuned else {}
    return {**own, **profile, "PYTHONUNBUFFERED": "1"}


def _torch_device(device: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _rows(options: Options) -> int:
    messages = sum(sensor.rate_hz for sensor in options.load.sensors) + 100
    return int(messages * (options.seconds + WARM_UP_S + 30) * 1.1)


def _subfolder(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def machine() -> dict[str, Any]:
    """The machine of the measurement."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"cores": os.cpu_count(), "gpu": gpu, "torch": torch.__version__, "python": platform.python_version()}
