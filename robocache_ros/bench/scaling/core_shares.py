"""Shares of the cores, one for each process of the benchmark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

SYSTEM = Path("/sys")
UNKNOWN = -1  # a NUMA node


def keep_to_share(rank: int, shares: int, gpu_nodes: Sequence[int] = ()) -> None:
    """Run this process, and those that it starts, on its share of the cores: as many whether it runs alone or not.

    With fewer cores than shares, some processes have the same core.

    Args:
        rank: of this process.
        shares: how many there are, all of one size.
        gpu_nodes: the NUMA node of the GPU of each rank, whose cores are preferred; the first ranks choose first.
    """
    cpus = sorted(os.sched_getaffinity(0), key=_core)  # the threads of a core belong to one share
    size, left, share = max(1, len(cpus) // shares), cpus[:0], cpus
    for node in [*gpu_nodes, *[UNKNOWN] * shares][: rank + 1]:
        left = left or list(cpus)
        if node != UNKNOWN:
            left.sort(key=lambda cpu: _node(cpu) != node)
        share, left = left[:size], left[size:]
    os.sched_setaffinity(0, share)


def gpu_node(index: int) -> int:
    """Return the NUMA node that a GPU is at; `UNKNOWN` if the system does not know."""
    about = torch.cuda.get_device_properties(index)
    address = [getattr(about, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in address:  # not in all versions of torch
        return UNKNOWN
    domain, bus, device = address
    try:
        return int((SYSTEM / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node").read_text())
    except (OSError, ValueError):
        return UNKNOWN


def _node(cpu: int) -> int:
    """The NUMA node of a CPU of Linux."""
    nodes = (SYSTEM / f"devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    return next((int(node.name.removeprefix("node")) for node in nodes), UNKNOWN)


def _core(cpu: int) -> tuple[int, int, int]:
    """The processor and the core of a CPU of Linux, and its own number."""
    folder = SYSTEM / f"devices/system/cpu/cpu{cpu}/topology"
    try:
        package, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return 0, cpu, cpu
    return package, core, cpu
