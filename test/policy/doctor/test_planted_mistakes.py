"""Mistakes that are planted in a spec or in a recording are found, and nothing is wrong without them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.policy.doctor.robot import JOINTS, SPEC, SWAPPED, Mistakes, record

ROOT = Path(__file__).parents[3]


def test_nothing_is_wrong_with_the_spec_of_the_training_and_another_recording(doctor, checkpoint, spec_file, tmp_path):
    found = doctor(checkpoint, "--spec", spec_file())
    assert (found.code, found.of("error", "warning", "not checked")) == (0, [])
    found = doctor(checkpoint, "--spec", spec_file(), "--bag", record(tmp_path / "bag", seed=9))
    assert (found.code, found.of("error", "warning")) == (0, [])


def test_the_document_has_the_findings_of_each_level(doctor, checkpoint, spec_file):
    found = doctor(checkpoint, "--spec", spec_file({"rate_hz": 30}), "--json")

    document = json.loads("\n".join(found.lines))
    assert [each for each in document["findings"] if each["level"] == "error"] == [
        {"level": "error", "thing": "rate_hz", "trained": "50", "found": "30"}
        | {"side": "in the spec", "advice": "set rate_hz: 50"}
    ]
    assert document["counts"] == {"error": 1, "warning": 0, "ok": len(document["findings"]) - 1, "not_checked": 0}
    assert document["errors"] == ["rate_hz: 50 in training, 30 in the spec; set rate_hz: 50"]
    assert (document["exit_code"], found.code) == (1, 1)


STREAMS = SPEC["streams"]
IN_SPEC: dict[str, dict[str, Any]] = {
    "error: rate_hz: 50 in training, 30 in the spec; set rate": {"rate_hz": 30},
    "error: streams.position: 3 columns in training, no such stream in the spec; add the stream": {
        "streams.position": None
    },
    "error: streams.joints: 4 columns in training, no such stream in the spec; rename arm_joints": {
        "streams": {{"joints": "arm_joints"}.get(name, name): keys for name, keys in STREAMS.items()}
    },
    "error: streams.joints: columns: [shoulder, elbow, wrist, gripper] in training, [elbow, shoulder, ": {
        "streams.joints.names": ["elbow", "shoulder", "wrist", "gripper"]
    },
    "error: streams.joints: 4 columns in training, 3 in the spec; read the same columns": {
        "streams.joints.names": JOINTS[:3]
    },
    "error: streams.joints.unit: rad in training, deg in the spec; set unit: rad": {"streams.joints.unit": "deg"},
    "error: streams.joints.field: position in training, velocity in the spec; set field: position": {
        "streams.joints.field": "velocity"
    },
    "error: streams.joints.offset: [] in training, [0.1, 0.0, 0.0, 0.0] in the spec; leave offset out": {
        "streams.joints.offset": [0.1, 0, 0, 0]
    },
    "warning: streams.joints.align: linear in training, hold in the spec; set align: linear": {
        "streams.joints.align": "hold"
    },
    "warning: delay_ms: 60 in training, 20 in the spec; set delay_ms: 60, or the samples of a tick are others": {
        "delay_ms": 20
    },
    "warning: streams.joints.latency_ms: 0 in training, 15 in the spec; set latency_ms: 0": {
        "streams.joints.latency_ms": 15
    },
    "error: streams.front.image.size: [12, 16] in training, [24, 32] in the spec; set image: {size: [12, 16]}": {
        "streams.front.image.size": [24, 32]
    },
    "error: streams.front.image.crop: none in training, [0, 0, 6, 8] in the spec; leave crop out": {
        "streams.front.image.crop": [0, 0, 6, 8]
    },
    "error: streams.front: an image in training, none": {"streams.front": None},
    "error: horizon: 2 ticks are observed in training, 1 in the spec; set horizon: 2": {"horizon": 1},
    "error: run: 25 rows in a chunk in training, replan_every 40 in the spec; the run stops before the next plan": {
        "run.replan_every": 40
    },
    "error: actions: 4 columns in training, 3 (arm) in the spec": {"streams.hand": None},
    "error: actions: column 0: arm 0 in training, hand 0 in the spec": {
        "streams": {name: STREAMS[name] for name in sorted(STREAMS, key="arm".__eq__)}
    },
    "error: action_offset: 1 in training, 3 in the spec; set offset: 1 in the section run": {
        "dataset.action_offset": 3
    },
    "error: run: the policy gives commands in training, not possible in the spec; streams.arm.label: deltas": {
        "streams.arm.label": "delta"
    },
}


@pytest.mark.parametrize("expected", IN_SPEC)
def test_a_mistake_in_a_spec_is_found(expected, doctor, checkpoint, spec_file):
    found = doctor(checkpoint, "--spec", spec_file(IN_SPEC[expected]))
    wrong = found.of("error", "warning")
    assert sum(line.startswith(expected) for line in wrong) == 1, wrong
    assert found.code == int(any(line.startswith("error") for line in wrong))


def test_a_device_that_is_not_there_is_found(doctor, checkpoint, spec_file):
    count = torch.cuda.device_count()
    found = doctor(checkpoint, "--spec", spec_file(), "--device", "cuda:99")
    expected = f"error: device: not known in training, cuda:99 asked for, {count} there are on this machine; give"
    assert any(line.startswith(expected) for line in found.lines)


@pytest.mark.parametrize("policy", ["mine.py:policy", "openpi://robot:8000", "missing.pt"])
def test_what_states_no_training_is_refused_with_what_to_give(policy, doctor, spec_file):
    found = doctor(policy, "--spec", spec_file())
    expected = f"robocache: checkpoint: {policy} is not a file or folder; give a checkpoint.pt or a folder of LeRobot"
    assert (found.code, len(found.lines)) == (2, 1)
    assert found.lines[0].startswith(expected)


def columns(*order: int) -> Callable[[Any], Any]:
    return lambda values: values[list(order)]


def times(*factors: float) -> Callable[[Any], Any]:
    return lambda values: values * np.array(factors)


IN_RECORDING: dict[str, Mistakes] = {
    "joints.shoulder and elbow are swapped: use the order of the training": Mistakes(joints=columns(1, 0, 2, 3)),
    "joints is degrees, and radians in training: convert it in the driver": Mistakes(joints=np.degrees),
    "position is 1000 times larger than in training": Mistakes(position=lambda xyz: xyz * 1000),
    "error: joints: values: joints.elbow from -1.4 to -1": Mistakes(
        joints=lambda values: values + np.array([0, 1.5, 0, 0])
    ),
    "joints.gripper has the other sign: invert it in the driver": Mistakes(joints=times(1, 1, 1, -1)),
    "warning: joints.gripper: 0 to 1.7 in training, always 0.02 in the recording; see if it is read": Mistakes(
        joints=lambda values: values * np.array([1, 1, 1, 0]) + np.array([0, 0, 0, 0.02])
    ),
    "error: joints: values: joints.gripper from 0 to 1.7 in training, median 100 in the recording; see if": Mistakes(
        joints=times(1, 1, 1, 100 / 1.7)
    ),
    "orientation is w x y z, and x y z w in training: list its fields in the order of the training": Mistakes(
        orientation=columns(3, 0, 1, 2)
    ),
    "error: streams.front: colours: 0.82 0.51 0.23 in training, 0.23 0.51 0.82 in the recording; red and blue": SWAPPED,
    "error: streams.front: pictures in training, one colour, 0.00 of 1 in the recording; look at the image": Mistakes(
        image=np.zeros_like
    ),
    "warning: streams.front: colours: 0.82 0.51 0.23 in training, 0.20 0.13 0.06 in the recording; look at": Mistakes(
        image=lambda pixels: pixels // 4
    ),
    "error: streams.front: valid at 100% of ticks in training, ": Mistakes(silent=0.7),
    "error: streams.joints: valid at 100% of ticks in training, 0% in the recording": Mistakes(late_ns=200_000_000),
    "warning: streams.position: age: 0 ms in training, 60 ms in the recording; look for a delay": Mistakes(
        stale_ns=100_000_000
    ),
    "error: streams.position: used in training, no topic /pose in the recording": Mistakes(without="/pose"),
}


@pytest.mark.parametrize("expected", IN_RECORDING)
def test_a_mistake_in_a_recording_is_found(expected, doctor, checkpoint, spec_file, tmp_path):
    bag = record(tmp_path / "bag", 9, IN_RECORDING[expected])

    found = doctor(checkpoint, "--spec", spec_file(), "--bag", bag)

    listed = found.of("error", "warning")
    assert any(expected in line for line in listed), listed
    assert found.code == int(any(line.startswith("error") for line in listed))


def test_an_image_of_another_size_is_found_where_the_spec_keeps_the_size(doctor, checkpoint, spec_file, tmp_path):
    bag = record(tmp_path / "bag", 9, Mistakes(image=lambda pixels: pixels.repeat(2, 0).repeat(2, 1)))
    found = doctor(checkpoint, "--spec", spec_file({"streams.front.image": {}}), "--bag", bag)
    expected = "error: streams.front: size: [12, 16] in training, [24, 32] in the recording"
    assert any(line.startswith(expected) for line in found.lines)


@pytest.mark.slow
def test_nothing_is_wrong_with_a_policy_that_was_trained_on_the_recording(doctor, tmp_path):
    spec, bag = ROOT / "config" / "panda_lift.yaml", ROOT / "test" / "data" / "panda_lift"
    export([bag], load_spec(spec), tmp_path / "panda", DatasetOptions(media="none"))
    train = runpy.run_path(str(ROOT / "examples" / "train_policy.py"))["main"]
    shape = ("--policy=tiny", "--horizon=25", "--workers=0", "--cache=host", "--device=cpu")
    train([str(tmp_path / "panda"), f"--out={tmp_path}", "--steps=120", "--learning-rate=1e-3", "--warmup=10", *shape])

    found = doctor(tmp_path / "checkpoint.pt", "--spec", spec, "--bag", bag)

    assert (found.code, found.of("error", "warning")) == (0, [])
    assert any(line.startswith("ok: predictions: commands are predicted") for line in found.lines)
    assert found.of("not checked") == []
