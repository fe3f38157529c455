"""The utilisation of a GPU over time, from NVML."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need


@dataclass(frozen=True)
class GPUUtilization:
    """Utilisation in percent: the share of NVML's sample period in which a kernel ran.

    Attributes:
        avg: the mean.
        p5: 5 % of the samples are at or below it.
        max: the highest.
        samples: how many there are, without those of the start-up. All figures are 0 if there is none.
    """

    avg: float
    p5: float
    max: float
    samples: int


class GPUUtilizationMonitor:
    """Samples the utilisation of a GPU in a thread between `start` and `stop`. It is also a context manager.

    The start-up is left out: the samples before the GPU does its first work, and those of `startup_s` after it. A
    sample takes microseconds and does not touch the CUDA context. Memory does not grow.

    Args:
        device: index of the GPU as torch numbers it, also under CUDA_VISIBLE_DEVICES.
        interval_s: time between two samples. NVML averages over 1/6 s to 1 s, so that shorter times show no more.
        startup_s: see above.
        nvml: a module with the functions of pynvml; None: pynvml, from the `training` extra.

    Errors:
        RoboCacheError: pynvml, the driver or the GPU is not available; or NVML fails while it samples (from `stop`).
    """

    latest: int  # percent, of the newest sample
    _counts: list[int]  # samples of each percentage
    _working: bool  # whether the GPU has done its first work
    _left_out: int  # samples that are still of the start-up
    _error: Exception | None
    _stopped: threading.Event

    def __init__(
        self, device: int = 0, *, interval_s: float = 0.2, startup_s: float = 1.0, nvml: Any | None = None
    ) -> None:
        if not (interval_s > 0 and startup_s >= 0):
            raise RoboCacheError(f"interval_s, startup_s: {interval_s:g}, {startup_s:g}; give a time above 0 s")
        self._nvml = need("pynvml", "training") if nvml is None else nvml
        self._device, self._interval_s = device, interval_s
        self._startup = round(startup_s / interval_s)  # in samples
        self._thread: threading.Thread | None = None
        self._clear()

    def start(self) -> GPUUtilizationMonitor:
        """Begin to sample, and forget earlier samples."""
        if self._thread is not None:
            raise RoboCacheError("GPUUtilizationMonitor: is already started; call stop first")
        self._call(self._nvml.nvmlInit)
        try:
            handle = self._call(_handle, self._nvml, self._device)
            self._call(self._nvml.nvmlDeviceGetUtilizationRates, handle)  # an error is raised here, not in the thread
        except RoboCacheError:
            self._nvml.nvmlShutdown()
            raise
        self._clear()
        self._thread = threading.Thread(target=self._run, args=(handle,), name="gpu-utilization", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> GPUUtilization:
        """End sampling and return the utilisation since `start`."""
        if self._thread is None:
            raise RoboCacheError("GPUUtilizationMonitor: is not started; call start first")
        self._stopped.set()
        self._thread.join()
        self._thread = None
        self._nvml.nvmlShutdown()
        if self._error is not None:
            raise RoboCacheError(f"GPU {self._device}: {printable(self._error)}; check nvidia-smi")
        return self.result

    def __enter__(self) -> GPUUtilizationMonitor:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.stop()
        except RoboCacheError:
            if kind is None:  # else the error of the body is the one to see
                raise

    @property
    def result(self) -> GPUUtilization:
        """The utilisation since `start`, also while it runs and after the end of the context."""
        counts = list(self._counts)
        samples = sum(counts)
        if not samples:
            return GPUUtilization(0.0, 0.0, 0.0, 0)
        total = sum(percent * count for percent, count in enumerate(counts))
        p5 = next(percent for percent, seen in enumerate(accumulate(counts)) if seen * 20 >= samples)
        highest = max(percent for percent, count in enumerate(counts) if count)
        return GPUUtilization(total / samples, float(p5), float(highest), samples)

    def add(self, percent: int) -> None:
        """Count a sample, as the thread does."""
        self.latest = percent
        if not self._working:
            self._working = percent > 0
            self._left_out = self._startup
        if not self._working or self._left_out > 0:
            self._left_out -= 1
            return
        self._counts[min(max(percent, 0), 100)] += 1

    def _run(self, handle: Any) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self.add(int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            except Exception as error:
                self._error = error
                return

    def _clear(self) -> None:
        self.latest = self._left_out = 0
        self._counts = [0] * 101
        self._working, self._error, self._stopped = False, None, threading.Event()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except RoboCacheError:
            raise
        except Exception as error:
            raise RoboCacheError(f"GPU {self._device}: {printable(error)}; check nvidia-smi") from None


def _handle(nvml: Any, device: int) -> Any:
    """NVML's handle of a GPU that CUDA numbers `device`: CUDA may hide some, and NVML knows all."""
    visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    count = int(nvml.nvmlDeviceGetCount())
    if not 0 <= device < (len(visible) or count):
        raise RoboCacheError(f"GPU {device}: there are {len(visible) or count}; give the index of one")
    name = visible[device] if visible else str(device)
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    for index in range(count):  # CUDA accepts the beginning of a UUID
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (uuid.decode() if isinstance(uuid, bytes) else str(uuid)).startswith(name):
            return handle
    raise RoboCacheError(f"GPU {device}: NVML has no {printable(name)}; check CUDA_VISIBLE_DEVICES")
