"""The options that decide what an episode and an action are, as a user gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from test.cli.conftest import BAG, SPEC, Finished


def test_options_of_episodes_and_actions_reach_the_dataset(robocache: Callable[..., Finished], tmp_path: Path) -> None:
    rate = ["--rate-hz", 20, "--split", 2, "--trim-idle", 30, "--no-episode-file"]
    action = ["--action", "delta", "--action-from", "joint_position", "--action-offset", "100ms"]

    result = robocache(
        "export", BAG, "--spec", SPEC, "--out", tmp_path / "out", "--media", "none", *rate, *action, "--json"
    )

    (recording,) = json.loads(result.out)["recordings"]
    assert {episode["frames"] for episode in recording["episodes"][:3]} == {38}
    assert recording["left_out"]["reasons"]["without their action"] == 2 * len(recording["episodes"])
    told = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text())
    assert (told["spec"]["rate_hz"], told["options"]["action_offset"]) == (20, "100ms")
    assert "delta_action.0" in {column["name"] for column in told["layout"]["columns"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--action-offset", "30ms"], "action_offset: 30 ms is 1.50 ticks of 20 ms; use whole ticks"),
        (["--episode-topic", "episode"], "--episode-topic: 'episode' is not an absolute topic name"),
        (["--split", "-1"], "--split: -1.0 is not a number from 0"),
        (["--rate-hz", "0"], "rate_hz: 0 is not an integer from 1 to 1000"),
        (["--task-topic", "/what"], "task_topic: "),
    ],
)
def test_a_mistake_in_an_option_is_one_line(
    robocache: Callable[..., Finished], tmp_path: Path, options: list[str], message: str
) -> None:
    result = robocache("export", BAG, "--spec", SPEC, "--out", tmp_path / "out", "--media", "none", *options)
    assert result.code == 2
    assert result.err.splitlines()[0].startswith(f"robocache: {message}")


def test_a_recording_below_the_quality_in_the_spec_is_reported_all_the_same(
    robocache: Callable[..., Finished], tmp_path: Path
) -> None:
    spec = tmp_path / "strict.yaml"
    spec.write_text(Path(SPEC).read_text() + "quality: {max_invalid: 0, min_frames: 10000}\n")
    export = robocache("export", BAG, "--spec", spec, "--out", tmp_path / "out", "--media", "none")
    assert (export.code, "above quality.max_invalid, 0.00%" in export.err) == (2, True)
    assert robocache("report", BAG, "--spec", spec, "--out", tmp_path / "report.html").code == 0
