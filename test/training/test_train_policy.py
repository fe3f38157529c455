"""examples/train_policy.py, as a user calls it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_policy.py"
SMALL = ("--policy=tiny", "--device=cpu", "--workers=0", "--batch-size=16", "--learning-rate=0.003", "--warmup=5")


def losses(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([0-9.e-]+)", text)]


@pytest.fixture(scope="module")
def train() -> Any:
    return runpy.run_path(str(EXAMPLE))["main"]


def test_the_loss_falls_on_the_panda_recording(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"--out={tmp_path / 'run'}"

    train([str(panda), out, *SMALL, "--cache=host", "--steps=60", "--report-every=1"])

    text = capsys.readouterr().out
    assert "0.1 million parameters, 1 x cpu" in text
    seen = losses(text)
    assert len(seen) == 60
    assert sum(seen[-5:]) < 0.5 * sum(seen[:5])


def test_a_run_that_is_resumed_has_the_losses_of_one_that_is_not(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (str(panda), *SMALL, "--policy=diffusion-tiny", "--report-every=1", "--accumulate=2")
    # The learning rate depends on the number of steps, so that a shorter run is one that was stopped.
    train([*common, f"--out={tmp_path / 'whole'}", "--steps=6", "--save-every=4"])
    expected = losses(capsys.readouterr().out)
    whole = torch.load(tmp_path / "whole" / "checkpoint.pt", weights_only=True)

    resumed = tmp_path / "resumed"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("robocache_ros.training.trainer.Trainer.train_step", stop_after(4))
        with pytest.raises(KeyboardInterrupt):
            train([*common, f"--out={resumed}", "--steps=6", "--save-every=4"])
    before = losses(capsys.readouterr().out)
    train([*common, f"--out={resumed}", "--steps=6", "--resume"])

    assert before + losses(capsys.readouterr().out) == expected
    found = torch.load(resumed / "checkpoint.pt", weights_only=True)
    for name, value in whole["training"]["policy"].items():
        assert torch.equal(found["training"]["policy"][name], value)


def stop_after(steps: int) -> Any:
    from robocache_ros.training.trainer import Trainer

    step = Trainer.train_step

    def stopped(self: Trainer) -> torch.Tensor:
        if self.step == steps:
            raise KeyboardInterrupt
        return step(self)

    return stopped


def test_a_run_is_not_overwritten(train: Any, panda: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").touch()

    with pytest.raises(RoboCacheError, match="exists; continue it with --resume, or give another --out"):
        train([str(panda), f"--out={tmp_path}"])
    with pytest.raises(RoboCacheError, match="does not exist; train without --resume"):
        train([str(panda), f"--out={tmp_path / 'new'}", "--resume"])


@pytest.mark.timeout(300)
def test_two_processes_train_one_policy(panda: Path, tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*torchrun, str(EXAMPLE), str(panda), f"--out={tmp_path}", *SMALL, "--steps=3", "--report-every=1")

    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert len(losses(done.stdout)) == 3  # the first process alone reports
    ranks = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["ranks"]
    assert [each["loader"]["rank"] for each in ranks] == [0, 1]


def test_a_users_mistake_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path), f"--out={tmp_path / 'run'}"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")

    assert str(ended.value).endswith("; give its folder, or the format")
    assert "\n" not in str(ended.value)
