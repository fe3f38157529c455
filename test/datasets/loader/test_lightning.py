"""The loader in Lightning's Trainer; runs where lightning is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robocache_ros.datasets import RTXDataset, TimelineLoader, Window
from test.datasets.small import episode, write_tfds

lightning = pytest.importorskip("lightning", reason="lightning is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, which differ from version to version


class Model(lightning.LightningModule):
    """Remembers the samples that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], _index: int) -> torch.Tensor:
        self.seen.append(batch["index"].tolist())
        return self.layer(batch["proprio"]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_tfds(tmp_path / "d", [episode(3 + k % 2, float(k)) for k in range(6)])


def loader_of(folder: Path, workers: int = 0) -> TimelineLoader:
    dataset = RTXDataset(folder, target_hz=10, window=Window(2))
    return TimelineLoader(dataset, 4, shuffle=True, seed=5, workers=workers)


def trainer(tmp_path: Path, **options: Any) -> Any:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=tmp_path, **quiet, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_sees_the_batches_of_the_loader(folder, tmp_path, workers):
    model = Model()
    trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(model, loader_of(folder, workers))
    plain = loader_of(folder)
    assert model.seen == [batch["index"].tolist() for _ in range(2) for batch in plain]


def test_a_training_that_is_resumed_continues_with_the_next_sample(folder, tmp_path):
    first, second = Model(), Model()
    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="state", every_n_train_steps=7)
    trainer(tmp_path, max_steps=7, callbacks=[checkpoint]).fit(first, loader_of(folder))
    trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(
        second, loader_of(folder), ckpt_path=tmp_path / "state.ckpt"
    )
    plain = loader_of(folder)
    assert first.seen + second.seen == [batch["index"].tolist() for _ in range(2) for batch in plain]
