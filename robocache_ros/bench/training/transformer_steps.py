"""Transformers on ready tensors, from disk through the loader, from the loader's cache, and from DataLoaders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from robocache_ros.bench.published import REPOSITORY
from robocache_ros.bench.result_files import tell
from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset, data_loader
from robocache_ros.bench.training.measured import Row, Run, Size, Sources, train_for
from robocache_ros.bench.training.mixed_rate_episodes import ACTIONS, COLUMNS, mixed_rate_dataset
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

# 234 ticks are observed and 16 actions after them predicted: a sequence of 250.
WINDOW = Window(n_obs=234, horizon=16, action_offset=1)
ROUNDS = 2
SOURCE = f"{REPOSITORY}, robocache/.archive/development_history/WEEK2_COMPLETE.md, with 526 columns"
READY, DISK, CACHE = "on ready tensors", "from disk", "from the cache"
PEERS = {"from DataLoader, 8 workers, np.interp": False, "from DataLoader, a worker a core, whole arrays": True}
# How the step is launched, by the title of its table.
COMPILED, GRAPH = {"compile": True}, {"cuda_graph": True}
LAUNCHES = {
    "act-101m": {"compiled": COMPILED},
    "act-13m": {"compiled": COMPILED, "CUDA graph": GRAPH, "compiled, CUDA graph": COMPILED | GRAPH},
}


def measure(size: Size, device: torch.device, episodes: Path, preset: str, batch_size: int) -> Iterator[Row]:
    """Measure a policy. Each row is given as soon as it is known, and again when a later round has made it better."""
    dataset = mixed_rate_dataset(episodes, WINDOW)
    with closing(_Loaders(dataset, batch_size, size, device)) as loaders:
        for launch, options in LAUNCHES[preset].items():
            if "cuda_graph" in options and device.type != "cuda":
                continue
            title = f"{preset}, batch {batch_size}, sequence 250, bf16, {launch}"
            try:
                trainer = _trainer(preset, loaders.sources, size, device, options)
                yield from _measured(title, preset, loaders, size, trainer)
                if options is COMPILED:
                    yield from _peers(title, batch_size, loaders, size, trainer, episodes)
            except Exception as error:  # the other launches are measured
                yield Row(title, "failed", None, "", note=f"{type(error).__name__}: {error}"[:200])


class _Loaders:
    """The loaders, and the sources of batches that a trainer chooses from."""

    def __init__(self, dataset: TimelineDataset, batch_size: int, size: Size, device: torch.device) -> None:
        self.sources = Sources()
        self._loaders = {
            DISK: _loader(dataset, batch_size, size, device, "none"),
            CACHE: _loader(dataset, batch_size, size, device, "device" if device.type == "cuda" else "host"),
        }
        self.sources.add(READY, _ready(self._loaders[DISK]))
        for name, loader in self._loaders.items():
            self.sources.add(name, loader)

    def close(self) -> None:
        """End the workers."""
        for loader in self._loaders.values():
            loader.close()


def _measured(title: str, preset: str, loaders: _Loaders, size: Size, trainer: Trainer) -> Iterator[Row]:
    """The sources take turns, so that a disturbance concerns all of them."""
    runs: dict[str, list[Run]] = {READY: [], DISK: [], CACHE: []}
    for turn in range(1 if size.tiny else ROUNDS):
        for name, found in runs.items():
            tell(f"{title}: {name}, round {turn + 1}")
            loaders.sources.choose(name)
            found.append(train_for(trainer, size.seconds, warm_up=2 if size.tiny else 10))
            yield from _rows(title, preset, runs)


def _peers(
    title: str, batch_size: int, loaders: _Loaders, size: Size, trainer: Trainer, episodes: Path
) -> Iterator[Row]:
    """The same with torch's DataLoader, for some seconds each."""
    for name, careful in PEERS.items():
        tell(f"{title}: {name}")
        cores = os.cpu_count() or 1
        workers = 0 if size.tiny else cores if careful else min(8, cores)
        dataset = InterpolatingDataset(episodes, WINDOW, keep_open=careful)
        loaders.sources.add(name, data_loader(dataset, batch_size, workers, trainer.device))
        loaders.sources.choose(name)
        run = train_for(trainer, size.seconds, warm_up=1 if size.tiny else 5)
        loaders.sources.remove(name)
        yield Row(title, f"step {name}", run.step_ms, "ms")
        yield Row(title, f"waiting for data, {name}", run.wait_share * 100, "%")


def _trainer(preset: str, sources: Sources, size: Size, device: torch.device, options: Mapping[str, bool]) -> Trainer:
    torch.manual_seed(0)
    config = PolicyConfig(
        proprio=COLUMNS,
        actions=ACTIONS,
        n_obs=WINDOW.n_obs,
        horizon=WINDOW.horizon,
        **PRESETS["tiny" if size.tiny else preset],
    )
    how = {} if size.tiny else {**options, "bf16": True}
    return Trainer(make_policy(config), sources, TrainingOptions(average=0.0, clip_norm=0.0, **how), device)


def _ready(loader: TimelineLoader) -> list[dict[str, Tensor]]:
    """A few batches that stay on the device."""
    batches = islice(iter(loader), 8)
    return [{key: value.clone() for key, value in batch.items() if isinstance(value, Tensor)} for batch in batches]


def _loader(dataset: TimelineDataset, batch_size: int, size: Size, device: torch.device, cache: str) -> TimelineLoader:
    workers = 0 if size.tiny else size.workers if cache == "none" else min(4, size.workers)
    return TimelineLoader(
        dataset, batch_size, shuffle=True, drop_last=True, workers=workers, device=device, cache=cache
    )


def _rows(title: str, preset: str, runs: Mapping[str, list[Run]]) -> Iterator[Row]:
    large = preset == "act-101m"
    alone = median(run.step_ms for run in runs[READY])
    published = "337.6 ms" if large else "30.2 ms"  # the latter as 33.1 batches/s
    used_wanted = ("100 %", "99") if large else ("86.2 %", "98")
    yield Row(title, "step on ready tensors", alone, "ms", published, "", "forward, backward, AdamW", SOURCE)
    for name in (DISK, CACHE):
        if not runs[name]:
            continue
        step = median(run.step_ms for run in runs[name])
        share = median(run.wait_share for run in runs[name]) * 100
        used = [run.gpu for run in runs[name] if run.gpu is not None and run.gpu.samples]
        yield Row(title, f"step {name}", step, "ms", published, "", "", SOURCE)
        yield Row(title, f"step {name} / on ready tensors", step / alone, "x", "", "1.01" if large else "")
        yield Row(title, f"waiting for data, {name}", share, "%", "", "under 0.5", "time without work, CUDA events")
        yield Row(title, f"GPU utilisation, {name}", _average(used), "%", *used_wanted, "NVML", SOURCE)


def _average(used: list[Any]) -> float | None:
    """The mean utilisation in percent; None if it was not measured."""
    return sum(each.avg * each.samples for each in used) / sum(each.samples for each in used) if used else None
