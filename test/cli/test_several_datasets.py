"""Several specs and rates in one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from test.cli.conftest import BAG, SPEC, Finished

Run = Callable[..., Finished]


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    """A spec of one observation and the action."""
    file = tmp_path / "arm.yaml"
    text = Path(SPEC).read_text(encoding="utf-8")
    kept = text[: text.index("  joint_velocity:")] + text[text.index("  action:") :]
    file.write_text(kept, encoding="utf-8")
    return file


@pytest.fixture
def export(robocache: Run, tmp_path: Path) -> Run:
    def run(*more: object) -> Finished:
        return robocache("export", BAG, "--spec", SPEC, "--out", tmp_path / "sets", "--media", "none", *more)

    return run


def test_each_spec_at_each_rate_is_a_dataset(export: Run, robocache: Run, arm: Path, tmp_path: Path) -> None:
    done = export("--spec", arm, "--rate-hz", 20, "--rate-hz", 10, "--json")
    reported = json.loads(done.out)
    names = ["panda_lift-20hz", "panda_lift-10hz", "arm-20hz", "arm-10hz"]
    assert [dataset["dataset"] for dataset in reported["datasets"]] == names
    assert [Path(dataset["report"]).exists() for dataset in reported["datasets"]] == [True] * 4
    assert [dataset["frames"] // 100 for dataset in reported["datasets"]] == [1, 0, 1, 0]
    assert reported["exit_code"] == robocache("validate", tmp_path / "sets").code == 0


def test_the_output_shows_each_dataset(export: Run, tmp_path: Path) -> None:
    out = export("--rate-hz", 20, "--rate-hz", 10).out
    for name in ("panda_lift-20hz", "panda_lift-10hz"):
        assert f"wrote {tmp_path / 'sets' / name}" in out.replace("\n", "")


def test_a_dry_run_shows_each_dataset(export: Run, arm: Path, tmp_path: Path) -> None:
    done = export("--spec", arm, "--dry-run")
    assert done.code == 0
    for text in ("panda_lift-50hz:", "arm-50hz:", "2 datasets: about "):
        assert text in done.out
    reported = json.loads(export("--spec", arm, "--dry-run", "--json").out)
    assert [dataset["dataset"] for dataset in reported["datasets"]] == ["panda_lift-50hz", "arm-50hz"]
    assert not (tmp_path / "sets").exists()


def test_one_spec_given_twice_is_one_line(export: Run) -> None:
    done = export("--spec", SPEC)
    assert done.code == 2
    assert done.err == (
        "robocache: outputs: panda_lift-50hz is the name of two datasets; name each spec and rate once, and specs of "
        "one name differently\n"
    )


def test_an_error_names_the_dataset(export: Run, arm: Path) -> None:
    arm.write_text(arm.read_text(encoding="utf-8").replace("/panda/joint_states", "/panda/joints"), encoding="utf-8")
    done = export("--spec", arm)
    assert done.code == 2
    assert done.err.startswith("robocache: arm-50hz: ")
    assert "has no topic /panda/joints" in done.err
