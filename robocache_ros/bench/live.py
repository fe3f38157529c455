"""`robocache bench live`: a robot's load through the node to a consumer, each in a separate process."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from robocache_ros.bench.load import WARM_UP_S, Options
from robocache_ros.bench.processes import GO, STOP, Child, Family, slope_per_minute
from robocache_ros.bench.report import print_report, summarize, write_plot
from robocache_ros.nodes import transport
from robocache_ros.resources import resource

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PERIOD_S = 1.0
GPU_EVERY = 5  # samples; nvidia-smi costs a process each


class Monitor:
    """Samples a process until it is stopped.

    Args:
        pid: the process.
        gpu: read the GPU's memory too.
    """

    def __init__(self, pid: int, *, gpu: bool) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._gpu = gpu and shutil.which("nvidia-smi") is not None
        self._times: list[float] = []
        self._cpu: list[float] = []
        self._rss: list[float] = []
        self._gpu_times: list[float] = []
        self._gpu_mib: list[float] = []
        self._threads: list[dict[str, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Stop, and return the results; shares are of one core."""
        self._stopped.set()
        self._thread.join()
        if len(self._times) < 2:
            return {}
        elapsed = self._times[-1] - self._times[0]
        first, last = self._threads[0], self._threads[-1]
        threads = {name: (used - first.get(name, 0.0)) / elapsed for name, used in last.items()}
        busiest = sorted(threads.items(), key=lambda item: -item[1])[:8]
        return {
            "cpu_cores": (self._cpu[-1] - self._cpu[0]) / elapsed,
            "cpu_cores_by_thread": {name: round(share, 4) for name, share in busiest if share > 0.001},
            "rss_mib_first": self._rss[0],
            "rss_mib_last": self._rss[-1],
            "rss_mib_per_minute": slope_per_minute(self._times, self._rss),
            "gpu_mib_first": self._gpu_mib[0] if self._gpu_mib else None,
            "gpu_mib_last": self._gpu_mib[-1] if self._gpu_mib else None,
            "gpu_mib_per_minute": slope_per_minute(self._gpu_times, self._gpu_mib) if self._gpu_mib else None,
            "memory_samples": {"s": [t - self._times[0] for t in self._times], "rss_mib": self._rss},
        }

    def _run(self) -> None:
        count = 0
        while not self._stopped.is_set():
            try:
                self._sample(count % GPU_EVERY == 0)
            except (OSError, ValueError):  # the process has ended
                return
            count += 1
            self._stopped.wait(PERIOD_S)

    def _sample(self, with_gpu: bool) -> None:
        cpu = cpu_s(self._proc / "stat")
        rss = _own_memory_mib(self._proc / "status")
        threads: dict[str, float] = {}
        for task in (self._proc / "task").iterdir():
            try:
                name = (task / "comm").read_text().strip()
                threads[name] = threads.get(name, 0.0) + cpu_s(task / "stat")
            except OSError:  # the thread has ended
                continue
        self._times.append(time.monotonic())
        self._cpu.append(cpu)
        self._rss.append(rss)
        self._threads.append(threads)
        if self._gpu and with_gpu:
            self._gpu_times.append(self._times[-1])
            self._gpu_mib.append(gpu_used_mib())


def gpu_used_mib() -> float:
    """Memory in use on the first GPU, by all processes."""
    answer = subprocess.run(
        ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return float(answer.stdout.strip() or 0)


def cpu_s(stat: Path) -> float:
    """Processor time of a process or a thread, from its file in /proc."""
    # The name in brackets may hold spaces; utime and stime are the 12th and 13th field behind it.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _own_memory_mib(status: Path) -> float:
    """Memory of the process' own: what is mapped of the middleware's shared segments is not in it."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return float(lines["RssAnon"].split()[0]) / 1024


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
        publisher.send(GO)
    time.sleep(WARM_UP_S)
    gpu = options.device != "cpu"
    monitors = {name: Monitor(child.pid, gpu=gpu and name == "node") for name, child in watched.items()}
    time.sleep(options.seconds)
    seen = {name: monitor.stop() for name, monitor in monitors.items()}
    for publisher in publishers:
        publisher.await_ready()
    time.sleep(DRAIN_S)
    for publisher in publishers:
        publisher.send(STOP)
    results = [family.result(publisher) for publisher in publishers]
    sent = {name: count for result in results for name, count in result["sent"].items()}
    skipped = {name: count for result in results for name, count in result["skipped"].items()}
    started = min(result["started_ns"] for result in results)
    return {"sent": sent, "skipped": skipped, "started_ns": started}, seen


def _drivers(options: Options) -> list[list[str]]:
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
