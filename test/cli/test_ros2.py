"""`ros2 robocache`, run by ros2cli where it is installed."""

import json
import os
import re
import shutil
import subprocess
from importlib.metadata import entry_points

import pytest
import typer.main

from robocache_ros.cli.commands import app
from test.cli.conftest import ROOT

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_setup_has_a_verb_for_each_command():
    verbs = re.search(r"VERBS = \((.*?)\)", (ROOT / "setup.py").read_text(encoding="utf-8"), re.DOTALL)
    assert verbs
    assert verbs[1].replace('"', "").split() == COMMANDS


@pytest.fixture
def ros2(capsys):
    """Runs `ros2 robocache`; returns its exit code and what it printed."""
    cli = pytest.importorskip("ros2cli.cli", reason="ros2cli is a package of ROS")
    if len(entry_points(group="robocache_ros.verb")) < len(COMMANDS):
        pytest.skip("the installed robocache_ros has other entry points: install it again")

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(argv=["robocache", *words])
        return end.value.code, *capsys.readouterr()

    return run


def test_help_lists_the_commands_and_that_of_a_verb_is_that_of_the_command(ros2):
    code, out, err = ros2("--help")
    assert (code, err) == (0, "")
    assert re.findall(r"^  ([a-z-]+)  ", out.partition("Commands:")[2], re.MULTILINE) == COMMANDS
    code, out, _ = ros2("export", "--help")
    assert (code, "Usage: ros2 robocache export [OPTIONS] [BAG]..." in out) == (0, True)


def test_options_reach_the_command_its_exit_code_comes_back_and_a_mistake_is_one_line(ros2):
    code, out, _ = ros2("info", "--json", "/nowhere")
    assert (code, json.loads(out)["command"]) == (2, "info")
    code, _, err = ros2("check", "/nowhere.yaml")
    assert (code, err.startswith("robocache: /nowhere.yaml: ")) == (2, True)


WORDS = {"ex": "export", "info BAG --write": "--write-spec", "export --visibility d": "deployed", "bench l": "live"}


@pytest.mark.parametrize(("line", "expected"), WORDS.items())
def test_words_are_completed(ros2, tmp_path, line, expected):
    pytest.importorskip("argcomplete")
    program = shutil.which("ros2")
    if program is None:
        pytest.skip("ros2 is not on the path")
    line = f"ros2 robocache {line}"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    # A shell reads the words from this file descriptor.
    subprocess.run(f"{program} 8>{tmp_path}/words 9>/dev/null", shell=True, env=os.environ | asked, check=False)
    assert (tmp_path / "words").read_text().split("\x0b") == [f"{expected} "]
