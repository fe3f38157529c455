"""A checkpoint that LeRobot has written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.policy.lerobot_config import read_lerobot_config
from test.export.readers.environments import ROOT, needs, program
from test.policy.doctor.conftest import Diagnosis
from test.policy.doctor.robot import record

pytestmark = needs("lerobot")


def test_a_checkpoint_of_lerobot_is_read(
    doctor: Callable[..., Diagnosis], checkpoint: Path, spec_file: Callable[..., Path], tmp_path: Path
) -> None:
    script = ROOT / "test" / "export" / "readers" / "lerobot" / "save_policy.py"
    command = [str(program("lerobot")), str(script), str(checkpoint.parent / "dataset"), str(tmp_path / "act")]
    variables = {"PATH": os.defpath, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = json.loads(done.stdout.splitlines()[-1])

    config = read_lerobot_config(tmp_path / "act")
    found = doctor(tmp_path / "act", "--spec", spec_file(), "--bag", record(tmp_path / "bag", 9))

    assert (config.type, config.horizon, config.action, config.cameras) == ("act", 30, 4, ("front",))
    for name in ("observation.state", "observation.images.front", "action"):
        for key in ("mean", "std"):
            assert config.statistics[name][key] == pytest.approx(wanted[name][key], rel=1e-6)
    assert (found.code, found.of("error", "warning")) == (0, [])
