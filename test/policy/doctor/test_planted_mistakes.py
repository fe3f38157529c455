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
from test.policy.doctor.conftest import Diagnosis
from test.policy.doctor.robot import Mistakes, record

Doctor = Callable[..., Diagnosis]
SpecFile = Callable[..., Path]
ROOT = Path(__file__).parents[3]


def test_nothing_is_wrong_with_the_spec_of_the_training_and_another_recording(doctor, checkpoint, spec_file, tmp_path):
    found = doctor(checkpoint, "--spec", spec_file())
    assert (found.code, found.of("error", "warning", "not checked")) == (0, [])

    found = doctor(checkpoint, "--spec", spec_file(), "--bag", record(tmp_path / "bag", seed=9))
    assert (found.code, found.of("error", "warning")) == (0, [])


def test_the_document_has_the_findings_of_each_level(doctor, checkpoint, spec_file):
    spec = spec_file(lambda spec: spec.update(rate_hz=30))

    found = doctor(checkpoint, "--spec", spec, "--json")

    document = json.loads("\n".join(found.lines))
    wrong = [each for each in document["findings"] if each["level"] == "error"]
    assert wrong == [
        {
            "level": "error",
            "thing": "rate_hz",
            "trained": "50",
            "found": "30",
            "side": "in the spec",
            "advice": "set rate_hz: 50",
        }
    ]
    assert document["counts"] == {"error": 1, "warning": 0, "ok": len(document["findings"]) - 1, "not_checked": 0}
    assert document["errors"] == ["rate_hz: 50 in training, 30 in the spec; set rate_hz: 50"]
    assert (document["exit_code"], found.code) == (1, 1)


