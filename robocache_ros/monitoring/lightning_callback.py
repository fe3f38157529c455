"""A Lightning callback with the two monitors. Importing this module needs lightning."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.monitoring.data_wait import DataWait, DataWaitMeter
from robocache_ros.monitoring.gpu_utilization import GPUUtilization, GPUUtilizationMonitor

_Callback: Any = need("lightning.pytorch", "lightning").Callback


class TrainingMonitor(_Callback):  # type: ignore[misc]
    """Logs `data_wait_share` (0 to 1) and, on a GPU with NVML, `gpu_utilization` (percent) every few steps.

    Args:
        every: steps between two values. Reading the share waits for the GPU once.

    Attributes:
        data_wait, gpu_utilization: of the last training; None before one, the latter also without NVML.
    """

    def __init__(self, every: int = 50) -> None:
        self._every = every
        self._meter = DataWaitMeter()
        self._monitor: GPUUtilizationMonitor | None = None
        self.data_wait: DataWait | None = None
        self.gpu_utilization: GPUUtilization | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        device = pl_module.device
        self._meter = DataWaitMeter(device)
        if device.type == "cuda":
            try:
                self._monitor = GPUUtilizationMonitor(device.index or 0).start()
            except RoboCacheError:  # no NVML: the share of waiting does not need it
                self._monitor = None

    def on_train_batch_start(self, *_: Any) -> None:
        """The next batch is there."""
        self._meter.end()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """A step is done."""
        if trainer.global_step % self._every == 0:
            pl_module.log("data_wait_share", self._meter.result().share)
            if self._monitor is not None:
                pl_module.log("gpu_utilization", self._monitor.result.avg)
        self._meter.begin()

    def on_train_end(self, *_: Any) -> None:
        """Keep what was measured."""
        self.data_wait = self._meter.result()
        self._stop()

    def on_exception(self, *_: Any) -> None:
        """Stop sampling."""
        self._stop()

    def _stop(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            with suppress(RoboCacheError):  # NVML has failed meanwhile: the training has not
                self.gpu_utilization = monitor.stop()
