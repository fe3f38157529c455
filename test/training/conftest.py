"""Data for trainings: a small set in memory, demonstrations of the simulated arm, and the Panda recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import TimelineLoader
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo
from robocache_ros.training.training_options import TrainingOptions
from test.exporting import export
from test.shared import once
from test.training.reach.reach_arm import SPEC, TYPES, demonstration

ROOT = Path(__file__).parents[2]


class Line(torch.utils.data.Dataset):
    """40 samples: two ticks of (x, y), and the three actions x + y, x - y; the last one is padding."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.linspace(-1, 1, 40)[index]
        proprio = torch.stack([torch.stack([x, x.square()])] * 2)
        actions = torch.stack([torch.stack([x + x.square(), x - x.square()])] * 3)
        padding = torch.tensor([False, False, True])
        return {"proprio": proprio, "actions": actions, "action_is_pad": padding, "length": 2}


def line_loader(batch_size: int = 8, **options: Any) -> TimelineLoader:
    return TimelineLoader(Line(), batch_size, **{"shuffle": True, "seed": 3, "drop_last": True, **options})


CONFIGS = {
    kind: PolicyConfig(kind, 2, 2, n_obs=2, horizon=3, layers=1, heads=2, width=16, dropout=0.1)
    for kind in ("transformer", "diffusion")
}
CONFIGS["plain"] = replace(CONFIGS["transformer"], dropout=0.0)


def new_trainer(
    config: str | PolicyConfig = "plain", *, batch_size: int = 8, device: str = "cpu", **options: Any
) -> Trainer:
    """A trainer of a small policy on `Line`, with the same weights each time."""
    torch.manual_seed(0)
    given = TrainingOptions(**{"steps": 12, "warmup": 3, "learning_rate": 1e-2, **options})
    policy = make_policy(CONFIGS[config] if isinstance(config, str) else config)
    return Trainer(policy, line_loader(batch_size, device=device), given, device)


def losses(made: Trainer, steps: int) -> list[float]:
    return [float(made.train_step()) for _ in range(steps)]


SCALE = {"mean": [0.0, 0.0], "std": [1.0, 1.0]}
INFO = DataInfo({"position": 1, "square": 1}, 2, {}, {"proprio": SCALE, "actions": SCALE}, 50)  # of `Line`


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices are not faster on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Reach(NamedTuple):
    """Demonstrations of the simulated arm, recorded and exported."""

    spec: FusionSpec
    dataset: Path


@pytest.fixture(scope="session")
def reach(tmp_path_factory) -> Reach:

    def make(folder: Path) -> Reach:
        spec = load_spec(yaml.safe_load(SPEC))
        bags = [write_bag(folder / f"reach_{k}", TYPES, demonstration(k, reaches=12)) for k in range(4)]
        options = DatasetOptions(formats=("lerobot",), task="reach the goal", media="none")
        return Reach(spec, export(bags, spec, folder / "dataset", options).out)

    return once(tmp_path_factory, "reach", make)


@pytest.fixture(scope="session")
def panda(tmp_path_factory) -> Path:
    """The Panda recording, exported without its images."""

    def make(folder: Path) -> Path:
        spec, bag = load_spec(ROOT / "config" / "panda_lift.yaml"), ROOT / "test" / "data" / "panda_lift"
        return export([bag], spec, folder / "dataset", DatasetOptions(task="lift", media="none")).out

    return once(tmp_path_factory, "panda_without_images", make)
