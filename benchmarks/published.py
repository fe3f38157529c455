"""Figures that RoboCache published for the workloads of these benchmarks, with their sources and contradictions.

Source: https://github.com/GOATnote-Inc/robogoat, in the files that the table names; measured on an H100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

REPOSITORY = "github.com/GOATnote-Inc/robogoat"
_OPTIMIZATIONS = "robocache/.archive/development_history/h100_optimizations.md"


class Published(NamedTuple):
    """A published figure.

    Args:
        value: in the unit of the benchmark's column: microseconds of operations, milliseconds of training steps.
        source: file of the repository.
        contradiction: what else is published for the same workload, and does not agree.
    """

    value: float
    source: str
    contradiction: str = ""

    def __str__(self) -> str:
        return f"{self.value:g}{' (contradicted)' if self.contradiction else ''}"


PUBLISHED: Mapping[str, Published] = {
    "resample 256, 100->50, 32 bfloat16": Published(
        410,
        _OPTIMIZATIONS,
        "its throughput is given as 31,200 samples/s; 256 in 0.41 ms are 624,000. Its 0.691 ms of FP32 is given as the "
        "time of BF16 elsewhere",
    ),
    "resample 256, 100->50, 32 float32": Published(
        691, _OPTIMIZATIONS, "given as the time of BF16 elsewhere; 18,500 samples/s, where 256 in 0.691 ms are 370,000"
    ),
    "resample 32, 500->250, 256 bfloat16": Published(
        83, "robocache/profiling/NSIGHT_SYSTEMS_H100.md", "35 us for 256 targets in README.md"
    ),
    "resample 32, 500->256, 256 bfloat16": Published(35.3, "README.md"),
    "fuse 3 streams, B 4 bfloat16": Published(34, "README.md"),
    "occupancy, 500,000 random, in L2": Published(20.5, "README.md"),
}

# Efficiency in % of resampling with a batch of 256 per GPU, by the number of GPUs: their only figures of several GPUs
# that name a workload of ours.
SCALING: Mapping[int, float] = {2: 97.0, 8: 90.8}
SCALING_NOTE = (
    f"Published for resampling: 97.0 % on 2 GPUs, 90.8 % on 8 ({REPOSITORY}, robocache/docs/performance_benchmarks.md "
    "of a development branch). "
    "Contradicted: the 0.691 ms of one GPU are BF16 in this table and FP32 in another of the same file, and grow to "
    "0.761 ms on 8; 2,048 in that time are 2.7 million a second, not 134,560; examples/multi_gpu/README.md has 78 to "
    "89 % on 2 GPUs, and examples/ros2_node/MULTI_GPU_README.md 85 % on 8."
)


def columns(name: str) -> dict[str, str]:
    """Return the published figure of a workload as a column of its row; empty if there is none."""
    return {"published": str(PUBLISHED[name])} if name in PUBLISHED else {}


def notes(names: Sequence[str]) -> dict[str, str]:
    """Return the source of each published figure among the names of workloads, and what contradicts it."""
    found = {name: PUBLISHED[name] for name in names if name in PUBLISHED}
    return {
        f"published for {name}": f"{REPOSITORY}, {each.source}"
        + (f"; {each.contradiction}" if each.contradiction else "")
        for name, each in found.items()
    }
