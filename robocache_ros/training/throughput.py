"""Rates of several processes that work at the same time: they begin together, and the slowest one ends each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from robocache_ros.training.process_group import ProcessGroup
from robocache_ros.training.trainer import PARALLEL_WARM_UP


def rate(step: Callable[[], Any], seconds: float, samples: int, group: ProcessGroup) -> float:
    """Return the samples per second of all processes.

    Args:
        step: one step of this process.
        seconds: about so long it is measured. All processes make the same number of steps.
        samples: of a step of one process.
        group: the processes.
    """
    for _ in range(PARALLEL_WARM_UP + 5):  # a step is compiled and captured
        step()
    steps = 2
    while (taken := _timed(step, steps, group)) < seconds / 8:  # the first batches may have been read ahead
        steps *= 4
    steps = max(1, round(seconds / taken * steps))
    return steps * samples * group.size / _timed(step, steps, group)


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return results as a table in Markdown, with the rate per process over that of one process alone.

    Args:
        rows: with mode, what, policy, device, processes, samples_per_s; of several with the same texts and processes
            the last one counts.
    """
    keys = ("mode", "what", "policy", "device")
    found = {(*(row[key] for key in keys), row["processes"]): row["samples_per_s"] for row in rows}
    lines = ["| | processes | samples/s | efficiency |", "|---|---|---|---|"]
    for name in sorted(found):
        alone = found.get((*name[:-1], 1))
        share = f"{found[name] / (alone * name[-1]):.1%}" if alone else "needs a run with 1 process"
        lines.append(f"| {', '.join(name[:-1])} | {name[-1]} | {found[name]:,.0f} | {share} |")
    return "\n".join(lines)


def _timed(step: Callable[[], Any], steps: int, group: ProcessGroup) -> float:
    """The seconds of so many steps, the longest of all processes."""
    _wait(group)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(group)
    taken = torch.tensor(max(time.perf_counter() - start, 1e-6), device=group.device)
    if group.size > 1:
        distributed.all_reduce(taken, distributed.ReduceOp.MAX)
    return float(taken)


def _wait(group: ProcessGroup) -> None:
    """Wait for the GPU, and for all processes."""
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    if group.size > 1:
        distributed.barrier()
