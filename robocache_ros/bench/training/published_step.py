"""The published training step: two streams fused to 250 ticks, then a small network with Adam."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from robocache_ros import Stream, fuse
from robocache_ros.bench.published import REPOSITORY
from robocache_ros.bench.result_files import tell
from robocache_ros.bench.training.measured import Row, Size, wait_for
from robocache_ros.training.graphed_step import GraphedStep

BATCH, SAMPLES, TICKS, TICK_NS = 32, 500, 250, 20_000_000
WIDTHS = {"vision": 256, "proprio": 14}
PART = "published training step: two bfloat16 streams to 250 ticks, MLP 270-512-256-7, Adam"

PUBLISHED = "1.56 ms"
SOURCE = f"{REPOSITORY}, robocache/profiling/NSIGHT_SYSTEMS_H100.md"
ROUNDS, BATCHES = 5, 8


def measure(size: Size, device: torch.device) -> Iterator[Row]:
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
        yield Row(PART, name, ms, "ms", PUBLISHED, wanted, note, SOURCE)


def _step_ms(device: torch.device, seconds: float, *, graph: bool, compiled: bool, bf16: bool) -> float:
    """The median over rounds of some seconds of the mean milliseconds of a step."""
    torch.manual_seed(0)
    torch._dynamo.reset()  # else compiled code of one network is looked up for another
    model = nn.Sequential(nn.Linear(270, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 7)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=device.type == "cuda", capturable=graph)
    ticks = torch.arange(TICKS, dtype=torch.int64, device=device) * TICK_NS
    stamps = torch.arange(SAMPLES, dtype=torch.int64, device=device) * (TICKS * TICK_NS // SAMPLES)
    stamps = stamps.expand(BATCH, -1).contiguous()
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
        return median(_mean_ms(run, batches, seconds, device) for _ in range(ROUNDS if device.type == "cuda" else 1))
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
    streams = {name: torch.randn(BATCH, SAMPLES, width, generator=random) for name, width in WIDTHS.items()}
    batch = {name: values.bfloat16().to(device) for name, values in streams.items()}
    return {**batch, "actions": torch.randn(BATCH, TICKS, 7, generator=random).to(device)}
