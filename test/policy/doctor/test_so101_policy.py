"""The committed policy with demonstrations that it was not trained on: its predictions show what ranges do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robocache_ros.policy.doctor import OK, Finding
from robocache_ros.policy.observed_values import Observed, check_values, observe_bag, used_streams
from robocache_ros.policy.trained_facts import trained_facts
from robocache_ros.sim.command import SimArguments, write_demonstrations
from robocache_ros.sim.simulation import SimOptions
from robocache_ros.spec import load_spec
from robocache_ros.training.trained_policy import TrainedPolicy
from test.shared import once

ROOT = Path(__file__).parents[3]
CHECKPOINT, SPEC = ROOT / "examples" / "so101_policy.pt", ROOT / "config" / "so101_state.yaml"
UNSEEN = 5000  # the training had the seeds from 1000 on
Values = NDArray[np.float32]


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory):
    wanted = SimArguments(SimOptions(camera=False, disturbance=0.015), UNSEEN, 1)
    return once(tmp_path_factory, "unseen", lambda folder: write_demonstrations(folder, wanted)[0])


def test_nothing_is_wrong_with_a_demonstration(doctor, demonstration):
    found = doctor(CHECKPOINT, "--spec", SPEC, "--bag", demonstration)

    assert (found.code, found.of("error", "warning")) == (0, [])
    assert any(line.startswith("ok: predictions: commands are predicted") for line in found.lines)


@pytest.fixture(scope="module")
def observed(demonstration):
    spec = used_streams(trained_facts(CHECKPOINT), load_spec(SPEC))
    values, found = observe_bag(demonstration, spec)
    assert found == []
    return values


def column(index: int, change: Callable[[Values], Values]) -> Callable[[Values], Values]:
    def changed(values: Values) -> Values:
        values[:, index] = change(values[:, index])
        return values

    return changed


def later(ticks: int) -> Callable[[Values], Values]:
    return lambda values: np.concatenate([np.repeat(values[:1], ticks, 0), values[:-ticks]])


# The lag that the predictions fit best is an estimate, here one tick off.
MISTAKES: dict[str, tuple[str, Callable[[Values], Values], str]] = {
    "joints that are swapped within their ranges": (
        "joint_position",
        lambda values: values[:, [0, 2, 1, 3, 4, 5]],
        "joint_position.shoulder_lift and elbow_flex are swapped",
    ),
    "a gripper that opens where it closed": (
        "joint_position",
        column(5, lambda values: values.min() + values.max() - values),
        "joint_position.gripper is mirrored in its range",
    ),
    "a joint with the other sign": (
        "joint_position",
        column(0, np.negative),
        "joint_position.shoulder_pan has the other sign",
    ),
    "another zero": (
        "joint_position",
        column(1, lambda values: values + 0.5),
        "shoulder_lift has another zero, off by",
    ),
    "observations that lag": ("joint_position", later(6), "best those 5 ticks earlier"),
    "commands in another order": (
        "action",
        lambda values: values[:, [1, 0, 2, 3, 4, 5]],
        "action.shoulder_pan and shoulder_lift are swapped",
    ),
    "commands of another offset": ("action", later(4), "best those 5 ticks later"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_predictions_show_a_mistake_within_the_ranges(mistake, observed):
    stream, change, expected = MISTAKES[mistake]
    values = {**observed.values, stream: change(observed.values[stream].copy())}

    found = wrong(replace(observed, values=values))

    assert [expected in str(each) for each in found] == [True], found


def wrong(observed: Observed, **arguments: Any) -> list[Finding]:
    policy = TrainedPolicy.load(CHECKPOINT)
    return [each for each in check_values(trained_facts(CHECKPOINT), observed, policy, **arguments) if each.level != OK]
