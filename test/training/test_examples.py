"""The other examples, in miniature."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_groot_style_trains_in_less_than_60_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["groot_style.py", "--steps", "1"])

    runpy.run_path(str(EXAMPLES / "groot_style.py"), run_name="__main__")

    assert capsys.readouterr().out.startswith("step 0: loss ")
    assert len((EXAMPLES / "groot_style.py").read_text().splitlines()) < 60


def test_scaling_adds_its_rates_to_a_file(panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_lightning_trains_on_the_loader(panda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    main = runpy.run_path(str(EXAMPLES / "train_with_lightning.py"))["main"]

    main([str(panda), "--policy=tiny", "--workers=0", "--steps=4", f"--out={tmp_path}"])

    assert "of the time waiting for data, GPU: None" in capsys.readouterr().out
