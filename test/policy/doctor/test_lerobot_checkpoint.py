"""Checkpoints of LeRobot, read without LeRobot, also one that it has written."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.lerobot_config import read_lerobot_config
from test.export.readers.environments import ROOT, program, reads
from test.policy.doctor.lerobot_files import STD, save
from test.policy.doctor.robot import SWAPPED, Mistakes, record


def test_nothing_is_wrong_with_the_streams_of_the_training(doctor, spec_file, tmp_path):
    found = doctor(save(tmp_path / "act"), "--spec", spec_file(), "--bag", record(tmp_path / "bag", 9))

    assert (found.code, found.of("error", "warning")) == (0, [])
    assert [line.split(":")[1] for line in found.of("not checked")] == [
        *(" action_offset", " rate_hz, columns", " streams.arm", " streams.hand", " predictions")
    ]


STATISTICS: dict[str, dict[str, list[float]]] = {
    "error: normalisation of observation.state: MEAN_STD in training, mean 0.5, std nan of column 0 in the check": {
        "observation.state.std": [float("nan"), *STD[1:]]
    },
    "error: normalisation of action: MEAN_STD in training, mean -1.2, std -0.1 of column 1 in the checkpoint": {
        "action.std": [0.2, -0.1, 0.3, 0.7]
    },
    "warning: normalisation of observation.state: MEAN_STD in training, columns [0] did not change in the check": {
        "observation.state.std": [0.0, *STD[1:]]
    },
    "error: normalisation of action: 4 columns in training, 1 and 1 numbers in the checkpoint": {
        "action.mean": [0.0],
        "action.std": [1.0],
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "error: normalisation of observation.state: QUANTILES in training, no q01 in the checkpoint; copy": {
        "normalization_mapping": {"STATE": "QUANTILES"}
    },
    "error: state: 7 columns in training, 11 (joints and position and orientation) in the spec": {
        "input_features": {"observation.state": {"type": "STATE", "shape": [7]}}
    },
    "error: streams.wrist: an image in training, none in the spec; name an image wrist; there are front": {
        "input_features": {"observation.images.wrist": {"type": "VISUAL", "shape": [3, 12, 16]}}
    },
    "error: observation.environment_state: an input in training, none in the spec": {
        "input_features": {"observation.environment_state": {"type": "ENV", "shape": [3]}}
    },
    "error: actions: 6 columns in training, 4 (arm and hand) in the spec": {
        "output_features": {"action": {"type": "ACTION", "shape": [6]}}
    },
    "warning: device: cuda in training, cpu on this machine; measure how long": {"device": "cuda"},
}


@pytest.mark.parametrize("expected", [*STATISTICS, *CONFIGS])
def test_a_mistake_in_a_checkpoint_is_found(expected, doctor, spec_file, tmp_path):
    folder = save(tmp_path / "act", CONFIGS.get(expected), STATISTICS.get(expected))
    found = doctor(folder, "--spec", spec_file())
    assert any(line.startswith(expected) for line in found.lines), found.of("error", "warning")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (Mistakes(joints=np.degrees), "joints is degrees, and radians in training"),
        (SWAPPED, "red and blue are swapped"),
    ],
)
def test_a_mistake_in_a_recording_is_found(wrong, expected, doctor, spec_file, tmp_path):
    found = doctor(save(tmp_path / "act"), "--spec", spec_file(), "--bag", record(tmp_path / "bag", 9, wrong))
    assert found.code == 1
    assert any(expected in line for line in found.of("error")), found.lines


def test_processors_that_are_missing_are_found(doctor, spec_file, tmp_path):
    folder = save(tmp_path / "act")
    (folder / "policy_preprocessor.json").unlink()
    found = doctor(folder, "--spec", spec_file()).of("error")
    assert any("normalisation of observation.state: MEAN_STD in training, no mean" in line for line in found)


def test_the_dataset_of_the_training_gives_its_rate_and_its_columns(doctor, spec_file, tmp_path, checkpoint):
    folder = save(tmp_path / "act")
    (folder / "train_config.json").write_text(json.dumps({"dataset": {"root": str(checkpoint.parent / "dataset")}}))
    changed = {"rate_hz": 30, "streams.joints.names": ["elbow", "shoulder", "wrist", "gripper"]}

    found = doctor(folder, "--spec", spec_file(changed))

    assert "error: rate_hz: 50 in training, 30 in the spec; set rate_hz: 50" in found.lines
    expected = "error: state: column 0: joints shoulder in training, joints elbow in the spec"
    assert any(line.startswith(expected) for line in found.lines)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:40],
        lambda data: b"\xff" * 8 + data,
        lambda data: data[:-8],
        lambda data: data.replace(b'"shape": [11]', b'"shape": [99]'),
    ],
)
def test_damaged_statistics_are_refused(damage, tmp_path):
    file = save(tmp_path / "act") / "pre_normalizer.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RoboCacheError, match="not a safetensors file of statistics"):
        read_lerobot_config(tmp_path / "act")


@reads("lerobot")
def test_a_checkpoint_of_lerobot_is_read(doctor, checkpoint, spec_file, tmp_path):
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
