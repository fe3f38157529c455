"""What a training reports."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import GPUUtilization
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_progress import TrainingProgress
from test.training.conftest import new_trainer


@pytest.fixture
def trainer() -> Trainer:
    return new_trainer(steps=4, warmup=1)


def test_a_line_has_the_loss_the_speed_and_the_wait(trainer: Trainer) -> None:
    lines: list[str] = []
    times = iter([0.0, 0.0, 2.0, 4.0, 4.0, 4.5, 5.0, 5.0])  # two for a report
    with TrainingProgress(trainer, 2, write=lines.append, clock=lambda: next(times)) as progress:
        for _ in range(4):
            progress.update(trainer.train_step())

    assert len(lines) == 2
    assert lines[0].startswith("step 2: loss 0.")
    assert ", 0.5 steps/s, 4 s left, " in lines[0]
    assert ", 2 steps/s, " in lines[1]
    assert lines[1].endswith("% waiting for data")


def test_slow_steps_are_reported_after_5_s_and_then_every_30_s() -> None:
    trainer = new_trainer(steps=10_000, warmup=1)
    lines: list[str] = []
    now = 0.0
    with TrainingProgress(trainer, 50, write=lines.append, clock=lambda: now) as progress:
        for _ in range(30):
            now += 2.5
            progress.update(trainer.train_step())

    assert [line.split(":")[0] for line in lines] == ["step 2", "step 14", "step 26"]
    assert ", 0.4 steps/s, 6 h 57 min left, " in lines[0]


def test_a_driver_that_fails_does_not_fail_the_training(
    trainer: Trainer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, _device: int) -> None:
            self.result = GPUUtilization(50.0, 40.0, 60.0, 3)

        def start(self) -> Failing:
            return self

        def stop(self) -> None:
            raise RoboCacheError("GPU 0: lost; check nvidia-smi")

    monkeypatch.setattr("robocache_ros.training.training_progress.GPUUtilizationMonitor", Failing)
    loss = trainer.train_step()
    trainer.device = torch.device("cuda")
    lines: list[str] = []
    with TrainingProgress(trainer, 1, write=lines.append) as progress:
        progress.update(loss)

    assert lines[0].endswith("waiting for data, GPU 50 %")
    assert capsys.readouterr().err == "GPU utilisation is of a part of the run: GPU 0: lost; check nvidia-smi\n"


def test_a_loss_that_is_not_finite_and_reports_of_no_step_are_errors(trainer: Trainer) -> None:
    with pytest.raises(RoboCacheError, match="loss: nan at step 0; lower the learning rate"):
        TrainingProgress(trainer, 1, write=lambda _: None).update(torch.tensor(torch.nan))
    with pytest.raises(RoboCacheError, match="report_every: 0 is less than 1"):
        TrainingProgress(trainer, 0)


@pytest.mark.parametrize(("terminal", "expected"), [(False, "step 1: loss "), (True, "100 %")])
def test_stdout_has_lines_and_on_a_terminal_a_bar(
    terminal: bool, expected: str, trainer: Trainer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with TrainingProgress(trainer, 1) as progress:
        for _ in range(4):
            progress.update(trainer.train_step())

    assert expected in capsys.readouterr().out


def test_tensorboard_has_each_value(trainer: Trainer, tmp_path: Path) -> None:
    with warnings.catch_warnings():  # of what TensorBoard imports
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        with TrainingProgress(trainer, 1, tmp_path, write=lambda _: None) as progress:
            progress.update(trainer.train_step())
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path)).Reload()

    assert events.Tags()["scalars"] == ["loss", "steps_per_s", "data_wait_share"]
