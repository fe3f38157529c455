"""The parts of the benchmark of trainings, and the process of one part. Run by `robocache bench training`.

A part has a process of its own, so that one that hangs is ended and the others are measured. It prints each row as a
line of JSON on stdout, as soon as it is measured, and its progress on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robocache_ros.bench.training import against_dataloader, published_step, transformer_steps
from robocache_ros.bench.training.measured import Row, Size
from robocache_ros.bench.training.row_process import stacks_after

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
    return lambda size, device, episodes: transformer_steps.measure(
        size, device, episodes, preset, 4 if size.tiny else batch_size
    )


PARTS: Mapping[str, Part] = {
    "step": Part(lambda size, device, _: published_step.measure(size, device), 60),
    "large": Part(_transformer("act-101m", 64), 150),
    "medium": Part(_transformer("act-13m", 32), 180),
    "diffusion": Part(against_dataloader.measure, 90),
    "loss": Part(against_dataloader.time_to_loss, 150),
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