def streams(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the keys of streams."""

    def change(spec: dict[str, Any]) -> None:
        for name, keys in changes.items():
            spec["streams"][name].update(keys)

    return change


def renamed(spec: dict[str, Any]) -> None:
    spec["streams"] = {{"joints": "arm_joints"}.get(name, name): keys for name, keys in spec["streams"].items()}


def actions_in_another_order(spec: dict[str, Any]) -> None:
    spec["streams"] = dict(sorted(spec["streams"].items(), key=lambda item: item[0] == "arm"))


IN_SPEC: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another rate": (lambda spec: spec.update(rate_hz=30), "error: rate_hz: 50 in training, 30 in the spec; set rate"),
    "a missing stream": (
        lambda spec: spec["streams"].pop("position"),
        "error: streams.position: 3 columns in training, no such stream in the spec; add the stream",
    ),
    "a renamed stream": (
        renamed,
        "error: streams.joints: 4 columns in training, no such stream in the spec; rename arm_joints",
    ),
    "joints in another order": (
        streams(joints={"names": ["elbow", "shoulder", "wrist", "gripper"]}),
        "error: streams.joints: columns: [shoulder, elbow, wrist, gripper] in training, [elbow, shoulder, ",
    ),
    "fewer joints": (
        streams(joints={"names": ["shoulder", "elbow", "wrist"]}),
        "error: streams.joints: 4 columns in training, 3 in the spec; read the same columns",
    ),
    "another unit": (
        streams(joints={"unit": "deg"}),
        "error: streams.joints.unit: rad in training, deg in the spec; set unit: rad",
    ),
    "another field": (
        streams(joints={"field": "velocity"}),
        "error: streams.joints.field: position in training, velocity in the spec; set field: position",
    ),
    "an offset in the spec": (
        streams(joints={"offset": [0.1, 0, 0, 0]}),
        "error: streams.joints.offset: [] in training, [0.1, 0.0, 0.0, 0.0] in the spec; leave offset out",
    ),
    "another alignment": (
        streams(joints={"align": "hold"}),
        "warning: streams.joints.align: linear in training, hold in the spec; set align: linear",
    ),
    "another delay": (
        lambda spec: spec.update(delay_ms=20),
        "warning: delay_ms: 60 in training, 20 in the spec; set delay_ms: 60, or the samples of a tick are others",
    ),
    "another latency": (
        streams(joints={"latency_ms": 15}),
        "warning: streams.joints.latency_ms: 0 in training, 15 in the spec; set latency_ms: 0",
    ),
    "another image size": (
        streams(front={"image": {"size": [24, 32]}}),
        "error: streams.front.image.size: [12, 16] in training, [24, 32] in the spec; set image: {size: [12, 16]}",
    ),
    "a crop": (
        streams(front={"image": {"size": [12, 16], "crop": [0, 0, 6, 8]}}),
        "error: streams.front.image.crop: none in training, [0, 0, 6, 8] in the spec; leave crop out",
    ),
    "a missing camera": (lambda spec: spec["streams"].pop("front"), "error: streams.front: an image in training, none"),
    "too short a window": (
        lambda spec: spec.update(horizon=1),
        "error: horizon: 2 ticks are observed in training, 1 in the spec; set horizon: 2",
    ),
    "chunks that end before the next one": (
        lambda spec: spec["run"].update(replan_every=40),
        "error: run: 25 rows in a chunk in training, replan_every 40 in the spec; the run stops before the next plan",
    ),
    "fewer actions": (
        lambda spec: spec["streams"].pop("hand"),
        "error: actions: 4 columns in training, 3 (arm) in the spec",
    ),
    "actions in another order": (
        actions_in_another_order,
        "error: actions: column 0: arm 0 in training, hand 0 in the spec",
    ),
    "another action offset": (
        lambda spec: spec["dataset"].update(action_offset=3),
        "error: action_offset: 1 in training, 3 in the spec; set offset: 1 in the section run",
    ),
    "an output that is not possible": (
        streams(arm={"label": "delta"}),
        "error: run: the policy gives commands in training, not possible in the spec; streams.arm.label: deltas",
    ),
}


@pytest.mark.parametrize("mistake", IN_SPEC)
def test_a_mistake_in_a_spec_is_found(mistake, doctor, checkpoint, spec_file):
    change, expected = IN_SPEC[mistake]

    found = doctor(checkpoint, "--spec", spec_file(change))

    wrong = found.of("error", "warning")
    assert [line[: len(expected)] for line in wrong if line.startswith(expected)] == [expected], wrong
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


def plus(**by: float) -> Callable[[Any], Any]:
    return lambda values: values + np.array([by.get(name, 0.0) for name in "abcd"])


IN_RECORDING: dict[str, tuple[Mistakes, str]] = {
    "swapped joints": (
        Mistakes(joints=columns(1, 0, 2, 3)),
        "joints.shoulder and elbow are swapped: use the order of the training",
    ),
    "degrees": (Mistakes(joints=np.degrees), "joints is degrees, and radians in training: convert it in the driver"),
    "millimetres": (Mistakes(position=lambda xyz: xyz * 1000), "position is 1000 times larger than in training"),
    "an offset": (Mistakes(joints=plus(b=1.5)), "error: joints: values: joints.elbow from -1.4 to -1"),
    "a gripper with the other sign": (
        Mistakes(joints=lambda values: values * np.array([1, 1, 1, -1])),
        "joints.gripper has the other sign: invert it in the driver",
    ),
    "a gripper that does not move": (
        Mistakes(joints=lambda values: values * np.array([1, 1, 1, 0]) + np.array([0, 0, 0, 0.02])),
        "warning: joints.gripper: 0 to 1.7 in training, always 0.02 in the recording; see if it is read",
    ),
    "a gripper in per cent": (
        Mistakes(joints=lambda values: values * np.array([1, 1, 1, 100 / 1.7])),
        "error: joints: values: joints.gripper from 0 to 1.7 in training, median 100 in the recording; see if",
    ),
    "a quaternion as w x y z": (
        Mistakes(orientation=columns(3, 0, 1, 2)),
        "orientation is w x y z, and x y z w in training: list its fields in the order of the training",
    ),
    "red and blue exchanged": (
        Mistakes(image=lambda pixels: pixels[..., ::-1].copy()),
        "error: streams.front: colours: 0.82 0.51 0.23 in training, 0.23 0.51 0.82 in the recording; red and blue",
    ),
    "a black image": (
        Mistakes(image=np.zeros_like),
        "error: streams.front: pictures in training, one colour, 0.00 of 1 in the recording; look at the image",
    ),
    "a dark image": (
        Mistakes(image=lambda pixels: pixels // 4),
        "warning: streams.front: colours: 0.82 0.51 0.23 in training, 0.20 0.13 0.06 in the recording; look at",
    ),
    "a camera that is silent most of the time": (
        Mistakes(silent=0.7),
        "error: streams.front: valid at 100% of ticks in training, ",
    ),
    "samples that arrive too late": (
        Mistakes(late_ns=200_000_000),
        "error: streams.joints: valid at 100% of ticks in training, 0% in the recording",
    ),
    "stale poses": (
        Mistakes(stale_ns=100_000_000),
        "warning: streams.position: age: 0 ms in training, 60 ms in the recording; look for a delay",
    ),
    "a missing topic": (
        Mistakes(without="/pose"),
        "error: streams.position: used in training, no topic /pose in the recording",
    ),
}


@pytest.mark.parametrize("mistake", IN_RECORDING)
def test_a_mistake_in_a_recording_is_found(mistake, doctor, checkpoint, spec_file, tmp_path):
    wrong, expected = IN_RECORDING[mistake]

    found = doctor(checkpoint, "--spec", spec_file(), "--bag", record(tmp_path / "bag", 9, wrong))

    listed = found.of("error", "warning")
    assert any(expected in line for line in listed), listed
    assert found.code == int(any(line.startswith("error") for line in listed))


def test_an_image_of_another_size_is_found_where_the_spec_keeps_the_size(doctor, checkpoint, spec_file, tmp_path):
    bag = record(tmp_path / "bag", 9, Mistakes(image=lambda pixels: pixels.repeat(2, 0).repeat(2, 1)))

    found = doctor(checkpoint, "--spec", spec_file(streams(front={"image": {}})), "--bag", bag)

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
