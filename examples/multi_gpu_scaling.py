"""Measures loading and training on 1, 2, 4, ... GPUs: weak (a batch per GPU) and strong (one batch for all of them).

for n in 1 2 4; do torchrun --nproc-per-node $n examples/multi_gpu_scaling.py lift --out scaling.jsonl; done

Each run appends its figures to the file and prints the table so far. The efficiency is the rate per process over that
of one process alone. Processes without a GPU share the processor: there it only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from robocache_ros.datasets import TimelineDataset, Window
from robocache_ros.errors import RoboCacheError
from robocache_ros.programs import HelpFormatter, run
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.process_group import ProcessGroup, process_group
from robocache_ros.training.throughput import endless, rate, table
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo, data_info, open_for_training, training_loader
from robocache_ros.training.training_options import TrainingOptions

WINDOW = Window(n_obs=32, horizon=16)


def main(given: list[str] | None = None) -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of the dataset, or its file")
    parser.add_argument("--out", type=Path, required=True, help="file of results, which is appended to")
    parser.add_argument("--policy", choices=sorted(PRESETS), default="act-101m", help="kind and size")
    parser.add_argument("--batch-size", type=int, default=64, help="of a process if weak, of all if strong")
    parser.add_argument("--workers", type=int, default=4, help="processes that read, per process")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs if there are some"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    args = parser.parse_args(given)
    earlier = results(args.out)
    with process_group(args.device) as group:
        dataset = open_for_training(args.dataset, window=WINDOW)
        info = data_info(dataset)
        rows = []
        for mode in ("weak", "strong"):
            batch_size = args.batch_size if mode == "weak" else args.batch_size // group.size
            for what, rate in measured(dataset, info, group, batch_size, args).items():
                about = {"mode": mode, "what": what, "processes": group.size, "device": group.device.type}
                rows.append({**about, "policy": args.policy, "batch": batch_size, "samples_per_s": rate})
        if group.first:
            with args.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(table(earlier + rows))


def results(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the earlier runs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        table(rows)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RoboCacheError(f"{path}: not a file of this example ({error}); give another --out") from None
    return rows


def measured(
    dataset: TimelineDataset, info: DataInfo, group: ProcessGroup, batch_size: int, args: argparse.Namespace
) -> dict[str, float]:
    """Return the samples per second of all processes, of loading with alignment, and of training."""
    loader = training_loader(dataset, info, batch_size, workers=args.workers, device=group.device, cache="none")
    torch.manual_seed(0)
    shape = {"proprio": info.proprio, "actions": info.actions, "n_obs": WINDOW.n_obs, "horizon": WINDOW.horizon}
    policy = make_policy(PolicyConfig(**{**PRESETS[args.policy], **shape}))
    bf16 = group.device.type == "cuda"
    trainer = Trainer(policy, loader, TrainingOptions(bf16=bf16, compile=args.compile, average=0.0), group.device)
    batches = endless(loader)
    rates = {
        "loading": rate(lambda: next(batches), args.seconds, batch_size, group),
        "training": rate(trainer.train_step, args.seconds, batch_size, group),
    }
    loader.close()
    return rates


if __name__ == "__main__":
    sys.exit(run("multi_gpu_scaling", main))
