"""Transformers on ready tensors, from disk through the loader, and from the loader's cache."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from robocache_ros.bench.published import REPOSITORY
from robocache_ros.bench.training.measured import Row, Run, Size, Sources, train_for
from robocache_ros.bench.training.mixed_rate_episodes import ACTIONS, COLUMNS, MixedRateEpisodes
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

# 234 ticks are observed and 16 actions after them predicted: a sequence of 250.
WINDOW = Window(n_obs=234, horizon=16, action_offset=1)
ROUNDS = 2
SOURCE = f"{REPOSITORY}, robocache/.archive/development_history/WEEK2_COMPLETE.md, with 526 columns"


def measure(size: Size, device: torch.device, episodes: Path, preset: str, batch_size: int) -> list[Row]:
    """Measure a policy; the sources take turns, so that a disturbance concerns all of them."""
    dataset = TimelineDataset(MixedRateEpisodes(episodes), window=WINDOW, modalities=("proprio",))
    loaders = {
        "from disk": _loader(dataset, batch_size, size, device, "none"),
        "from the cache": _loader(dataset, batch_size, size, device, "device" if device.type == "cuda" else "host"),
    }
    sources = Sources()
    sources.add("ready tensors", _ready(loaders["from disk"]))
    for name, loader in loaders.items():
        sources.add(name, loader)
    torch.manual_seed(0)
    config = PolicyConfig(
        proprio=COLUMNS,
        actions=ACTIONS,
        n_obs=WINDOW.n_obs,
        horizon=WINDOW.horizon,
        **PRESETS["tiny" if size.tiny else preset],
    )
    options = TrainingOptions(bf16=not size.tiny, compile=not size.tiny, average=0.0, clip_norm=0.0)
    trainer = Trainer(make_policy(config), sources, options, device)
    runs: dict[str, list[Run]] = {"ready tensors": [], **{name: [] for name in loaders}}
    for _ in range(1 if size.tiny else ROUNDS):
        for name, found in runs.items():
            sources.choose(name)
            found.append(train_for(trainer, size.seconds, warm_up=2 if size.tiny else 10))
    for loader in loaders.values():
        loader.close()
    return _rows(preset, batch_size, runs)


def _ready(loader: TimelineLoader) -> list[dict[str, Tensor]]:
    """A few batches that stay on the device."""
    batches = islice(iter(loader), 8)
    return [{key: value.clone() for key, value in batch.items() if isinstance(value, Tensor)} for batch in batches]


def _loader(dataset: TimelineDataset, batch_size: int, size: Size, device: torch.device, cache: str) -> TimelineLoader:
    workers = 0 if cache == "none" and size.tiny else size.workers
    return TimelineLoader(
        dataset, batch_size, shuffle=True, drop_last=True, workers=workers, device=device, cache=cache
    )


def _rows(preset: str, batch_size: int, runs: dict[str, list[Run]]) -> list[Row]:
    large = preset == "act-101m"
    part = f"{preset}, batch {batch_size}, sequence 250, bf16, compiled"
    alone = median(run.step_ms for run in runs["ready tensors"])
    published = "337.6 ms" if large else "30.2 ms"  # the latter as 33.1 batches/s
    used_wanted = ("100 %", "99") if large else ("86.2 %", "98")
    rows = [Row(part, "step on ready tensors", alone, "ms", published, "", "forward, backward, AdamW", SOURCE)]
    for name in list(runs)[1:]:
        step = median(run.step_ms for run in runs[name])
        share = median(run.wait_share for run in runs[name]) * 100
        used = [run.gpu for run in runs[name] if run.gpu is not None and run.gpu.samples]
        rows += [
            Row(part, f"step {name}", step, "ms", published, "", "", SOURCE),
            Row(part, f"step {name} / on ready tensors", step / alone, "x", "", "1.01" if large else ""),
            Row(part, f"waiting for data, {name}", share, "%", "", "under 0.5", "time without work, CUDA events"),
            Row(part, f"GPU utilisation, {name}", _average(used), "%", *used_wanted, "NVML", SOURCE),
        ]
    return rows


def _average(used: list[Any]) -> float | None:
    """The mean utilisation in percent; None if it was not measured."""
    return sum(each.avg * each.samples for each in used) / sum(each.samples for each in used) if used else None
