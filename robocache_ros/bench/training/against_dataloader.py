"""A small diffusion policy from disk: torch's DataLoader against the loader of this package."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bench.published import REPOSITORY
from robocache_ros.bench.result_files import tell
from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset, data_loader
from robocache_ros.bench.training.measured import Row, Size, Sources, train_for, wait_for
from robocache_ros.bench.training.mixed_rate_episodes import ACTIONS, COLUMNS, mixed_rate_dataset
from robocache_ros.datasets import TimelineLoader, Window
from robocache_ros.training.graphed_step import WARM_UP
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

WINDOW = Window(n_obs=50, horizon=16)
BATCH = 64
BASELINE_WORKERS = 8
GOAL, AVERAGED = 0.2, 20  # the loss as a share of the first one; both are means over so many steps
PART = f"small diffusion policy, batch {BATCH}, from disk"
PUBLISHED = "2 to 5"
SOURCE = (
    f"{REPOSITORY}, docs/internal/FINAL_VALIDATION_SUMMARY.md, against other preprocessing on a GPU. Contradicted: "
    "robocache/README.md has 10 to 20 times the training speed of a DataLoader on the CPU"
)
Makers = dict[str, Callable[[], Any]]


def measure(size: Size, device: torch.device, episodes: Path) -> Iterator[Row]:
    """Measure samples per second of each source, one after the other: their workers share the processors."""
    trainer, sources = _trainer(size, device)
    first = None
    for name, make in _makers(size, device, episodes).items():
        tell(f"diffusion: {name}")
        with _chosen(sources, name, make):
            run = train_for(trainer, size.seconds, warm_up=2 if size.tiny else 30)
        rate = BATCH / run.step_ms * 1000
        yield Row(PART, name, rate, "samples/s", "", "", f"{run.wait_share * 100:.1f} % waiting for data")
        if first is not None:
            compared = (PUBLISHED, "5", "", SOURCE) if name.startswith("TimelineLoader") else ()
            yield Row(PART, f"{name} / first", rate / first, "x", *compared)
        first = first or rate


def time_to_loss(size: Size, device: torch.device, episodes: Path) -> Iterator[Row]:
    """Train the same policy on each source until its loss is `GOAL` times the loss at the start."""
    part = f"small diffusion policy, batch {BATCH}, until the loss is {GOAL:g} times that of the first {AVERAGED} steps"
    for name, make in _makers(size, device, episodes).items():
        tell(f"loss: {name}")
        trainer, sources = _trainer(size, device)
        with _chosen(sources, name, make):
            steps, seconds, reached = _until(trainer, 4 * size.seconds, 1 if size.tiny else AVERAGED)
        note = f"{steps} steps, {steps * BATCH:,} samples"
        note += "" if reached else f"; not reached in {seconds:.1f} s"
        yield Row(part, name, seconds if reached else None, "s", note=note)


def _until(trainer: Trainer, most_s: float, averaged: int) -> tuple[int, float, bool]:
    """Train until the goal; return the steps, the seconds after the first few, and whether the goal was reached."""
    for _ in range(WARM_UP + 1):  # workers start, a cache is filled, and the step is compiled and captured
        trainer.train_step()
    wait_for(trainer.device)
    begun, start = trainer.step, time.perf_counter()
    first = None
    while True:
        total = torch.zeros((), device=trainer.device)
        for _ in range(averaged):
            total += trainer.train_step()
        loss = float(total)
        first = loss if first is None else first
        steps, seconds = trainer.step - begun, time.perf_counter() - start
        if loss <= GOAL * first or seconds > most_s:
            return steps, seconds, loss <= GOAL * first


def _makers(size: Size, device: torch.device, episodes: Path) -> Makers:
    """The sources of batches by their names."""
    dataset = mixed_rate_dataset(episodes, WINDOW)
    workers = 0 if size.tiny else min(BASELINE_WORKERS, os.cpu_count() or 1)
    every_core = 0 if size.tiny else os.cpu_count() or 1

    def ours(cache: str) -> TimelineLoader:
        return TimelineLoader(
            dataset, BATCH, shuffle=True, drop_last=True, workers=size.workers, device=device, cache=cache
        )

    def baseline(workers: int, *, keep_open: bool) -> Any:
        return data_loader(InterpolatingDataset(episodes, WINDOW, keep_open=keep_open), BATCH, workers, device)

    return {
        "DataLoader, 8 workers, np.interp": lambda: baseline(workers, keep_open=False),
        "DataLoader, a worker a core, file kept open, whole arrays": lambda: baseline(every_core, keep_open=True),
        "TimelineLoader, from disk": lambda: ours("none"),
        "TimelineLoader, from the cache": lambda: ours("device" if device.type == "cuda" else "host"),
    }


@contextmanager
def _chosen(sources: Sources, name: str, make: Callable[[], Any]) -> Iterator[None]:
    """Make a source and choose it; end its workers afterwards."""
    loader = make()
    sources.add(name, loader)
    sources.choose(name)
    try:
        yield
    finally:
        sources.remove(name)
        if isinstance(loader, TimelineLoader):
            loader.close()


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
    # A small policy is bound by its launches, whatever the source of its batches: all of them have a graph.
    graph = device.type == "cuda" and not size.tiny
    options = TrainingOptions(bf16=not size.tiny, compile=not size.tiny, cuda_graph=graph)
    return Trainer(make_policy(config), sources, options, device), sources
