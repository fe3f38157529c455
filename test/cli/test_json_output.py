"""`--json`: one document on stdout and nothing else, with the same exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.json_values import plain
from test.cli.conftest import BAG, SPEC, Finished


def document(result: Finished, code: int = 0) -> dict[str, Any]:
    """The document of a command; its exit code and its errors are those of the process."""
    found: dict[str, Any] = json.loads(result.out)
    assert (result.code, found["exit_code"], bool(found["errors"])) == (code, code, code != 0)
    return found


def test_info_describes_a_recording(robocache: Callable[..., Finished]) -> None:
    result = robocache("info", BAG, "--json")
    (recording,) = document(result)["recordings"]
    topics = {topic["name"]: topic for topic in recording["topics"]}
    joints = topics["/panda/joint_states"]
    assert result.err == ""
    assert (joints["messages"], joints["lost"], round(joints["rate_hz"], 1)) == (4437, 75, 491.6)
    assert topics["/panda/command"]["delay_ms"] is None


def test_info_shows_a_line_for_each_of_several_recordings(robocache: Callable[..., Finished], tmp_path: Path) -> None:
    for name in ("lift_10", "lift_9"):
        shutil.copytree(BAG, tmp_path / name)
    (tmp_path / "cut.mcap").write_bytes(b"\x89MCAP0\r\n")
    text, reported = robocache("info", tmp_path), document(robocache("info", tmp_path, "--json"), 1)
    assert text.code == 1
    assert "3 recordings" in text.out
    assert text.out.index("lift_9") < text.out.index("lift_10")
    assert "cut.mcap" in text.err
    assert [Path(recording["path"]).name for recording in reported["recordings"]] == ["cut.mcap", "lift_9", "lift_10"]


def test_check_states_the_spec_and_the_validity_to_expect(robocache: Callable[..., Finished]) -> None:
    reported = document(robocache("check", SPEC, BAG, "--json"))
    (recording,) = reported["recordings"]
    assert reported["spec"]["rate_hz"] == 50
    assert recording["matches"] is True
    assert recording["expected"]["frames"] == 444
    assert len(recording["expected"]["episodes"]) == 2
    assert recording["streams"]["joint_position"]["validity"]["invalid"] == pytest.approx(5 / 450)


def test_check_that_is_fast_reads_no_ticks(robocache: Callable[..., Finished]) -> None:
    (recording,) = document(robocache("check", SPEC, BAG, "--json", "--fast"))["recordings"]
    assert (recording["matches"], recording["expected"]) == (True, None)


def test_check_names_what_does_not_match(robocache: Callable[..., Finished], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = Path(SPEC).read_text(encoding="utf-8")
    wrong.write_text(text.replace("/panda/command", "/panda/comand").replace("panda_joint3", "panda_jiont3"))
    result = robocache("check", wrong, BAG)
    reported = document(robocache("check", wrong, BAG, "--json"), 1)
    assert result.code == 1
    assert "streams.action: no topic /panda/comand; did you mean '/panda/command'?" in result.err
    assert "streams.joint_position: names: no joint panda_jiont3; did you mean 'panda_joint3'?" in result.err
    assert reported["recordings"][0]["streams"]["gripper"]["problems"] == []


def test_export_and_report_state_what_was_made(robocache: Callable[..., Finished], tmp_path: Path) -> None:
    manifest = tmp_path / "lifts.csv"
    manifest.write_text(f"recording,task,from,to,success\n{BAG},reach,,1,true\n{BAG},lift,1,2,\n")
    options = ("-s", SPEC, "--media", "none", "--json")
    made = document(robocache("export", "--manifest", manifest, *options, "-o", tmp_path / "set", "-j", 1))
    assert [(recording["task"], recording["success"]) for recording in made["recordings"]] == [
        ("reach", True),
        ("lift", None),
    ]
    assert (made["frames"], made["episodes"]) == (99, 2)
    reported = document(robocache("report", BAG, "-s", SPEC, "-o", tmp_path / "report.html", "--json"))
    assert reported["recordings"][0]["ticks"] == 450
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written.items() <= reported.items()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("info", "/nowhere"), "/nowhere: no such recording"),
        (("check", "/nowhere.yaml"), "/nowhere.yaml: cannot be read"),
        (("export", BAG, "-o", "/tmp/never"), "--spec"),
        (("export", BAG, "-s", SPEC, "-o", "/tmp/never", "-f", "zip"), "'zip' is not one of"),
        (("export", BAG, "-s", SPEC, "-o", "/tmp/never", "--manifest", "x"), "named and in a manifest"),
        (("export", "-s", SPEC, "-o", "/tmp/never"), "recordings: none given; name at least one, or give --manifest"),
        (("report", "/nowhere", "-s", SPEC), "/nowhere: no such recording"),
        (("info", "--nonsense"), "--nonsense"),
    ],
)
def test_errors_are_in_the_document(
    robocache: Callable[..., Finished], arguments: tuple[str, ...], expected: str
) -> None:
    result = robocache(*arguments, "--json")
    assert expected in " ".join(document(result, 2)["errors"])
    assert result.err == ""


def test_errors_are_lines_of_json_in_a_log(robocache: Callable[..., Finished]) -> None:
    result = robocache("export", "/nowhere", "-s", SPEC, "-o", "/tmp/never", "--log-json")
    (line,) = result.err.splitlines()
    assert result.code == 2
    assert json.loads(line)["event"] == "error"
    assert json.loads(line)["message"].startswith("/nowhere: no such recording")


def test_values_are_plain_json() -> None:
    values = {"a": np.float64("nan"), "b": np.arange(2), "c": Path("x\udcff"), 1: (True, None)}
    assert json.loads(json.dumps(plain(values), allow_nan=False)) == {
        "a": None,
        "b": [0, 1],
        "c": "x\\udcff",
        "1": [True, None],
    }
