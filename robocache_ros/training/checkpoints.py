"""Checkpoints: one file with the state of the training, the shape of the policy, and what it knows of its data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo

NAME = "checkpoint.pt"


class Checkpoint(NamedTuple):
    """The contents of a checkpoint: what `Trainer.state_dict` returned, what it belongs to, and how it was started."""

    training: dict[str, Any]
    policy: PolicyConfig
    data: DataInfo
    arguments: dict[str, Any]


def checkpoint_in(folder: Path, *, resumed: bool) -> Path:
    """Return the path of a run's checkpoint, and create the folder of a new run.

    Errors:
        RoboCacheError: a run that is resumed has no checkpoint, a new one has, or the folder cannot be created.
    """
    path = folder / NAME
    try:
        if path.exists() != resumed:
            raise RoboCacheError(
                f"{printable(path)}: does not exist; train without --resume"
                if resumed
                else f"{printable(path)}: exists; continue it with --resume, or give another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RoboCacheError(f"{printable(folder)}: {error.strerror}; give another --out") from None
    return path


def save_checkpoint(
    path: str | Path,
    trainer: Trainer,
    info: DataInfo,
    arguments: Mapping[str, Any] | None = None,
    *,
    first: bool = True,
) -> None:
    """Write a checkpoint. A kill at any time leaves the earlier one, and so does an error.

    Args:
        path: the file, which is replaced.
        trainer: between two steps.
        info: of the data.
        arguments: of the program, numbers and texts by their names, which a run that is resumed uses again.
        first: whether this process writes; with several processes all of them call it.

    Errors:
        RoboCacheError: a weight is infinite or not a number, or the file cannot be written.
    """
    path = Path(path)
    if not torch.stack([each.detach().isfinite().all() for each in trainer.policy.parameters()]).all():
        raise RoboCacheError(
            f"{printable(path)}: not written, weights at step {trainer.step} are not finite; lower the learning rate"
        )
    state = trainer.state_dict()  # from all processes
    if not first:
        return
    partial = path.with_name(f"{path.name}.partial")
    config = {**asdict(trainer.policy.config), "cameras": dict(trainer.policy.config.cameras)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            contents = {"training": state, "policy": config, "data": asdict(info), "arguments": dict(arguments or {})}
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises the latter, after the former, if a disk is full
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = printable(_os_error(error) or error)
        raise RoboCacheError(
            f"{printable(path)}: cannot be written ({reason}); free some space, an earlier one is kept"
        ) from error


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Return the contents of a checkpoint. No code in it can run.

    Errors:
        RoboCacheError: the file is missing, damaged, or not a checkpoint.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise RoboCacheError(f"{printable(path)}: {error.strerror}; give a checkpoint of train_policy") from None
    except Exception as error:  # of many types, by what is damaged
        reason = f"{type(error).__name__}: {error}"
        raise RoboCacheError(
            f"{printable(path, 80)}: damaged, or not a checkpoint ({printable(reason, 60)}); give another one"
        ) from None
    try:
        policy, data = PolicyConfig(**found["policy"]), DataInfo(**found["data"])
        return Checkpoint(found["training"], policy, data, {**found["arguments"]})
    except (KeyError, TypeError):
        raise RoboCacheError(f"{printable(path)}: not a checkpoint of train_policy; give one") from None


def resume(path: str | Path, trainer: Trainer, info: DataInfo) -> None:
    """Continue where a checkpoint was written.

    Args:
        path: the file.
        trainer: a new one.
        info: of the data.

    Errors:
        RoboCacheError: the checkpoint is of another policy, dataset or number of processes.
    """
    found = read_checkpoint(path, trainer.device)
    for what, before, here in (("dataset", found.data, info), ("policy", found.policy, trainer.policy.config)):
        for field in sorted(fields(here), key=lambda field: field.name == "statistics"):  # the others explain these
            old, new = getattr(before, field.name), getattr(here, field.name)
            if not _alike(old, new):
                change = "differ" if isinstance(old, dict) else f"was {printable(old, 20)}, is {printable(new, 20)}"
                raise RoboCacheError(
                    f"{printable(path)}: of another {what}: {field.name} {change}; use the same arguments"
                )
    trainer.load_state_dict(found.training)


def _alike(old: Any, new: Any) -> bool:
    """Whether two values are equal; statistics that are computed again may differ by rounding."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return list(old) == list(new) and all(_alike(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_alike(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9)
    return bool(old == new)


def _os_error(error: BaseException | None) -> str | None:
    """What the system said, if an error comes from there."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return None if error is None else error.strerror
