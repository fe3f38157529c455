"""The cost of a process, read from /proc by its parent: processor time by thread, memory; and the GPU's memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from robocache_ros.bench.live.record import slope_per_minute

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
        cpu = _cpu_s(self._proc / "stat")
        rss = _own_memory_mib(self._proc / "status")
        threads: dict[str, float] = {}
        for task in (self._proc / "task").iterdir():
            try:
                name = (task / "comm").read_text().strip()
                threads[name] = threads.get(name, 0.0) + _cpu_s(task / "stat")
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


def _cpu_s(stat: Path) -> float:
    # The name in brackets may hold spaces; utime and stime are the 12th and 13th field behind it.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _own_memory_mib(status: Path) -> float:
    """Memory of the process' own: what is mapped of the middleware's shared segments is not in it."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return float(lines["RssAnon"].split()[0]) / 1024
