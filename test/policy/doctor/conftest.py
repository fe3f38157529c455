"""Checkpoints of the robot with planted mistakes, and the command `robocache doctor`."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from robocache_ros.datasets import Window
from robocache_ros.spec import load_spec
from robocache_ros.training.checkpoints import save_checkpoint
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import data_info, open_for_training, training_loader
from robocache_ros.training.training_options import TrainingOptions
from test.exporting import export
from test.policy.doctor.robot import SPEC, record
from test.shared import once


class Diagnosis(NamedTuple):
    """What `robocache doctor` printed."""

    code: int
    lines: list[str]

    def of(self, *levels: str) -> list[str]:
        """The lines of some levels."""
        return [line for line in self.lines if line.partition(":")[0] in levels]


@pytest.fixture
def doctor(robocache):
    def run(*arguments: object) -> Diagnosis:
        done = robocache("doctor", *arguments)
        return Diagnosis(done.code, (done.out + done.err).splitlines())

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A policy with a camera that was trained on two demonstrations, for no step."""

    def make(folder: Path) -> Path:
        spec = load_spec(SPEC)
        bags = [record(folder / f"demonstration_{seed}", seed, commands=True) for seed in range(2)]
        dataset = export(bags, spec, folder / "dataset", spec.dataset).out
        opened = open_for_training(dataset, window=Window(2, 25), vision=True)
        info = data_info(opened)
        torch.manual_seed(0)
        sizes = {"layers": 1, "heads": 2, "width": 16}
        shape = PolicyConfig("transformer", info.proprio, info.actions, 2, 25, info.cameras, **sizes)
        trainer = Trainer(make_policy(shape), training_loader(opened, info, 2), TrainingOptions(), torch.device("cpu"))
        save_checkpoint(folder / "checkpoint.pt", trainer, info)
        return folder / "checkpoint.pt"

    return once(tmp_path_factory, "doctor", make)


@pytest.fixture
def spec_file(tmp_path):
    """Write the spec of the robot with changes, such as `{"streams.joints.unit": "deg"}`; None removes a key."""

    def write(changes: dict[str, Any] | None = None) -> Path:
        spec = deepcopy(SPEC)
        for path, value in (changes or {}).items():
            *parents, key = path.split(".")
            reduce(getitem, parents, spec)[key] = value
            if value is None:
                del reduce(getitem, parents, spec)[key]
        (tmp_path / "robot.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        return tmp_path / "robot.yaml"

    return write
