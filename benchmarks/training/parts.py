"""The parts of the benchmark of trainings, and the process of one part. Run by `python -m benchmarks training`.

A part has a process of its own, so that one that hangs is ended and the others are measured. It prints each row as a
line of JSON on stdout, as soon as it is measured, and its progress on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.episodes import ACTIONS, COLUMNS, InterpolatingDataset, data_loader, mixed_rate_dataset
from benchmarks.processes import stacks_after
from benchmarks.published import REPOSITORY
from benchmarks.report import tell
from benchmarks.training.measured import Row, Run, Size, Sources, train_for, wait_for
from robocache_ros import Stream, fuse
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.training.policies.make_policy import Policy, make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import WARM_UP, GraphedStep, Trainer
from robocache_ros.training.training_options import TrainingOptions

# The published training step: two streams fused to 250 ticks, then a small network with Adam.


STEP_BATCH, SAMPLES, TICKS, TICK_NS = 32, 500, 250, 20_000_000
WIDTHS = {"vision": 256, "proprio": 14}
STEP_PART = "published training step: two bfloat16 streams to 250 ticks, MLP 270-512-256-7, Adam"

STEP_PUBLISHED = "1.56 ms"
STEP_SOURCE = f"{REPOSITORY}, robocache/profiling/NSIGHT_SYSTEMS_H100.md"
STEP_ROUNDS, BATCHES = 5, 8


def measure_published_step(size: Size, device: torch.device) -> Iterator[Row]:
    """Measure the step for a batch of 32 and an action per tick, preprocessing included."""
    # Compiled code without a graph takes longer to launch than the operations that it replaces.
    for (graph, compiled), bf16 in product(((True, True), (True, False), (False, False)), (False, True)):
        launch = f"{'CUDA graph' if graph else 'no graph'}{', compiled' if compiled else ''}"
        name, wanted = f"{launch}, network in {'bfloat16' if bf16 else 'TF32'}", "0.22 ms" if graph else "1.0 ms"
        ms, note = None, "needs a GPU"
        if device.type == "cuda" or not graph:
            tell(f"step: {name}")
            ms = _step_ms(device, size.seconds / 6, graph=graph, compiled=compiled, bf16=bf16)
            note = "fuse, forward, backward, Adam"
        yield Row(STEP_PART, name, ms, "ms", STEP_PUBLISHED, wanted, note, STEP_SOURCE)


def _step_ms(device: torch.device, seconds: float, *, graph: bool, compiled: bool, bf16: bool) -> float:
    """The median over rounds of some seconds of the mean milliseconds of a step."""
    torch.manual_seed(0)
    torch._dynamo.reset()  # else compiled code of one network is looked up for another
    model = nn.Sequential(nn.Linear(270, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 7)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=device.type == "cuda", capturable=graph)
    ticks = torch.arange(TICKS, dtype=torch.int64, device=device) * TICK_NS
    stamps = torch.arange(SAMPLES, dtype=torch.int64, device=device) * (TICKS * TICK_NS // SAMPLES)
    stamps = stamps.expand(STEP_BATCH, -1).contiguous()
    result: list[Any] = [None]  # its tensors are used by each step
    dtype = torch.bfloat16 if bf16 else torch.float32

    def loss_of(values: Tensor, actions: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, bf16, cache_enabled=not graph):
            found = model(values)
        return nn.functional.mse_loss(found.float(), actions)

    objective: Any = torch.compile(loss_of) if compiled else loss_of

    def step(batch: Mapping[str, Tensor]) -> Tensor:
        streams = [Stream(batch[name], stamps) for name in WIDTHS]
        fused = result[0] = fuse(streams, ticks, dtype=dtype, out=result[0])
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = objective(fused.values, batch["actions"])
        with torch.autograd.set_multithreading_enabled(False):  # as our trainer
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    run: Callable[[Any], Tensor] = GraphedStep(lambda given: step(given[0])) if graph else step
    found = [_batch(device, seed) for seed in range(BATCHES if device.type == "cuda" else 1)]
    batches: list[Any] = [[batch] for batch in found] if graph else found
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for number in range(16 if device.type == "cuda" else 1):
            run(batches[number % len(batches)])
        return median(
            _mean_ms(run, batches, seconds, device) for _ in range(STEP_ROUNDS if device.type == "cuda" else 1)
        )
    finally:
        torch.set_float32_matmul_precision(precision)


def _mean_ms(run: Callable[[Any], Tensor], batches: list[Any], seconds: float, device: torch.device) -> float:
    """The mean milliseconds of a step, over some seconds."""
    together = batches * 16 if device.type == "cuda" else batches  # so many that waiting for them takes no time
    wait_for(device)
    start, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - start < seconds:
        for batch in together:
            run(batch)
        steps += len(together)
        wait_for(device)
    return (time.perf_counter() - start) / steps * 1000


def _batch(device: torch.device, seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    streams = {name: torch.randn(STEP_BATCH, SAMPLES, width, generator=random) for name, width in WIDTHS.items()}
    batch = {name: values.bfloat16().to(device) for name, values in streams.items()}
    return {**batch, "actions": torch.randn(STEP_BATCH, TICKS, 7, generator=random).to(device)}


# Transformers on ready tensors, from disk through the loader, from the loader's cache, and from DataLoaders.


# 234 ticks are observed and 16 actions after them predicted: a sequence of 250.
TRANSFORMER_WINDOW = Window(n_obs=234, horizon=16, action_offset=1)
TRANSFORMER_ROUNDS = 2
TRANSFORMER_SOURCE = f"{REPOSITORY}, robocache/.archive/development_history/WEEK2_COMPLETE.md, with 526 columns"
READY, DISK, CACHE = "on ready tensors", "from disk", "from the cache"
PEERS = {"from DataLoader, 8 workers, np.interp": False, "from DataLoader, a worker a core, whole arrays": True}
# How the step is launched, by the title of its table.
COMPILED, GRAPH = {"compile": True}, {"cuda_graph": True}
LAUNCHES = {
    "act-101m": {"compiled": COMPILED},
    "act-13m": {"compiled": COMPILED, "CUDA graph": GRAPH, "compiled, CUDA graph": COMPILED | GRAPH},
}


def measure_transformer(
    size: Size, device: torch.device, episodes: Path, preset: str, batch_size: int
) -> Iterator[Row]:
    """Measure a policy. Each row is given as soon as it is known, and again when a later round has made it better."""
    dataset = mixed_rate_dataset(episodes, TRANSFORMER_WINDOW)
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
    for turn in range(1 if size.tiny else TRANSFORMER_ROUNDS):
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
        dataset = InterpolatingDataset(episodes, TRANSFORMER_WINDOW, keep_open=careful)
        loaders.sources.add(name, data_loader(dataset, batch_size, workers, trainer.device))
        loaders.sources.choose(name)
        run = train_for(trainer, size.seconds, warm_up=1 if size.tiny else 5)
        loaders.sources.remove(name)
        yield Row(title, f"step {name}", run.step_ms, "ms")
        yield Row(title, f"waiting for data, {name}", run.wait_share * 100, "%")


def _trainer(preset: str, sources: Sources, size: Size, device: torch.device, options: Mapping[str, bool]) -> Trainer:
    policy = _policy(TRANSFORMER_WINDOW, "tiny" if size.tiny else preset)
    how = {} if size.tiny else {**options, "bf16": True}
    return Trainer(policy, sources, TrainingOptions(average=0.0, clip_norm=0.0, **how), device)


def _policy(window: Window, preset: str) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(
        proprio=COLUMNS, actions=ACTIONS, n_obs=window.n_obs, horizon=window.horizon, **PRESETS[preset]
    )
    return make_policy(config)


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
    yield Row(
        title, "step on ready tensors", alone, "ms", published, "", "forward, backward, AdamW", TRANSFORMER_SOURCE
    )
    for name in (DISK, CACHE):
        if not runs[name]:
            continue
        step = median(run.step_ms for run in runs[name])
        share = median(run.wait_share for run in runs[name]) * 100
        used = [run.gpu for run in runs[name] if run.gpu is not None and run.gpu.samples]
        yield Row(title, f"step {name}", step, "ms", published, "", "", TRANSFORMER_SOURCE)
        yield Row(title, f"step {name} / on ready tensors", step / alone, "x", "", "1.01" if large else "")
        yield Row(title, f"waiting for data, {name}", share, "%", "", "under 0.5", "time without work, CUDA events")
        yield Row(title, f"GPU utilisation, {name}", _average(used), "%", *used_wanted, "NVML", TRANSFORMER_SOURCE)


def _average(used: list[Any]) -> float | None:
    """The mean utilisation in percent; None if it was not measured."""
    return sum(each.avg * each.samples for each in used) / sum(each.samples for each in used) if used else None


# A small diffusion policy from disk: torch's DataLoader against the loader of this package.


DIFFUSION_WINDOW = Window(n_obs=50, horizon=16)
DIFFUSION_BATCH = 64
BASELINE_WORKERS = 8
GOAL, AVERAGED = 0.2, 20  # the loss as a share of the first one; both are means over so many steps
DIFFUSION_PART = f"small diffusion policy, batch {DIFFUSION_BATCH}, from disk"
DIFFUSION_PUBLISHED = "2 to 5"
DIFFUSION_SOURCE = (
    f"{REPOSITORY}, docs/internal/FINAL_VALIDATION_SUMMARY.md, against other preprocessing on a GPU. Contradicted: "
    "robocache/README.md has 10 to 20 times the training speed of a DataLoader on the CPU"
)
Makers = dict[str, Callable[[], Any]]


def measure_diffusion(size: Size, device: torch.device, episodes: Path) -> Iterator[Row]:
    """Measure samples per second of each source, one after the other: their workers share the processors."""
    trainer, sources = _diffusion_trainer(size, device)
    first = None
    for name, make in _makers(size, device, episodes).items():
        tell(f"diffusion: {name}")
        with _chosen(sources, name, make):
            run = train_for(trainer, size.seconds, warm_up=2 if size.tiny else 30)
        rate = DIFFUSION_BATCH / run.step_ms * 1000
        yield Row(DIFFUSION_PART, name, rate, "samples/s", "", "", f"{run.wait_share * 100:.1f} % waiting for data")
        if first is not None:
            compared = (DIFFUSION_PUBLISHED, "5", "", DIFFUSION_SOURCE) if name.startswith("TimelineLoader") else ()
            yield Row(DIFFUSION_PART, f"{name} / first", rate / first, "x", *compared)
        first = first or rate


def time_diffusion_to_loss(size: Size, device: torch.device, episodes: Path) -> Iterator[Row]:
    """Train the same policy on each source until its loss is `GOAL` times the loss at the start."""
    until = f"until the loss is {GOAL:g} times that of the first {AVERAGED} steps"
    part = f"small diffusion policy, batch {DIFFUSION_BATCH}, {until}"
    for name, make in _makers(size, device, episodes).items():
        tell(f"loss: {name}")
        trainer, sources = _diffusion_trainer(size, device)
        with _chosen(sources, name, make):
            steps, seconds, reached = _until(trainer, 4 * size.seconds, 1 if size.tiny else AVERAGED)
        note = f"{steps} steps, {steps * DIFFUSION_BATCH:,} samples"
        note += "" if reached else f"; not reached in {seconds:.1f} s"
        yield Row(part, name, seconds if reached else None, "s", note=note)


def _until(trainer: Trainer, most_s: float, averaged: int) -> tuple[int, float, bool]:
    """Train until the goal; return the steps, the seconds after the first few, and whether the goal was reached."""
    for _ in range(WARM_UP + 1):  # workers start, a cache is filled, and the step is compiled and captured
        trainer.train_step()
    wait_for(trainer.device)
    started, start = trainer.step, time.perf_counter()
    first = None
    while True:
        total = torch.zeros((), device=trainer.device)
        for _ in range(averaged):
            total += trainer.train_step()
        loss = float(total)
        first = loss if first is None else first
        steps, seconds = trainer.step - started, time.perf_counter() - start
        if loss <= GOAL * first or seconds > most_s:
            return steps, seconds, loss <= GOAL * first


def _makers(size: Size, device: torch.device, episodes: Path) -> Makers:
    """The sources of batches by their names."""
    dataset = mixed_rate_dataset(episodes, DIFFUSION_WINDOW)
    workers = 0 if size.tiny else min(BASELINE_WORKERS, os.cpu_count() or 1)
    every_core = 0 if size.tiny else os.cpu_count() or 1

    def ours(cache: str) -> TimelineLoader:
        return TimelineLoader(
            dataset, DIFFUSION_BATCH, shuffle=True, drop_last=True, workers=size.workers, device=device, cache=cache
        )

    def baseline(workers: int, *, keep_open: bool) -> Any:
        return data_loader(
            InterpolatingDataset(episodes, DIFFUSION_WINDOW, keep_open=keep_open), DIFFUSION_BATCH, workers, device
        )

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


def _diffusion_trainer(size: Size, device: torch.device) -> tuple[Trainer, Sources]:
    policy = _policy(DIFFUSION_WINDOW, "diffusion-tiny" if size.tiny else "diffusion")
    sources = Sources()
    # A small policy is bound by its launches, whatever the source of its batches: all of them have a graph.
    graph = device.type == "cuda" and not size.tiny
    options = TrainingOptions(bf16=not size.tiny, compile=not size.tiny, cuda_graph=graph)
    return Trainer(policy, sources, options, device), sources


TRACE_S = 20.0  # before a part is ended, the stacks of its threads are printed


class Part(NamedTuple):
    """A part.

    Attributes:
        measure: yields its rows; a row that has been given before replaces it.
        limit_s: after which it is ended.
    """

    measure: Callable[[Size, torch.device, Path], Iterator[Row]]
    limit_s: float


def _transformer(preset: str, batch_size: int) -> Callable[[Size, torch.device, Path], Iterator[Row]]:
    return lambda size, device, episodes: measure_transformer(
        size, device, episodes, preset, 4 if size.tiny else batch_size
    )


PARTS: Mapping[str, Part] = {
    "step": Part(lambda size, device, _: measure_published_step(size, device), 60),
    "large": Part(_transformer("act-101m", 64), 150),
    "medium": Part(_transformer("act-13m", 32), 180),
    "diffusion": Part(measure_diffusion, 90),
    "loss": Part(time_diffusion_to_loss, 150),
}


def main() -> None:
    """Measure a part; the argument is a JSON object: part, size, episodes, limit_s."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with stacks_after(max(1.0, wanted["limit_s"] - TRACE_S)):
        for row in PARTS[wanted["part"]].measure(Size(**wanted["size"]), device, Path(wanted["episodes"])):
            sys.stdout.write(json.dumps(asdict(row)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
