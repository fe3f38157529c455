"""Trains a policy with Lightning, on the batches of TimelineLoader. Needs the extras `datasets` and `lightning`.

python examples/train_with_lightning.py lift --steps 2000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.programs import HelpFormatter, run
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.training_data import data_info, open_for_training, training_loader

try:
    import lightning

    from robocache_ros.monitoring.lightning_callback import TrainingMonitor
except ImportError:
    sys.exit("train_with_lightning: lightning is not installed; install it with: pip install lightning")


class LightningPolicy(lightning.LightningModule):  # type: ignore[misc]
    """A policy and its data."""

    def __init__(self, dataset: TimelineDataset, preset: str, batch_size: int, workers: int) -> None:
        super().__init__()
        self.dataset, self.info = dataset, data_info(dataset)
        self.batch_size, self.workers = batch_size, workers
        assert dataset.window is not None
        self.policy = make_policy(
            PolicyConfig(
                proprio=self.info.proprio,
                actions=self.info.actions,
                n_obs=dataset.window.n_obs,
                horizon=dataset.window.horizon,
                cameras=self.info.cameras,
                **PRESETS[preset],
            )
        )

    def train_dataloader(self) -> TimelineLoader:
        """Make the loader here: Lightning has started all processes then, and each reads its share."""
        return training_loader(
            self.dataset, self.info, self.batch_size, workers=self.workers, device=self.device, seed=1
        )

    def training_step(self, batch: dict[str, Any], _index: int) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.policy({key: batch[key] for key in self.policy.config.keys})
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), 3e-4, fused=self.device.type == "cuda")


def main(given: list[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of the dataset, or its file")
    parser.add_argument("--policy", choices=sorted(PRESETS), default="act-13m", help="kind and size")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a batch, per process")
    parser.add_argument("--workers", type=int, default=4, help="processes that read, per process")
    parser.add_argument("--steps", type=int, default=10_000, help="of the optimizer, in all")
    parser.add_argument("--precision", default="32-true", help="of Lightning, such as bf16-mixed")
    parser.add_argument("--out", type=Path, default=Path("lightning_run"), help="folder of Lightning's files")
    args = parser.parse_args(given)
    dataset = open_for_training(args.dataset, window=Window(n_obs=2, horizon=16, n_images=1))
    monitor = TrainingMonitor()
    trainer = lightning.Trainer(
        max_steps=args.steps,
        precision=args.precision,
        callbacks=[monitor],
        default_root_dir=args.out,
        use_distributed_sampler=False,  # the loader shares the samples among the processes
        gradient_clip_val=1.0,
    )
    trainer.fit(LightningPolicy(dataset, args.policy, args.batch_size, args.workers))
    if monitor.data_wait is not None:
        print(f"{monitor.data_wait.share:.2%} of the time waiting for data, GPU: {monitor.gpu_utilization}")


if __name__ == "__main__":
    sys.exit(run("train_with_lightning", main))
