"""A small diffusion policy from disk: torch's DataLoader against the loader of this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset, data_loader
from robocache_ros.bench.training.measured import Row, Size, Sources, train_for
from robocache_ros.bench.training.mixed_rate_episodes import ACTIONS, COLUMNS, MixedRateEpisodes
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

WINDOW = Window(n_obs=50, horizon=16)
BATCH = 64
BASELINE_WORKERS = 8


def measure(size: Size, device: torch.device, episodes: Path) -> list[Row]:
    """Measure samples per second of each source, one after the other: their workers share the processors."""
    dataset = TimelineDataset(MixedRateEpisodes(episodes), window=WINDOW, modalities=("proprio",))
    workers = 0 if size.tiny else min(BASELINE_WORKERS, os.cpu_count() or 1)
    every_core = 0 if size.tiny else os.cpu_count() or 1

    def ours(cache: str) -> TimelineLoader:
        return TimelineLoader(
            dataset, BATCH, shuffle=True, drop_last=True, workers=size.workers, device=device, cache=cache
        )

    def baseline(workers: int, *, keep_open: bool) -> Any:
        return data_loader(InterpolatingDataset(episodes, WINDOW, keep_open=keep_open), BATCH, workers, device)

    makers: dict[str, Callable[[], Any]] = {
        "DataLoader, 8 workers, np.interp": lambda: baseline(workers, keep_open=False),
        "DataLoader, a worker a core, file kept open, whole arrays": lambda: baseline(every_core, keep_open=True),
        "TimelineLoader, from disk": lambda: ours("none"),
        "TimelineLoader, from the cache": lambda: ours("device" if device.type == "cuda" else "host"),
    }
    trainer, sources = _trainer(size, device)
    rates, waits = {}, {}
    for name, make in makers.items():
        loader = make()
        sources.add(name, loader)
        sources.choose(name)
        run = train_for(trainer, size.seconds, warm_up=2 if size.tiny else 30)
        rates[name], waits[name] = BATCH / run.step_ms * 1000, run.wait_share * 100
        sources.remove(name)
        if isinstance(loader, TimelineLoader):
            loader.close()
        del loader
    first = next(iter(rates.values()))
    part = f"small diffusion policy, batch {BATCH}, from disk"
    rows = []
    for name, rate in rates.items():
        is_ours = name.startswith("TimelineLoader")
        rows += [
            Row(part, name, rate, "samples/s", "", "", f"{waits[name]:.1f} % waiting for data"),
            Row(part, f"{name} / first", rate / first, "x", *(("2 to 5", "5") if is_ours else ("", ""))),
        ]
    return [row for row in rows if row.what != f"{next(iter(rates))} / first"]


def _trainer(size: Size, device: torch.device) -> tuple[Trainer, Sources]:
    torch.manual_seed(0)
    config = PolicyConfig(
        proprio=COLUMNS,
        actions=ACTIONS,
        n_obs=WINDOW.n_obs,
        horizon=WINDOW.horizon,
        **PRESETS["diffusion-tiny" if size.tiny else "diffusion"],
    )
    sources = Sources()
    options = TrainingOptions(bf16=not size.tiny, compile=not size.tiny)
    return Trainer(make_policy(config), sources, options, device), sources
