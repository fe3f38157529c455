"""`robocache calibrate`: its table, its patch, its document, and where its spec comes from."""

import json

import pytest
import yaml

from robocache_ros.bags.reader import Bag
from robocache_ros.recorder.run_log import RunLog
from robocache_ros.spec import load_spec
from test.bags.moving_robot import Robot, record, spec
from test.cli.conftest import BAG, SPEC


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """A recording of 15 s."""
    return record(tmp_path_factory.mktemp("moving") / "bag", Robot(seconds=15, joint_hz=250))


@pytest.fixture(scope="module")
def fusion(tmp_path_factory):
    """The spec of the recording."""
    path = tmp_path_factory.mktemp("spec") / "robot.yaml"
    path.write_text(yaml.safe_dump(spec().to_dict()))
    return path


def test_the_patch_is_printed_and_written_only_if_asked(robocache, moving, fusion, tmp_path):
    before, command = fusion.read_bytes(), ("calibrate", moving, "--spec", fusion)
    shown = robocache(*command)
    assert shown.code == 0
    assert "streams:\n  front:\n    latency_ms: " in shown.out
    assert list(tmp_path.iterdir()) == []
    command = (*command, "--write", tmp_path / "patch.yaml")
    assert robocache(*command).code == 0
    patch = yaml.safe_load((tmp_path / "patch.yaml").read_text())
    assert fusion.read_bytes() == before
    assert abs(patch["streams"]["front"]["latency_ms"] - 38) < 10
    assert abs(patch["run"]["action_latency_ms"] - 80) < 2
    raw = yaml.safe_load(before)
    raw["streams"]["front"].update(patch["streams"]["front"])
    assert load_spec({**raw, "run": patch["run"]}).stream("front").latency_ms == patch["streams"]["front"]["latency_ms"]
    again = robocache(*command)
    assert (again.code, ": exists;" in again.err) == (2, True)


def test_without_a_spec_the_streams_are_those_that_info_suggests(robocache, moving):
    reported = json.loads(robocache("calibrate", moving, "--json").out)
    assert (reported["command"], reported["exit_code"], reported["wrote"]) == ("calibrate", 0, None)
    camera, action = reported["measurements"]
    assert (camera["quantity"], camera["name"], camera["unit"], camera["refused"]) == ("latency", "image", "ms", "")
    assert camera["low"] <= camera["value"] <= camera["high"]
    assert (action["quantity"], action["name"], action["current"]) == ("action_latency", "command", None)
    assert reported["patch"]["streams"] == {"image": {"latency_ms": round(camera["value"], 1)}}


def test_the_spec_of_a_run_log_is_that_of_the_run(robocache, moving, tmp_path):
    run = tmp_path / "run.mcap"
    log = RunLog(run, spec(), {}, {"normalized": False})
    with Bag(moving) as bag:
        for message in bag.messages():
            log.message(message.topic, message.data, message.log_ns)
    log.close()
    reported = json.loads(robocache("calibrate", run, "--json").out)
    assert [each["name"] for each in reported["measurements"]] == ["front", "action"]
    assert reported["exit_code"] == 0


def test_a_recording_that_determines_nothing_is_refused_with_reasons(robocache, short, tmp_path):
    text = robocache("calibrate", short, "--spec", SPEC, "--write", tmp_path / "patch.yaml")
    reported = json.loads(robocache("calibrate", BAG, "--spec", SPEC, "--json").out)
    assert text.code == reported["exit_code"] == 1
    assert "front: latency not measured: " in text.out
    assert "nothing could be measured" in text.err
    assert not (tmp_path / "patch.yaml").exists()
    assert reported["patch"] == {}
    assert all(each["value"] is None and each["refused"] for each in reported["measurements"])


def test_the_page_with_the_clock_is_written_without_a_recording_which_is_needed_otherwise(robocache, tmp_path):
    result = robocache("calibrate")
    assert (result.code, "the recording is missing" in result.err) == (2, True)
    pytest.importorskip("segno")
    assert robocache("calibrate", "--qr-page", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
