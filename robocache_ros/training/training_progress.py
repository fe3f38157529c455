"""Shows the progress of a training: a bar on a terminal, lines elsewhere, and TensorBoard's files if asked for."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.monitoring import GPUUtilizationMonitor
from robocache_ros.training.trainer import Trainer

FIRST_REPORT_S, LATER_REPORTS_S = 5.0, 30.0


class TrainingProgress:
    """Reports the loss, steps per second, the share of time waiting for data, and the utilisation of the GPU.

    It is a context manager, for the first process only. The utilisation is left out without a GPU or without pynvml.

    Args:
        trainer: is reported.
        every: steps between two reports. Slow steps are reported earlier: after 5 s, and then every 30 s. A report
            reads the loss, which waits for the device.
        tensorboard: folder for TensorBoard; None: none.
        write: receives lines; None: a bar if the output is a terminal and rich is there, else lines on stdout.
        clock: seconds on a monotonic clock.
    """

    def __init__(
        self,
        trainer: Trainer,
        every: int = 50,
        tensorboard: str | Path | None = None,
        *,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every < 1:
            raise RoboCacheError(f"report_every: {every} is less than 1; give a number of steps")
        self._trainer, self._every, self._folder, self._clock = trainer, every, tensorboard, clock
        self._write = write
        self._bar: Any = None
        self._board: Any = None
        self._gpu: GPUUtilizationMonitor | None = None
        self._stack = ExitStack()
        self._since = trainer.step, clock()
        self._patience_s = FIRST_REPORT_S

    def __enter__(self) -> TrainingProgress:
        if self._folder is not None:
            self._board = need("torch.utils.tensorboard", "training").SummaryWriter(str(self._folder))
            self._stack.callback(self._board.close)
        if self._trainer.device.type == "cuda":
            try:
                self._gpu = GPUUtilizationMonitor(self._trainer.device.index or 0).start()
                self._stack.callback(self._stop_gpu)
            except RoboCacheError as error:
                sys.stderr.write(f"GPU utilisation is not shown: {error}\n")
        if self._write is None:
            self._write = self._bar_or_lines()
        self._since = self._trainer.step, self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, loss: Any) -> None:
        """Report a step that the trainer has made, if it is one to report.

        Args:
            loss: of the step, a tensor of one number.

        Errors:
            RoboCacheError: the loss is infinite or not a number.
        """
        step = self._trainer.step
        if self._bar is not None:
            self._bar.update(0, completed=step)
        before, since = self._since
        now = self._clock()
        if step % self._every and now - since < self._patience_s:
            return
        value = float(loss)  # waits for the device
        if not math.isfinite(value):
            raise RoboCacheError(
                f"loss: {value} at step {step}; lower the learning rate, or look for wrong values in the data"
            )
        now = self._clock()  # after that wait
        self._since, self._patience_s = (step, now), LATER_REPORTS_S
        values = {
            "loss": value,
            "steps_per_s": (step - before) / max(now - since, 1e-9),
            "data_wait_share": self._trainer.data_wait.result().share,
        }
        if self._gpu is not None:
            values["gpu_utilization"] = self._gpu.result.avg
        assert self._write is not None
        self._write(self._text(values))
        for name, number in values.items() if self._board is not None else ():
            self._board.add_scalar(name, number, step)

    def _stop_gpu(self) -> None:
        assert self._gpu is not None
        try:
            self._gpu.stop()
        except RoboCacheError as error:  # the training has not failed
            sys.stderr.write(f"GPU utilisation is of a part of the run: {error}\n")

    def _text(self, values: dict[str, float]) -> str:
        gpu = f", GPU {values['gpu_utilization']:.0f} %" if "gpu_utilization" in values else ""
        left_s = (self._trainer.options.steps - self._trainer.step) / max(values["steps_per_s"], 1e-9)
        left = "" if self._bar is not None else f", {_duration(left_s)} left"  # the bar shows it
        return (
            f"step {self._trainer.step:,}: loss {values['loss']:.4g}, {values['steps_per_s']:.3g} steps/s{left}, "
            f"{values['data_wait_share']:.2%} waiting for data{gpu}"
        )

    def _bar_or_lines(self) -> Callable[[str], None]:
        def line(text: str) -> None:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

        if not sys.stdout.isatty():
            return line
        try:
            progress = need("rich.progress", "training")
        except RoboCacheError:
            return line
        columns = (
            "{task.percentage:>3.0f} %",
            progress.BarColumn(),
            progress.TimeRemainingColumn(),
            "left",
            "{task.description}",
        )
        self._bar = self._stack.enter_context(progress.Progress(*columns, speed_estimate_period=300))  # seconds
        self._bar.add_task("", total=self._trainer.options.steps, completed=self._trainer.step)
        return lambda text: self._bar.update(0, description=text)


def _duration(seconds: float) -> str:
    """A time in its two largest units."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
