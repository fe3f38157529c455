"""The monitors in a training with Lightning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from robocache_ros.errors import RoboCacheError

with warnings.catch_warnings():  # of what Lightning imports
    warnings.simplefilter("ignore")
    lightning: Any = pytest.importorskip("lightning.pytorch")


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_the_callback_measures_and_logs(tmp_path):
    from robocache_ros.monitoring.lightning_callback import TrainingMonitor

    monitor = TrainingMonitor(every=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[monitor], default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip

    trainer.fit(Regression(), torch.utils.data.DataLoader(torch.rand(16, 3), batch_size=2))

    assert monitor.data_wait.steps == 14  # between 16 batches, without the first
    assert 0 <= float(trainer.callback_metrics["data_wait_share"]) < 1
    assert monitor.gpu_utilization is None


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_a_driver_that_fails_does_not_fail_the_training():
    from robocache_ros.monitoring.lightning_callback import TrainingMonitor

    class Failing:
        def stop(self) -> None:
            raise RoboCacheError("GPU 0: lost; check nvidia-smi")

    monitor = TrainingMonitor()
    monitor._monitor = Failing()
    monitor.on_train_end()

    assert monitor.gpu_utilization is None
