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
from robocache_ros.training.checkpoints import read_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_policy.py"
SMALL = ("--policy=tiny", "--device=cpu", "--workers=0", "--batch-size=16", "--learning-rate=0.003", "--warmup=5")


def losses(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([0-9.e-]+)", text)]


@pytest.fixture(scope="module")
def train() -> Any:
    return runpy.run_path(str(EXAMPLE))["main"]


@pytest.fixture(scope="module")
def first_step(train: Any, panda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of one step."""
    out = tmp_path_factory.mktemp("first_step")
    train([str(panda), f"--out={out}", *SMALL, "--steps=1"])
    return out / "checkpoint.pt"


def test_a_run_that_is_resumed_has_the_losses_of_one_that_is_not(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (str(panda), *SMALL, "--policy=diffusion-tiny", "--cache=host", "--report-every=1", "--accumulate=2")
    # The learning rate depends on the number of steps, so that a shorter run is one that was stopped.
    train([*common, f"--out={tmp_path / 'whole'}", "--steps=6", "--save-every=4"])
    expected = losses(capsys.readouterr().out)
    whole = torch.load(tmp_path / "whole" / "checkpoint.pt", weights_only=True)

    resumed = tmp_path / "resumed"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("robocache_ros.training.trainer.Trainer.train_step", stop_after(4))
        with pytest.raises(KeyboardInterrupt):
            train([*common, f"--out={resumed}", "--steps=6", "--save-every=4"])
    stopped = capsys.readouterr()
    before = losses(stopped.out)
    assert stopped.err == f"interrupted at step 4: {resumed / 'checkpoint.pt'} continues with --resume\n"
    train([str(panda), f"--out={resumed}", "--resume"])

    assert before + losses(capsys.readouterr().out) == expected
    found = torch.load(resumed / "checkpoint.pt", weights_only=True)
    for name, value in whole["training"]["policy"].items():
        assert torch.equal(found["training"]["policy"][name], value)


def test_samples_are_augmented_as_the_options_say(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for noise in ("0", "0.5"):
        train(
            [
                str(panda),
                f"--out={tmp_path / noise}",
                *SMALL,
                "--steps=1",
                "--report-every=1",
                f"--proprio-noise={noise}",
            ]
        )
        found.append(losses(capsys.readouterr().out))
    assert found[0] != found[1]
    with pytest.raises(RoboCacheError, match="shift: -1 is not a whole number of pixels from 0 on; give one"):
        train([str(panda), f"--out={tmp_path}", *SMALL, "--steps=1", "--image-shift=-1"])


def stop_after(steps: int) -> Any:
    from robocache_ros.training.trainer import Trainer

    step = Trainer.train_step

    def stopped(self: Trainer) -> torch.Tensor:
        if self.step == steps:
            raise KeyboardInterrupt
        return step(self)

    return stopped


def test_a_run_that_is_resumed_at_its_end_makes_no_step(
    train: Any, panda: Path, first_step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = first_step.stat().st_mtime_ns

    train([str(panda), f"--out={first_step.parent}", *SMALL, "--steps=1", "--resume"])

    assert f"{first_step}: step 1 of 1\n" in capsys.readouterr().out
    assert first_step.stat().st_mtime_ns == before


def test_a_run_that_is_resumed_has_its_arguments_and_names_those_that_change(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train([str(panda), f"--out={tmp_path}", *SMALL, "--bf16", "--steps=1"])
    capsys.readouterr()

    train([str(panda), f"--out={tmp_path}", "--resume", "--steps=2", "--learning-rate=0.01", "--no-bf16"])

    reported = capsys.readouterr().out.splitlines()
    assert (
        reported[1] == "continues at step 1 with steps 2 (was 1), learning_rate 0.01 (was 0.003), bf16 False (was True)"
    )
    assert reported[-1].endswith("step 2 of 2")
    found = read_checkpoint(tmp_path / "checkpoint.pt").arguments
    assert (found["policy"], found["batch_size"], found["learning_rate"]) == ("tiny", 16, 0.01)


def test_on_a_cpu_the_default_policy_is_a_small_one_and_named(
    train: Any, panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train([str(panda), f"--out={tmp_path}", *SMALL[1:], "--steps=1"])

    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("policy: tiny, for which a CPU is fast enough; choose others with --policy: act-101m, ")
    assert "0.1 million parameters, 1 x cpu" in second
    assert read_checkpoint(tmp_path / "checkpoint.pt").policy.width == 64
    train([str(panda), f"--out={tmp_path}", "--resume", "--steps=2"])
    assert "policy: " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "stored", "message"),
    [
        ([], {"steps": "many"}, r"checkpoint\.pt: argument steps is many; give another checkpoint$"),
        ([], {"policy": "gpt"}, r"checkpoint\.pt: argument policy is gpt; give another checkpoint$"),
        ([], {"bf16": 1}, r"checkpoint\.pt: argument bf16 is 1; give another checkpoint$"),
        ([], {"split": 2}, r"checkpoint\.pt: argument split is 2; give another checkpoint$"),
        (["--seed=3"], {}, r"use the same arguments$"),
        (["--batch-size=8"], {}, r"use the same arguments$"),
        (["--n-obs=3"], {}, r"use the same arguments$"),
        (["--rate-hz=25"], {}, r"use the same arguments$"),
    ],
)
def test_arguments_that_make_it_another_run_and_damaged_ones_are_refused(
    train: Any, panda: Path, first_step: Path, tmp_path: Path, options: list[str], stored: dict[str, Any], message: str
) -> None:
    content = torch.load(first_step, weights_only=True)
    content["arguments"] |= stored
    torch.save(content, tmp_path / "checkpoint.pt")

    with pytest.raises(RoboCacheError, match=message):
        train([str(panda), f"--out={tmp_path}", "--resume", *options])


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_its_checkpoint(
    train: Any, panda: Path, tmp_path: Path
) -> None:
    diverging = ("--learning-rate=1e20", "--warmup=0", "--clip-norm=0", "--save-every=1", "--report-every=9")

    with pytest.raises(RoboCacheError, match=r"are not finite; lower the learning rate|loss: nan at step 9; "):
        train([str(panda), f"--out={tmp_path}", *SMALL, *diverging, "--steps=9"])

    found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["policy"]
    assert all(value.isfinite().all() for value in found.values())


@pytest.mark.slow
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


def test_a_users_mistake_is_one_line(
    train: Any, panda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RoboCacheError, match="vision: the dataset has no images; leave --vision out"):
        train([str(panda), f"--out={tmp_path}", *SMALL, "--vision", "--steps=1"])
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path), f"--out={tmp_path / 'run'}"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")

    reported = capsys.readouterr().err
    assert ended.value.code == 2
    assert reported.startswith("train_policy: ")
    assert reported.endswith("export a recording first\n")
    assert reported.count("\n") == 1
