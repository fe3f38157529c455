"""The commands of the tutorials run as they show them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from test.cli.conftest import BAG, ROOT

TUTORIAL = ROOT / "docs" / "tutorial" / "bag_to_dataset.md"
BLOCKS = re.compile(r"```(bash|text)\n(.*?)```", re.DOTALL)


def test_the_tutorial_from_a_bag_to_a_dataset_runs_as_shown(tmp_path, monkeypatch, robocache):
    shutil.copytree(BAG, tmp_path / "my_recording")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    printed, ran = "", []
    for kind, block in BLOCKS.findall(TUTORIAL.read_text(encoding="utf-8")):
        if kind == "text":
            lines = [line.split() for line in printed.splitlines()]
            for shown in block.splitlines():
                assert shown.split() in lines, f"not in the output: {shown}"
            continue
        for command in block.splitlines():
            name, *arguments = shlex.split(command, comments=True)
            if name == "robocache":
                done = robocache(*arguments)
                assert not done.code, done.err
                printed, ran = done.out + done.err, [*ran, arguments[0]]
    assert ran == ["info", "check", "export", "validate"]
    assert (tmp_path / "dataset" / "meta" / "info.json").is_file()


def test_the_refusals_that_the_tutorial_lists_are_those_of_the_commands():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "robocache_ros" / "bags").rglob("*.py"))
    table = TUTORIAL.read_text(encoding="utf-8").partition("## If a command fails")[2]
    refusals = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(refusals) == 4
    assert [text for text in refusals if text not in sources] == []


SIMULATION = ROOT / "docs" / "tutorial" / "simulation_to_policy.md"
FEWER = {r"--episodes \d+ --seed": "--episodes 2 --seed", r"--episodes 10": "--episodes 1"}
FEWER[r"--steps \d+"] = "--steps 20"


class Terminal:
    """A command of the tutorial that runs beside others; `say` presses its keys."""

    def __init__(self, command, folder):
        for long, short in FEWER.items():
            command = re.sub(long, short, command)
        words = shlex.split(command)
        given = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=\S+", word))
        program, *arguments = words[len(given) :]
        start = {"robocache": [sys.executable, "-m", "robocache_ros"], "python": [sys.executable]}[program]
        self.log = folder / f"log{len(list(folder.glob('log*')))}"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                start + arguments, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **given},
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def say(self, line):
        assert self.process.stdin
        assert self.process.poll() is None, self.log.read_text()
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, *codes):
        try:
            assert self.process.wait(300) in (codes or (0,)), self.log.read_text()
        finally:
            self.process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_from_the_simulation_to_a_policy_runs_as_shown(tmp_path):
    for module in ("rclpy", "mujoco", "pyarrow"):
        pytest.importorskip(module)
    import pyarrow.parquet as pq

    from test.nodes.rig import repeating, until

    for name in ("config", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    steps = SIMULATION.read_text(encoding="utf-8").split("\n## ")[1:]
    blocks = [[block for _, block in BLOCKS.findall(step)] for step in steps]
    _, (record, expert), (export,), (train,), (run, drive), (late,), (again, exports), (logged, replay) = blocks
    left = []

    def terminal(command):
        left.append(Terminal(command.strip(), tmp_path))
        return left[-1]

    def start(recording, folder):
        starting = repeating(lambda: recording.say("start"), lambda: list((tmp_path / folder).glob("*.part")), 0.5)
        until(starting, "the recording", 120)

    def stop(running, *lines):
        for line in lines:
            running.say(line)
        running.end()

    def recorder(command):
        started = terminal(command)
        until(lambda: "actions are lines of stdin" in started.log.read_text(), "the recorder", 120)
        return started

    try:
        recording = recorder(record)
        simulation = terminal(expert)
        start(recording, "recordings")
        simulation.end(0, 1)
        stop(recording, "success", "q")
        terminal(export).end()
        terminal(train).end()

        for command in (run, late, logged):
            policy = terminal(command)
            simulation = terminal(drive)
            simulation.end(0, 1)
            stop(policy, "q")

        policy, recording = terminal(run), recorder(again)
        simulation = terminal(drive)
        start(recording, "corrections")
        policy.say("t")
        simulation.end(0, 1)
        stop(recording, "success", "q")
        stop(policy, "q")
        for command in exports.strip().splitlines():
            terminal(command).end()

        terminal(replay).end()
    finally:
        for each in left:
            each.process.kill()
            each.process.communicate()

    def rows(dataset):
        return pq.read_table(next((tmp_path / dataset).rglob("data/*/*.parquet")))["intervention"].to_pylist()

    assert not any(rows("dataset"))
    assert any(rows("all"))
    assert all(rows("corrected"))
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
