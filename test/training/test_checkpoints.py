"""Checkpoints: complete or not there, and without code that runs."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.checkpoints import read_checkpoint, resume, save_checkpoint
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo
from robocache_ros.training.training_options import TrainingOptions
from test.training.conftest import line_loader

CONFIG = PolicyConfig("transformer", 2, 2, n_obs=2, horizon=3, layers=1, heads=2, width=16)


def trainer(config: PolicyConfig = CONFIG) -> Trainer:
    torch.manual_seed(0)
    return Trainer(make_policy(config), line_loader(), TrainingOptions(steps=9, warmup=1))


def test_a_checkpoint_continues_the_training(tmp_path: Path, info: DataInfo) -> None:
    first = trainer()
    first.train_step()
    save_checkpoint(tmp_path / "run" / "checkpoint.pt", first, info)
    expected = [float(first.train_step()) for _ in range(3)]

    second = trainer()
    resume(tmp_path / "run" / "checkpoint.pt", second)

    assert [float(second.train_step()) for _ in range(3)] == expected
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["checkpoint.pt"]


def test_a_trained_policy_has_the_average_of_the_weights(tmp_path: Path, info: DataInfo) -> None:
    made = trainer()
    made.train_step()
    save_checkpoint(tmp_path / "checkpoint.pt", made, info)

    policy = TrainedPolicy.load(tmp_path / "checkpoint.pt")

    assert policy.info == info
    pairs = zip(policy.policy.parameters(), made.average or (), strict=True)
    assert all(torch.equal(parameter, average) for parameter, average in pairs)


def test_a_write_that_fails_leaves_the_earlier_checkpoint(
    tmp_path: Path, info: DataInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, trainer(), info)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, trainer(), info)

    assert path.read_bytes() == before


def test_other_processes_write_nothing(tmp_path: Path, info: DataInfo) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", trainer(), info, first=False)

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_policy_is_refused(tmp_path: Path, info: DataInfo) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", trainer(), info)

    with pytest.raises(RoboCacheError, match="of another policy"):
        resume(tmp_path / "checkpoint.pt", trainer(replace(CONFIG, width=32)))


class Harm:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("code of a file has run",))


@pytest.mark.parametrize("content", ["missing", "damaged", "pickle", "other"])
def test_what_is_not_a_checkpoint_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "checkpoint.pt"
    if content == "damaged":
        path.write_bytes(b"PK\3\4" + bytes(100))
    elif content == "pickle":
        path.write_bytes(pickle.dumps(Harm()))
    elif content == "other":
        torch.save({"policy": 1}, path)

    with pytest.raises(RoboCacheError) as caught:
        read_checkpoint(path)

    assert str(caught.value).startswith(f"{path}"[:8])
    assert len(str(caught.value)) < 300
    assert "code of a file" not in capsys.readouterr().out
