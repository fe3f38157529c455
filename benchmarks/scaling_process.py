"""One of the processes of the benchmark of scaling; the first one prints a line of JSON per figure. Run by torchrun."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.episodes import ACTIONS, COLUMNS, mixed_rate_dataset
from benchmarks.processes import stacks_after
from robocache_ros import Stream, fuse
from robocache_ros.datasets import TimelineLoader, Window
from robocache_ros.training.policies.make_policy import Policy, make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.process_group import ProcessGroup, process_group
from robocache_ros.training.throughput import endless, rate
from robocache_ros.training.trainer import Trainer, release_graphs
from robocache_ros.training.training_options import TrainingOptions

# Shares of the cores, one for each process of the benchmark.


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


MODES = ("weak", "strong")
TRAINING = "training"
GRAPH: dict[str, Any] = {"cuda_graph": True}
OURS = {TRAINING: {}, "training, CUDA graph": GRAPH}  # the options of our trainer by the name of the row
APART = "training, nothing exchanged"
SAMPLES, TICKS, WIDTH = 500, 250, 256  # of the streams that are preprocessed
TOGETHER = 8  # batches that are preprocessed at once: one takes the GPU no longer than the CPU takes to launch it


def main() -> None:
    """Measure; the argument is a JSON object: episodes, policy, batch, n_obs, seconds, device, limit_s."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    with stacks_after(wanted["limit_s"] * 0.8), process_group(wanted["device"]) as group:
        if group.device.type == "cuda":
            count = torch.cuda.device_count()
            keep_to_share(group.rank, count, [gpu_node(index) for index in range(count)])
        for row in measured(wanted, group):
            if group.first:
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


def measured(wanted: dict[str, Any], group: ProcessGroup) -> Iterator[dict[str, Any]]:
    """Yield the rates of all processes: weak with a batch for each of them, strong with one batch that they share."""
    about = {"policy": wanted["policy"], "device": group.device.type, "processes": group.size}
    for mode in MODES[: 1 if group.size == 1 else 2]:  # they are the same for one process
        batch = max(1, wanted["batch"] // (group.size if mode == "strong" else 1))
        with _Steps(wanted, batch, group) as steps:
            for names, make in steps.all(mode).items():
                step, samples = make()
                found = rate(step, wanted["seconds"], samples, group)
                for row_mode in MODES if group.size == 1 else (mode,):
                    for what in names:
                        yield {"mode": row_mode, "what": what, **about, "batch": batch, "samples_per_s": found}
                del step
                release_graphs()
                gc.collect()  # the trainer, which refers to itself


class Step(NamedTuple):
    """A step of a process, and its samples."""

    run: Callable[[], Any]
    samples: int


Maker = Callable[[], Step]


class _Steps:
    """What is measured."""

    def __init__(self, wanted: dict[str, Any], batch: int, group: ProcessGroup) -> None:
        self._wanted, self._batch, self._group = wanted, batch, group
        self._gpu, self._device = group.device.type == "cuda", group.device
        self._window = Window(wanted["n_obs"], 16, 1)
        dataset = mixed_rate_dataset(Path(wanted["episodes"]), self._window)
        workers = max(1, len(os.sched_getaffinity(0)) - 2) if self._gpu else 0
        self._loader = TimelineLoader(
            dataset, batch, shuffle=True, drop_last=True, workers=workers, device=group.device
        )

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def all(self, mode: str) -> dict[tuple[str, ...], Maker]:
        """Return what makes each step, by the names of its rows."""
        found: dict[tuple[str, ...], Maker] = {
            ("loading",): self._loading,
            ("preprocessing",): self._preprocessing,
        }
        names = {TRAINING: (TRAINING, APART)} if self._group.size == 1 else {}  # alone they are the same
        for name, options in OURS.items():
            if self._gpu or not options:
                found[names.get(name, (name,))] = partial(self._ours, options)
        if mode == "weak" and self._group.size > 1:
            found[(APART,)] = self._apart
        return found

    def _policy(self) -> Policy:
        torch.manual_seed(0)
        shape = {
            "proprio": COLUMNS,
            "actions": ACTIONS,
            "n_obs": self._window.n_obs,
            "horizon": self._window.horizon,
        }
        return make_policy(PolicyConfig(**{**PRESETS[self._wanted["policy"]], **shape}))

    def _ours(self, options: dict[str, Any]) -> Step:
        """A step of our trainer."""
        chosen = TrainingOptions(bf16=self._gpu, compile=self._gpu, average=0.0, clip_norm=0.0, **options)
        return Step(Trainer(self._policy(), self._loader, chosen, self._device).train_step, self._batch)

    def _apart(self) -> Step:
        """The same step of processes that exchange nothing."""
        policy: Any = self._policy().to(self._device)
        keys = policy.config.keys
        optimizer = torch.optim.AdamW(policy.parameters(), fused=self._gpu)
        if self._gpu:
            policy = torch.compile(policy, dynamic=False)
        batches = endless(self._loader)

        def step() -> None:
            batch = next(batches)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self._device.type, torch.bfloat16, self._gpu):
                loss = policy({key: batch[key] for key in keys})
            loss.backward()
            optimizer.step()

        return Step(step, self._batch)

    def _loading(self) -> Step:
        batches = endless(self._loader)
        return Step(lambda: next(batches), self._batch)

    def _preprocessing(self) -> Step:
        """Fuse streams that are on the device."""
        samples = self._batch * TOGETHER
        stamps = torch.arange(SAMPLES, device=self._device).expand(samples, -1).contiguous() * 10_000_000
        ticks = torch.arange(TICKS, device=self._device) * 20_000_000
        values = torch.randn(samples, SAMPLES, WIDTH, device=self._device).bfloat16()
        streams = [Stream(values, stamps)]
        return Step(lambda: fuse(streams, ticks), samples)


if __name__ == "__main__":
    main()
