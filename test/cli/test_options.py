"""The options of an export, declared once: on the command line, in the spec, and in Python; several datasets."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from typer.models import OptionInfo

import robocache_ros
from robocache_ros.bags.write import write_bag
from robocache_ros.cli.commands import app
from robocache_ros.cli.export import export as export_command
from robocache_ros.cli.options import flags, help_line
from robocache_ros.datasets import open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.formats.registry import WRITERS
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import flags_of, keys_of, read_values
from test.cli.conftest import BAG, ROOT, SPEC
from test.fuzz.messages import numbers
from test.fuzz.recordings import ARRAY, MS, START_NS

SECTION = "dataset: {media: none, task: lift the cube, split_s: 1, action_offset: 1, preset: 12, formats: [lerobot]}\n"
FLAGS = ["--media", "none", "--split", "1", "--action-offset", "1", "--preset", "12", "--format", "lerobot", "--task"]
VALUES: dict[str, Any] = {  # of the fields whose type is not a number, a boolean or a choice
    "episode_topic": "/episode", "task_topic": "/task", "action_from": ["arm", "hand"], "action_offset": "40ms",
    "formats": ["lerobot", "delta"], "preset": "12", "task": "lift", "robot_type": "panda", "msg_path": [str(ROOT)],
    "pieces": "/pieces", "shard": "0/2", "device": "cuda:1", "address": "head:6379", "per_task": "cpus=2",
    "cache_bytes": "16GB",
}  # fmt: skip


def value_of(name):
    """Return a value of an option that is not its default, and how a command line gives it."""
    field = keys_of(ExportOptions)[name]
    if name in VALUES:
        return VALUES[name], VALUES[name]
    schema = field.metadata["type"].schema
    if schema.get("type") == "boolean":
        return not field.default, not field.default
    value = schema["enum"][-1] if "enum" in schema else schema["maximum"]
    return value, str(value)


@pytest.mark.parametrize("name", flags(ExportOptions))
def test_an_option_is_the_same_as_flag_and_keyword_and_in_the_spec(name):
    value, text = value_of(name)
    made = replace(ExportOptions(), **read_values(ExportOptions, {name: text}, flags=True))
    assert made == ExportOptions(**{name: value})
    assert getattr(made, name) != getattr(ExportOptions(), name)
    if name in keys_of(DatasetOptions, in_files=True):
        raw = {**load_spec(SPEC).to_dict(), "dataset": {name: value}}
        assert load_spec(raw).dataset == DatasetOptions(**{name: value})
        assert load_spec(load_spec(raw).to_dict()) == load_spec(raw)


def test_no_two_options_are_alike_and_each_field_has_one():
    names = [flag for field in flags(ExportOptions).values() for flag in flags_of(field)]
    assert len(set(names)) == len(names)
    assert {field.name for field in fields(ExportOptions)} == {*flags(ExportOptions), "rate_hz"}  # has several values


def test_each_wrong_option_is_a_line(robocache, tmp_path):
    wrong = ["--media", "imag", "--crf", "x", "--jobs", "0", "--pieces", "s3:/bucket"]
    result = robocache("export", BAG, "-s", SPEC, "-o", tmp_path / "out", *wrong)
    assert result.code == 2
    assert set(result.err.splitlines()) == {
        "robocache: --media: 'imag' is not one of video, image, none; did you mean 'image'?",
        "robocache: --crf: 'x' is not an integer from 0 to 63; change it",
        "robocache: --jobs: 0 is not an integer from 1 to 4096; change it",
        "robocache: --pieces: s3:/bucket is not a URL; write s3://bucket",
    }


def test_a_wrong_option_in_the_spec_is_shown_where_it_stands(tmp_path):
    path, text = tmp_path / "robot.yaml", Path(SPEC).read_text()
    path.write_text(f"{text}dataset:\n  media: imag\n  msg_path: [.]\n  rate_hz: 10\n")
    with pytest.raises(RoboCacheError) as error:
        load_spec(path)
    line = text.count("\n") + 2
    assert f"robot.yaml:{line}:3: dataset.media: 'imag' is not one of" in str(error.value)
    for name in ("msg_path", "rate_hz"):
        assert f"dataset.{name}: no such key" in str(error.value)


def test_flags_the_section_and_keywords_make_the_same_dataset(robocache, short, tmp_path):
    spec = tmp_path / "robot.yaml"
    spec.write_text(Path(SPEC).read_text() + SECTION)
    keep = ("--pieces", tmp_path / "pieces", "--jobs", 1, "--json")
    options = {"formats": ["lerobot"], "media": "none", "task": "lift the cube", "split_s": 1, "action_offset": 1}
    out = {name: tmp_path / name / "lift" for name in ("flags", "section", "keywords")}
    flags_ = json.loads(robocache("export", short, "-s", SPEC, "-o", out["flags"], *FLAGS, "lift the cube", *keep).out)
    section = json.loads(robocache("export", short, "-s", spec, "-o", out["section"], *keep).out)
    keywords = robocache_ros.export(short, SPEC, out["keywords"], preset="12", pieces=tmp_path / "pieces", **options)
    assert len({(folder / "SHA256SUMS").read_text() for folder in out.values()}) == 1
    reused = "1 of 1 recording was converted by an earlier export and reused"
    assert (flags_["notes"], section["notes"], keywords.notes) == ([], [reused], (reused,))
    assert (keywords.episodes, keywords.frames) == (3, flags_["frames"])

    other = robocache("export", short, "-s", spec, "-o", tmp_path / "other", "--split", 4, "--dry-run", "--json")
    assert json.loads(other.out)["episodes"] == 2  # the flag comes first
    shown = "an export makes: split_s 1.0; action_offset 1; formats lerobot; media none; preset 12"
    assert shown in robocache("check", spec).out
    counted = json.loads(robocache("check", spec, short, "--json").out)["recordings"][0]["expected"]
    assert len(counted["episodes"]) == 3


def test_the_function_has_the_options_as_keywords(tmp_path):
    names = set(inspect.signature(robocache_ros.export).parameters)
    assert names == {"recordings", "spec", "out", "progress", *(field.name for field in fields(ExportOptions))}
    for wrong, line in (
        ({"madia": "none"}, "madia: no such option; did you mean 'media'"),
        ({"crf": 64}, "crf: 64 is"),
        ({"shard": "0/2", "pieces": tmp_path}, "shard: belongs to the command"),
    ):
        with pytest.raises(RoboCacheError, match=line):
            robocache_ros.export([BAG], SPEC, tmp_path / "out", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_the_section_that_info_writes_is_one_once_its_comment_signs_are_removed(robocache, tmp_path):
    path = tmp_path / "robot.yaml"
    assert robocache("info", BAG, "--write-spec", path).code == 0
    text = path.read_text()
    start = text.index("# dataset:")
    path.write_text(text[:start] + re.sub(r"^# ", "", text[start:], flags=re.MULTILINE))
    assert load_spec(path).dataset == DatasetOptions()


def test_help_of_export_names_the_formats_and_is_a_screen_and_a_half_in_panels():
    (named,) = re.findall(r"Formats: (.+?)\.", " ".join((export_command.__doc__ or "").split()))
    assert set(named.split(", ")) == set(WRITERS)
    assert [field.name for field in flags(ExportOptions).values() if len(help_line(field)) > 64] == []
    if tuple(map(int, typer.__version__.split(".")[:2])) < (0, 12):
        return  # its panels are others
    command = [sys.executable, "-m", "robocache_ros", "export", "--help"]
    environment = {"COLUMNS": "120", "TERMINAL_WIDTH": "120", "PATH": ""}
    out = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    panels = ("Input", "Output", "Episodes", "Actions", "Images", "Machines")
    assert [panel for panel in panels if f"─ {panel}" not in out] == []
    assert len(out.splitlines()) <= 76


def test_the_commands_load_no_library_before_one_runs_and_info_does_without_torch():
    code = "import sys, robocache_ros.cli.commands as cli; print(*(n for n in sys.argv[1:] if n in sys.modules))"
    code += f"; cli.app(['info', {BAG!r}], standalone_mode=False); assert 'torch' not in sys.modules"
    libraries = ["numpy", "torch", "yaml", "fsspec", "pyarrow", "h5py", "av", "rclpy", "robocache_ros.engine"]
    command = [sys.executable, "-c", code, *libraries]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == ""


def test_options_of_episodes_and_actions_reach_the_dataset(robocache, tmp_path):
    options = "--media none --rate-hz 20 --split 2 --trim-idle 30 --no-episode-file --action delta --json"
    action = "--action-from joint_position --action-offset 100ms"
    out = tmp_path / "out"
    result = robocache("export", BAG, "--spec", SPEC, "--out", out, *options.split(), *action.split())
    (recording,) = json.loads(result.out)["recordings"]
    assert {episode["frames"] for episode in recording["episodes"][:3]} == {38}
    assert recording["left_out"]["reasons"]["without their action"] == 2 * len(recording["episodes"])
    reported = json.loads((out / "meta" / "robocache.json").read_text())
    assert (reported["spec"]["rate_hz"], reported["options"]["action_offset"]) == (20, "100ms")
    assert "delta_action.0" in {column["name"] for column in reported["layout"]["columns"]}


def test_a_recording_below_the_quality_in_the_spec_is_reported_all_the_same(robocache, short, tmp_path):
    spec = tmp_path / "strict.yaml"
    spec.write_text(Path(SPEC).read_text() + "quality: {max_invalid: 0, min_frames: 10000}\n")
    export = robocache("export", short, "--spec", spec, "--out", tmp_path / "out", "--media", "none")
    assert (export.code, "above quality.max_invalid, 0.00%" in export.err) == (2, True)
    assert robocache("report", short, "--spec", spec, "--out", tmp_path / "report.html").code == 0


@pytest.mark.parametrize(("low", "rate_hz"), [(0, 50), (-180, 50), (0, 200)], ids=["0 to 360", "-180 to 180", "faster"])
def test_a_yaw_in_degrees_crosses_the_wrap_and_not_the_whole_range(robocache, tmp_path, low, rate_hz):
    """A turn of 60 deg a second, sampled at 20 Hz from 10 deg before the wrap."""

    def truth(seconds):
        return (low + 350 + 60 * seconds - low) % 360 + low

    messages = [("/yaw", START_NS + 50 * k * MS, numbers(truth(0.05 * k))) for k in range(40)]
    bag = write_bag(tmp_path / "turn", {"/yaw": ARRAY}, messages)
    yaw = {"topic": "/yaw", "type": ARRAY, "dim": 1, "align": "angle", "unit": "deg"}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"robocache": 1, "rate_hz": 50, "actions": "none", "streams": {"yaw": yaw}}))
    assert robocache("export", bag, "--spec", spec, "--out", tmp_path / "out", "--format", "mcap").code == 0
    sample = open_dataset("mcap", tmp_path / "out", target_hz=rate_hz)[0]
    ages_s = (sample["tick_ns"].numpy() - START_NS) / 1e9
    between = ages_s < 1.95  # later ticks hold the last sample
    apart = (sample["fused"].numpy()[:, 0] - truth(ages_s) + 180) % 360 - 180
    assert np.abs(apart[between]).max() < 1e-3  # the wrap, in float32
    assert low <= sample["fused"].min()
    assert sample["fused"].max() <= low + 360


@pytest.fixture
def arm(tmp_path):
    """A spec of one observation and the action."""
    file, text = tmp_path / "arm.yaml", Path(SPEC).read_text(encoding="utf-8")
    file.write_text(text[: text.index("  joint_velocity:")] + text[text.index("  action:") :], encoding="utf-8")
    return file


@pytest.fixture
def export(robocache, short, tmp_path):
    command = ("export", short, "--spec", SPEC, "--out", tmp_path / "sets", "--media", "none")
    return lambda *more: robocache(*command, *more)


def test_each_spec_at_each_rate_is_a_dataset(export, robocache, arm, tmp_path):
    reported = json.loads(export("--spec", arm, "--rate-hz", 20, "--rate-hz", 10, "--json").out)
    frames = {"panda_lift-20hz": 50, "panda_lift-10hz": 20, "arm-20hz": 50, "arm-10hz": 20}
    assert {each["dataset"]: round(each["frames"], -1) for each in reported["datasets"]} == frames
    assert [Path(dataset["report"]).exists() for dataset in reported["datasets"]] == [True] * 4
    assert reported["exit_code"] == robocache("validate", tmp_path / "sets").code == 0


def test_the_output_of_an_export_and_of_a_dry_run_shows_each_dataset(export, arm, tmp_path):
    done = export("--spec", arm, "--dry-run")
    assert done.code == 0
    for text in ("panda_lift-50hz:", "arm-50hz:", "2 datasets: about "):
        assert text in done.out
    reported = json.loads(export("--spec", arm, "--dry-run", "--json").out)
    assert [dataset["dataset"] for dataset in reported["datasets"]] == ["panda_lift-50hz", "arm-50hz"]
    assert not (tmp_path / "sets").exists()
    out = export("--rate-hz", 20, "--rate-hz", 10).out
    for name in ("panda_lift-20hz", "panda_lift-10hz"):
        assert f"wrote {tmp_path / 'sets' / name}" in out.replace("\n", "")


def test_an_error_names_the_dataset(export, arm):
    arm.write_text(arm.read_text(encoding="utf-8").replace("/panda/joint_states", "/panda/joints"), encoding="utf-8")
    done = export("--spec", arm)
    assert (done.code, done.err.startswith("robocache: arm-50hz: ")) == (2, True)
    assert "has no topic /panda/joints" in done.err


def commands(group: typer.Typer) -> Iterator[Callable[..., Any]]:
    yield from (each.callback for each in group.registered_commands if each.callback)
    for each in group.registered_groups:
        assert each.typer_instance
        yield from commands(each.typer_instance)


def test_an_option_with_the_name_of_its_value_declares_its_own_name():
    """Version 0.27 of typer calls it `--BAG` otherwise."""
    options = [
        (name, option)
        for command in commands(app)
        for name, parameter in inspect.signature(command).parameters.items()
        for option in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(option, OptionInfo)
    ]
    assert len(options) > 100
    for name, option in options:
        if (option.metavar or "").lower() == name:
            assert option.default == f"--{name}"  # the first declaration, where the option annotates a parameter
