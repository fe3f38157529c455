"""The examples, as a user calls them, in miniature."""

from __future__ import annotations

import json
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
from robocache_ros.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_groot_style_trains_in_less_than_60_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["groot_style.py", "--steps", "1"])
    runpy.run_path(str(EXAMPLES / "groot_style.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("step 0: loss ")
    assert len((EXAMPLES / "groot_style.py").read_text().splitlines()) < 60


def test_scaling_adds_its_rates_to_a_file(panda, tmp_path, capsys):
    out = tmp_path / "scaling.jsonl"
    main = runpy.run_path(str(EXAMPLES / "multi_gpu_scaling.py"))["main"]
    options = (str(panda), f"--out={out}", "--policy=tiny", "--batch-size=4", "--workers=0", "--seconds=0.01")
    for _ in range(2):
        main([*options, "--device=cpu"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["mode"], row["what"], row["processes"], row["batch"]) for row in rows] == 2 * [
        (mode, what, 1, 4) for mode in ("weak", "strong") for what in ("loading", "training")
    ]
    assert capsys.readouterr().out.count("100.0%") == 8
    out.write_text("robocache: 1\n")
    with pytest.raises(RoboCacheError, match=r"scaling\.jsonl: not a file of this example \(.*\); give another --out"):
        main([*options, "--device=cpu"])


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_lightning_trains_on_the_loader(panda, tmp_path, capsys):
    pytest.importorskip("lightning")
    main = runpy.run_path(str(EXAMPLES / "train_with_lightning.py"))["main"]
    main([str(panda), "--policy=tiny", "--workers=0", "--steps=4", f"--out={tmp_path}"])
    assert "of the time waiting for data, GPU: None" in capsys.readouterr().out


# train_policy.py

EXAMPLE = EXAMPLES / "train_policy.py"
SMALL = ("--policy=tiny", "--device=cpu", "--workers=0", "--batch-size=16", "--learning-rate=0.003", "--warmup=5")


def losses(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([0-9.e-]+)", text)]


@pytest.fixture(scope="module")
def train() -> Any:
    return runpy.run_path(str(EXAMPLE))["main"]


@pytest.fixture(scope="module")
def first_step(train, panda, tmp_path_factory) -> Path:
    """The checkpoint of a run of one step."""
    out = tmp_path_factory.mktemp("first_step")
    train([str(panda), f"--out={out}", *SMALL, "--steps=1"])
    return out / "checkpoint.pt"


def test_a_run_that_is_resumed_has_the_losses_of_one_that_is_not(train, panda, tmp_path, capsys):
    common = (str(panda), *SMALL, "--policy=diffusion-tiny", "--cache=host", "--report-every=1", "--accumulate=2")
    # The learning rate depends on the number of steps, so that a shorter run is one that was stopped.
    train([*common, f"--out={tmp_path / 'whole'}", "--steps=6", "--save-every=4"])
    expected = losses(capsys.readouterr().out)
    whole = torch.load(tmp_path / "whole" / "checkpoint.pt", weights_only=True)
    resumed, step = tmp_path / "resumed", Trainer.train_step

    def stopped(trainer: Trainer) -> torch.Tensor:
        if trainer.step == 4:
            raise KeyboardInterrupt
        return step(trainer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopped)
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


def test_samples_are_augmented_as_the_options_say(train, panda, tmp_path, capsys):
    found = []
    for noise in ("0", "0.5"):
        options = ("--steps=1", "--report-every=1", f"--proprio-noise={noise}")
        train([str(panda), f"--out={tmp_path / noise}", *SMALL, *options])
        found.append(losses(capsys.readouterr().out))
    assert found[0] != found[1]
    with pytest.raises(RoboCacheError, match="shift: -1 is not a whole number of pixels from 0 on; give one"):
        train([str(panda), f"--out={tmp_path}", *SMALL, "--steps=1", "--image-shift=-1"])


def test_a_run_that_is_resumed_at_its_end_makes_no_step(train, panda, first_step, capsys):
    before = first_step.stat().st_mtime_ns
    train([str(panda), f"--out={first_step.parent}", *SMALL, "--steps=1", "--resume"])
    assert f"{first_step}: step 1 of 1\n" in capsys.readouterr().out
    assert first_step.stat().st_mtime_ns == before


def test_a_run_that_is_resumed_has_its_arguments_and_names_those_that_change(train, panda, tmp_path, capsys):
    train([str(panda), f"--out={tmp_path}", *SMALL, "--bf16", "--steps=1"])
    capsys.readouterr()
    train([str(panda), f"--out={tmp_path}", "--resume", "--steps=2", "--learning-rate=0.01", "--no-bf16"])
    reported = capsys.readouterr().out.splitlines()
    changes = "steps 2 (was 1), learning_rate 0.01 (was 0.003), bf16 False (was True)"
    assert reported[1] == f"continues at step 1 with {changes}"
    assert reported[-1].endswith("step 2 of 2")
    found = read_checkpoint(tmp_path / "checkpoint.pt").arguments
    assert (found["policy"], found["batch_size"], found["learning_rate"]) == ("tiny", 16, 0.01)


def test_on_a_cpu_the_default_policy_is_a_small_one_and_named(train, panda, tmp_path, capsys):
    train([str(panda), f"--out={tmp_path}", *SMALL[1:], "--steps=1"])
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("policy: tiny, for which a CPU is fast enough; choose others with --policy: act-101m, ")
    assert "0.1 million parameters, 1 x cpu" in second
    assert read_checkpoint(tmp_path / "checkpoint.pt").policy.width == 64
    train([str(panda), f"--out={tmp_path}", "--resume", "--steps=2"])
    assert "policy: " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "stored", "message"),
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
def test_arguments_of_another_run_and_damaged_ones_are_refused(
    train, panda, first_step, tmp_path, given, stored, message
):
    content = torch.load(first_step, weights_only=True)
    content["arguments"] |= stored
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(RoboCacheError, match=message):
        train([str(panda), f"--out={tmp_path}", "--resume", *given])


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_its_checkpoint(train, panda, tmp_path):
    diverging = ("--learning-rate=1e20", "--warmup=0", "--clip-norm=0", "--save-every=1", "--report-every=9")
    with pytest.raises(RoboCacheError, match=r"are not finite; lower the learning rate|loss: nan at step 9; "):
        train([str(panda), f"--out={tmp_path}", *SMALL, *diverging, "--steps=9"])
    found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["policy"]
    assert all(value.isfinite().all() for value in found.values())


@pytest.mark.slow
def test_two_processes_train_one_policy(panda, tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*torchrun, str(EXAMPLE), str(panda), f"--out={tmp_path}", *SMALL, "--steps=3", "--report-every=1")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert len(losses(done.stdout)) == 3  # the first process alone reports
    ranks = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["ranks"]
    assert [each["loader"]["rank"] for each in ranks] == [0, 1]


def test_a_users_mistake_is_one_line(train, panda, tmp_path, monkeypatch, capsys):
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
