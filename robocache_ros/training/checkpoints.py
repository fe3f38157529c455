"""Checkpoints: one file with the state of the training, the shape of the policy, and what it knows of its data."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo


def save_checkpoint(path: str | Path, trainer: Trainer, info: DataInfo, *, first: bool = True) -> None:
    """Write a checkpoint. A kill at any time leaves the earlier one.

    Args:
        path: the file, which is replaced.
        trainer: between two steps.
        info: of the data.
        first: whether this process writes; with several processes all of them call it.
    """
    state = trainer.state_dict()  # from all processes
    if not first:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    config = {**asdict(trainer.policy.config), "cameras": dict(trainer.policy.config.cameras)}
    with partial.open("wb") as file:
        torch.save({"training": state, "policy": config, "data": asdict(info)}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the contents of a checkpoint: `training`, `policy` and `data`. No code in it can run.

    Errors:
        RoboCacheError: the file is missing, damaged, or not a checkpoint.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # of many types, by what is damaged
        raise RoboCacheError(f"{printable(path)}: {printable(error)}; give a checkpoint of train_policy") from None
    if not isinstance(found, dict) or not {"training", "policy", "data"} <= found.keys():
        raise RoboCacheError(f"{printable(path)}: not a checkpoint of train_policy; give one")
    return found


def resume(path: str | Path, trainer: Trainer) -> None:
    """Continue where a checkpoint was written.

    Errors:
        RoboCacheError: the checkpoint is of another policy, dataset or number of processes.
    """
    found = read_checkpoint(path, trainer.device)
    if PolicyConfig(**found["policy"]) != trainer.policy.config:
        raise RoboCacheError(f"{printable(path)}: of another policy, {found['policy']}; use the same options")
    trainer.load_state_dict(found["training"])
