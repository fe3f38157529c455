"""One of the processes of the benchmark of scaling; the first one prints a line of JSON per figure. Run by torchrun."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from robocache_ros import Stream, fuse
from robocache_ros.bench.scaling.rates import endless, rate
from robocache_ros.bench.training.mixed_rate_episodes import ACTIONS, COLUMNS, mixed_rate_dataset
from robocache_ros.datasets import TimelineLoader, Window
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.process_group import ProcessGroup, process_group
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

MODES = ("weak", "strong")
WHAT = ("loading", "preprocessing", "training")
SAMPLES, TICKS, WIDTH = 500, 250, 256  # of the streams that are preprocessed


def main() -> None:
    """Measure; the argument is a JSON object: episodes, policy, batch, n_obs, seconds, device, limit_s."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(wanted["limit_s"] * 0.8)
    with process_group(wanted["device"]) as group:
        for row in measured(wanted, group):
            if group.first:
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()


def measured(wanted: dict[str, Any], group: ProcessGroup) -> Iterator[dict[str, Any]]:
    """Yield the rates of all processes: weak with a batch for each of them, strong with one batch that they share."""
    about = {"policy": wanted["policy"], "device": group.device.type, "processes": group.size}
    for mode in MODES[: 1 if group.size == 1 else 2]:  # they are the same for one process
        batch = max(1, wanted["batch"] // (group.size if mode == "strong" else 1))
        window = Window(wanted["n_obs"], 16, 1)
        with _Steps(wanted, batch, window, group) as steps:
            for what, step in steps.all().items():
                found = rate(step, wanted["seconds"], batch, group)
                for name in MODES if group.size == 1 else (mode,):
                    yield {"mode": name, "what": what, **about, "batch": batch, "samples_per_s": found}


class _Steps:
    """What is measured, by its name."""

    def __init__(self, wanted: dict[str, Any], batch: int, window: Window, group: ProcessGroup) -> None:
        gpu, self._batch = group.device.type == "cuda", batch
        self._device = group.device
        dataset = mixed_rate_dataset(Path(wanted["episodes"]), window)
        workers = max(1, (os.cpu_count() or 2) // group.size - 1) if gpu else 0
        self._loader = TimelineLoader(
            dataset, batch, shuffle=True, drop_last=True, workers=workers, device=group.device
        )
        torch.manual_seed(0)
        shape = {"proprio": COLUMNS, "actions": ACTIONS, "n_obs": window.n_obs, "horizon": window.horizon}
        policy = make_policy(PolicyConfig(**{**PRESETS[wanted["policy"]], **shape}))
        options = TrainingOptions(bf16=gpu, compile=gpu, average=0.0, clip_norm=0.0)
        self._trainer = Trainer(policy, self._loader, options, group.device)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def all(self) -> dict[str, Callable[[], Any]]:
        """Return a function for each step."""
        batches = endless(self._loader)
        loading = dict.fromkeys(WHAT[:1], lambda: next(batches))
        return {**loading, WHAT[1]: self._preprocessing(), WHAT[2]: self._trainer.train_step}

    def _preprocessing(self) -> Callable[[], Any]:
        """Fuse streams that are on the device."""
        stamps = torch.arange(SAMPLES, device=self._device).expand(self._batch, -1).contiguous() * 10_000_000
        ticks = torch.arange(TICKS, device=self._device) * 20_000_000
        values = torch.randn(self._batch, SAMPLES, WIDTH, device=self._device).bfloat16()
        streams = [Stream(values, stamps)]
        return lambda: fuse(streams, ticks)


if __name__ == "__main__":
    main()
