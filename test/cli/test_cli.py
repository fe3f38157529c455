"""The commands as a user calls them: text, exit codes, and one document with --json."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros import __version__
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import printable
from robocache_ros.json_values import plain
from robocache_ros.spec import load_spec
from test.cli.conftest import BAG, ROOT, SPEC
from test.fuzz.messages import serialize


def test_version(robocache):
    assert robocache("--version") == (0, f"robocache_ros {__version__}\n", "")


def test_help_names_every_command_and_states_the_exit_codes(robocache):
    out = robocache("--help").out
    for command in ("info", "export", "report", "check", "schema", "env", "self-test", "play", "demo"):
        assert re.search(rf"\b{command}\b", out)
    assert "Exit codes: 0 success" in out


def test_play_passes_its_arguments_on(robocache):
    pytest.importorskip("rclpy", reason="needs the `ros` extra")
    result = robocache("play", BAG, "--rate", "0")
    assert (result.code, "rate: 0.0 is not between" in result.err) == (2, True)


def test_info_shows_topics_types_rates_and_delays(robocache):
    result, reported = robocache("info", BAG), robocache("info", BAG, "--json")
    assert result.code == 0
    row = next(line for line in result.out.splitlines() if "4437" in line)
    assert row.split()[1:] == ["4437", "491.6", "75", "152", "0.4", "/", "7.7"]
    for text in ("sensor_msgs/PointCloud2", "7 joints: position velocity", "320x240 jpeg"):
        assert text in result.out
    (recording,) = document(reported)["recordings"]
    topics = {topic["name"]: topic for topic in recording["topics"]}
    joints = topics["/panda/joint_states"]
    assert reported.err == ""
    assert (joints["messages"], joints["lost"], round(joints["rate_hz"], 1)) == (4437, 75, 491.6)
    assert topics["/panda/command"]["delay_ms"] is None


def test_check_shows_each_streams_slot_and_one_value_in_the_singular(robocache, tmp_path):
    result = robocache("check", SPEC)
    assert result.code == 0
    assert "48 columns" in result.out
    assert re.search(r"^ *0 to 6 +joint_position", result.out, re.MULTILINE)
    assert re.search(r"^ *23 to 29 +action \(action\)", result.out, re.MULTILINE)
    path = tmp_path / "robot.yaml"
    speed = "{topic: /speed, type: std_msgs/msg/Float32, dim: 1}"
    path.write_text(f"robocache: 1\nactions: none\nstreams:\n  speed: {speed}\n")
    assert re.search(r"^ *0 to 0 +speed +1 value +", robocache("check", path).out, re.MULTILINE)


def test_export_prints_its_outcome(robocache, tmp_path):
    result = robocache("export", BAG, "-s", SPEC, "-o", tmp_path / "out", "--media", "none", "--task", "lift the cube")
    assert result.code == 0, result.err
    assert "x real time" in result.out
    assert re.search(r"joint_position +99\.3 % +0\.7 % +- +4437 +0 +0 +11", result.out)
    assert (tmp_path / "out" / "report.html").exists()
    assert b"lift the cube" in (tmp_path / "out" / "meta" / "tasks.parquet").read_bytes()


def test_a_table_cuts_no_word_whatever_the_width(robocache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert "/camera/front/image_raw/compressed" in robocache("info", BAG).out
    out = robocache("check", SPEC).out
    assert "/camera/front/image_raw/compressed" in out
    assert re.search(r"gap 20, age 50 ms *$", out, re.MULTILINE)


def test_check_prints_every_error_of_a_spec(robocache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Path(SPEC).read_text().replace("align: slerp", "align: slurp").replace("robocache: 1\n", "robocache: 2\n")
    Path("wrong.yaml").write_text(text)
    result = robocache("check", "wrong.yaml")
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert ": robocache: " in first
    assert ": streams.ee_orientation." in second
    assert "did you mean 'slerp'?" in second
    assert max(len(first), len(second)) < 200


def test_a_first_spec_replaces_a_file_only_on_request(robocache, short, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("mine")
    refused = robocache("info", short, "--write-spec", mine)
    assert (refused.code, "exists" in refused.err, "replace it with --overwrite" in refused.err) == (2, True, True)
    assert mine.read_text() == "mine"
    assert robocache("info", short, "--write-spec", mine, "--overwrite").code == 0
    assert load_spec(mine).streams


@pytest.mark.parametrize("command", ["info URL", "check URL URL", "report URL --spec URL", "fleet status URL"])
def test_a_url_keeps_its_slashes(robocache, command):
    url = "nosuch://bucket/raw"
    result = robocache(*command.replace("URL", url).split())
    assert (result.code, url in result.err) == (2, True)


@pytest.mark.parametrize("command", [["info"], ["check", SPEC, "--fast"], ["export", "-s", SPEC, "--media", "none"]])
def test_the_name_of_a_recording_cannot_act_on_the_terminal_and_is_unchanged_in_json(
    robocache, short, tmp_path, command
):
    bag = tmp_path / "n[red]lift\x1b[31m\u202e\x9b\U000e0001é\n[ERROR] forged"
    bag.symlink_to(short)
    target = ["--out", tmp_path / "set\x1b[2J", "--jobs", "1"] if command[0] == "export" else []
    result = robocache(*command, bag, *target)
    assert result.code == 0
    assert not {"\x1b", "\u202e", "\x9b", "\U000e0001"} & set(result.out + result.err)
    assert not any(line.startswith("[ERROR] forged") for line in (result.out + result.err).splitlines())
    assert r"\x1b[" in result.out
    assert command[0] != "info" or result.out.startswith(printable(bag.name))
    if command[0] != "export":
        result = robocache(*command, bag, "--json")
        assert Path(json.loads(result.out)["recordings"][0]["path"]).name == bag.name
        assert result.out.replace("\n", "").isprintable()


def test_the_next_command_can_be_pasted_into_a_shell(robocache, short, tmp_path):
    bag, spec = tmp_path / "my lift; a", tmp_path / "first spec.yaml"
    bag.symlink_to(short)
    command = robocache("info", bag, "--write-spec", spec).out.rpartition("next: ")[2]
    assert shlex.split(command) == ["robocache", "export", str(bag), "--spec", str(spec), "--out", "DIR"]


def document(result, code=0):
    """The document of a command; its exit code and its errors are those of the process."""
    found: dict[str, Any] = json.loads(result.out)
    assert (result.code, found["exit_code"], bool(found["errors"])) == (code, code, code != 0)
    return found


def test_info_shows_a_line_for_each_of_several_recordings(robocache, tmp_path):
    for name in ("lift_10", "lift_9"):
        shutil.copytree(BAG, tmp_path / name)
    (tmp_path / "cut.mcap").write_bytes(b"\x89MCAP0\r\n")
    text, reported = robocache("info", tmp_path), document(robocache("info", tmp_path, "--json"), 1)
    assert text.code == 1
    assert "3 recordings" in text.out
    assert text.out.index("lift_9") < text.out.index("lift_10")
    assert "cut.mcap" in text.err
    assert [Path(recording["path"]).name for recording in reported["recordings"]] == ["cut.mcap", "lift_9", "lift_10"]


def test_check_states_the_spec_and_the_validity_to_expect_and_no_ticks_if_it_is_fast(robocache):
    reported = document(robocache("check", SPEC, BAG, "--json"))
    (recording,) = reported["recordings"]
    assert (reported["spec"]["rate_hz"], recording["matches"]) == (50, True)
    assert (recording["expected"]["frames"], len(recording["expected"]["episodes"])) == (444, 2)
    assert recording["streams"]["joint_position"]["validity"]["invalid"] == pytest.approx(5 / 450)
    (recording,) = document(robocache("check", SPEC, BAG, "--json", "--fast"))["recordings"]
    assert (recording["matches"], recording["expected"]) == (True, None)


def test_check_names_what_does_not_match(robocache, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    text = Path(SPEC).read_text(encoding="utf-8")
    wrong.write_text(text.replace("/panda/command", "/panda/comand").replace("panda_joint3", "panda_jiont3"))
    result = robocache("check", wrong, BAG)
    reported = document(robocache("check", wrong, BAG, "--json"), 1)
    assert result.code == 1
    assert "streams.action: no topic /panda/comand; did you mean '/panda/command'?" in result.err
    assert "streams.joint_position: names: no joint panda_jiont3; did you mean 'panda_joint3'?" in result.err
    assert reported["recordings"][0]["streams"]["gripper"]["problems"] == []


def test_check_names_a_damaged_file_of_a_folder_once(robocache, tmp_path):
    messages = [("/text", 10**18 + k, serialize("std_msgs/msg/String", {"data": "a" * 100})) for k in range(200)]
    folder = write_bag(tmp_path / "bag", {"/text": "std_msgs/msg/String"}, messages, storage="sqlite3")
    (file,) = folder.glob("*.db3")
    data = file.read_bytes()
    file.write_bytes(data[:-4096] + b"\xff" * 100 + data[-3996:])
    found = robocache("check", SPEC, folder)
    assert found.code == 1
    assert f": {file.name}: cannot be read" in found.err
    assert f"{folder.name}/{file.name}" not in found.err
    assert f"sqlite3 {file.name} .recover" in found.err


def test_check_of_a_long_recording_has_a_title_of_one_line_and_divides_numbers_alike(robocache, tmp_path):
    one = serialize("std_msgs/msg/Float32", {"data": 1.0})
    messages = [("/x", 10**18 + 20_000_000 * k, one) for k in range(5000) if not 1000 <= k < 3500]
    bag = write_bag(tmp_path / "a_recording_with_a_name_as_long_as_any", {"/x": "std_msgs/msg/Float32"}, messages)
    spec = tmp_path / "spec.yaml"
    stream = "x: {topic: /x, type: std_msgs/msg/Float32, dim: 1, align: hold, max_age_ms: 20, stamp: receive}"
    spec.write_text(f"robocache: 1\nrate_hz: 50\ndelay_ms: 20\nstreams:\n  {stream}\n", encoding="utf-8")
    first, *_, last = robocache("check", spec, bag).out.splitlines()
    assert first.endswith("ticks in 2 episodes")
    assert re.search(r" · 2,\d{3} of 5,000 ticks", first)
    assert re.match(r"2,\d{3} of 5,000 ticks left out: 2,\d{3} without a value of x \(2,\d{3} in between", last)


def test_a_warning_of_the_engine_is_marked_as_one():
    code = "import logging\nfrom robocache_ros.cli.program import run\n"
    code += "run(lambda **given: logging.getLogger('robocache_ros.engine').warning('late'), [], 'robocache')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr == "robocache: WARNING: late\n"


def test_export_and_report_state_what_was_made(robocache, short, tmp_path):
    manifest, html = tmp_path / "lifts.csv", tmp_path / "deep" / "report.html"
    manifest.write_text(f"recording,task,from,to,success\n{short},reach,,0.5,true\n{short},lift,1,2,\n")
    options = ("-s", SPEC, "--media", "none", "--json")
    made = document(robocache("export", "--manifest", manifest, *options, "-o", tmp_path / "set", "-j", 1))
    assert [(each["task"], each["success"]) for each in made["recordings"]] == [("reach", True), ("lift", None)]
    assert made["episodes"] == 2
    assert 65 < made["frames"] == sum(each["frames"] for each in made["recordings"]) <= 75
    reported = document(robocache("report", short, "-s", SPEC, "-o", html, "--visibility", "deployed", "--json"))
    assert reported["recordings"][0]["ticks"] == 124
    seen = "the samples that the robot would have received 100 ms after each tick"
    assert seen in " ".join(html.read_text().split())
    assert json.loads(html.with_suffix(".json").read_text(encoding="utf-8")).items() <= reported.items()


EXPORT = ("export", BAG, "-s", SPEC, "-o", "/tmp/never", "--media", "none")
PIECES = ("--pieces", "/tmp/never-pieces")
NO_FOLDER = "/nowhere is not a folder; give one with ROS packages, <package>/msg/<Type>.msg"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("info", "/nowhere"), "/nowhere: no such recording"),
        (("check", "/nowhere.yaml"), "/nowhere.yaml: cannot be read"),
        (("export", BAG, "-o", "/tmp/never"), "--spec"),
        ((*EXPORT, "-s", SPEC), "outputs: panda_lift-50hz is the name of two datasets; name each spec and rate once"),
        ((*EXPORT, "--shard", "0/2"), "add --pieces DIR"),
        ((*EXPORT, "--shard", "2/2", *PIECES), "shard: 2/2 does not exist; the shards of 2 are 0/2 to 1/2"),
        ((*EXPORT, "--shard", "0/2", "--dry-run", *PIECES), "--shard: not with --dry-run"),
        ((*EXPORT, "--msg-path", "/nowhere"), NO_FOLDER),
        (("info", BAG, "--msg-path", "/nowhere"), NO_FOLDER),
        (("check", SPEC, BAG, "--msg-path", "/nowhere"), NO_FOLDER),
        ((*EXPORT, "-f", "zip"), "formats: 'zip' is not one of lerobot"),
        ((*EXPORT, "--manifest", "x"), "named and in a manifest"),
        ((*EXPORT, "--action-offset", "30ms"), "action_offset: 30 ms is 1.50 ticks of 20 ms; use whole ticks"),
        ((*EXPORT, "--episode-topic", "episode"), "--episode-topic: 'episode' is not an absolute topic name"),
        ((*EXPORT, "--split", "-1"), "--split: -1.0 is not a number from 0"),
        ((*EXPORT, "--rate-hz", "0"), "rate_hz: 0 is not an integer from 1 to 1000"),
        (("export", "-s", SPEC, "-o", "/tmp/never"), "recordings: none given; name at least one, or give --manifest"),
        (("report", "/nowhere", "-s", SPEC), "/nowhere: no such recording"),
        (("info", "--nonsense"), "--nonsense"),
        (("info", "/nowhere\n[ERROR] forged\x1b[31m"), r"/nowhere\n[ERROR] forged"),
    ],
)
def test_a_mistake_is_one_line_exit_2_and_in_the_document(robocache, arguments, expected):
    text, result = robocache(*arguments), robocache(*arguments, "--json")
    assert expected in " ".join(document(result, 2)["errors"])
    assert (text.code, result.err) == (2, "")
    if "Usage: " not in text.err:  # which typer prints, perhaps in colour
        assert expected in text.err
        assert (text.err.count("\n"), "\x1b" in text.err) == (1, False)
        if arguments[0] == "export":
            (line,) = map(json.loads, robocache(*arguments, "--log-json").err.splitlines())
            assert (line["event"], expected in line["message"]) == ("error", True)


def test_values_are_plain_json():
    values = {"a": np.float64("nan"), "b": np.arange(2), "c": Path("x\udcff"), 1: (True, None)}
    expected = {"a": None, "b": [0, 1], "c": "x\\udcff", "1": [True, None]}
    assert json.loads(json.dumps(plain(values), allow_nan=False)) == expected
