"""The other examples, in miniature."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


pytestmark = pytest.mark.timeout(300)  # processes that import torch, on a machine that may be busy


def run(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_groot_style_trains_in_less_than_60_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["groot_style.py", "--steps", "1"])

    runpy.run_path(str(EXAMPLES / "groot_style.py"), run_name="__main__")

    assert capsys.readouterr().out.startswith("step 0: loss ")
    assert len((EXAMPLES / "groot_style.py").read_text().splitlines()) < 60


def test_scaling_has_a_rate_of_each_number_of_processes(panda: Path, tmp_path: Path) -> None:
    out = tmp_path / "scaling.jsonl"
    options = (
        str(panda),
        f"--out={out}",
        "--policy=tiny",
        "--batch-size=4",
        "--workers=0",
        "--steps=2",
        "--device=cpu",
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

    runpy.run_path(str(EXAMPLES / "multi_gpu_scaling.py"))["main"](options)
    table = run(*torchrun, EXAMPLES / "multi_gpu_scaling.py", *options)

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["mode"], row["what"], row["processes"], row["batch"]) for row in rows] == [
        *((mode, what, 1, 4) for mode in ("weak", "strong") for what in ("loading", "training")),
        *((mode, what, 2, batch) for mode, batch in (("weak", 4), ("strong", 2)) for what in ("loading", "training")),
    ]
    assert table.count("100.0%") == 4
    assert table.count("| 2 |") == 4


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_lightning_trains_on_the_loader(panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    main = runpy.run_path(str(EXAMPLES / "train_with_lightning.py"))["main"]

    main([str(panda), "--policy=tiny", "--workers=0", "--steps=4", f"--out={tmp_path}"])

    assert "of the time waiting for data, GPU: None" in capsys.readouterr().out
