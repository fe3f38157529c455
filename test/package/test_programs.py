"""The installed programs: a missing extra is one line that names it, no traceback at an interrupt or a closed pipe."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.programs import run

ROOT = Path(__file__).parents[2]
BAG = str(ROOT / "test" / "data" / "panda_lift")

# Runs a program in an interpreter in which the modules named in BLOCKED cannot be imported.
START = """
import os, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from robocache_ros import programs
sys.exit(getattr(programs, sys.argv.pop(1))())
"""


def python(*arguments, **env):
    """Run Python to its end in a changed environment."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | env, cwd=ROOT, capture_output=True, text=True, check=False)


def start(program, *arguments, blocked=""):
    """Run a program to its end."""
    return python("-c", START, program, *arguments, BLOCKED=blocked)


def one_line(done):
    """The only line that a program prints, to stderr; its exit code is 2."""
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("program", "arguments", "blocked", "module", "extra"),
    [
        ("robocache", ["--help"], "typer", "typer", "cli"),
        ("robocache", ["--version"], "click typer rich", "typer", "cli"),
        ("fusion_node", [], "rclpy", "rclpy", "ros"),
        pytest.param(
            *("robocache", ["info", BAG], "backports", "backports", "bags"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="zstd is part of Python 3.14"),
        ),
        ("robocache", ["play", BAG], "rclpy", "rclpy", "ros"),
        ("bag_player", [BAG], "rclpy", "rclpy", "ros"),
        ("bag_player", [BAG], "rosgraph_msgs", "rosgraph_msgs", "ros"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(program, arguments, blocked, module, extra):
    if module == "rosgraph_msgs":
        pytest.importorskip("rclpy", reason="needs the `ros` extra")
    line = one_line(start(program, *arguments, blocked=blocked))
    assert line.startswith(f"{program}: {module}: not installed; ")
    assert line.endswith(f"install it with: pip install 'robocache_ros[{extra}]'")


def test_mistake_of_the_user_is_one_line_and_exit_code_2(capsys):
    def mistaken():
        raise RoboCacheError("rate: 0 is not between 0.001 and 1000")

    assert run("bag_player", mistaken) == 2
    assert capsys.readouterr().err == "bag_player: rate: 0 is not between 0.001 and 1000\n"


def test_help_of_a_command_that_needs_ros_needs_none():
    pytest.importorskip("typer")
    done = start("robocache", "demo", "--help", blocked="rclpy rosgraph_msgs")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--rate" in done.stdout


def test_a_typer_that_is_too_old_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("__version__ = '0.7.0'")
    line = one_line(python("-m", "robocache_ros", "--version", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"))
    assert line.startswith("robocache: typer: too old or broken (version 0.7.0, needs 0.9); install it with: ")


def test_a_module_that_no_extra_installs_keeps_its_traceback():
    pytest.importorskip("typer")
    done = start("robocache", "--version", blocked="enum_of_nobody robocache_ros.cli")
    assert done.returncode == 0  # nothing of that name is imported
    done = start("robocache", "check", "x.yaml", blocked="yaml")
    assert "ModuleNotFoundError: No module named 'yaml'" in done.stderr


def test_a_closed_pipe_is_silent():
    pytest.importorskip("typer")
    command = f"{sys.executable} -m robocache_ros schema | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_an_interrupt_while_modules_load_is_no_traceback(tmp_path):
    code = "import sys, time\nsys.stdout.write('loading')\nsys.stdout.flush()\ntime.sleep(60)"
    (tmp_path / "typer.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "-m", "robocache_ros", "env"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(7) == b"loading"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""


LIBRARIES = f"/opt/first:{Path(sys.prefix) / 'lib'}:/opt/second"
CODE = """
import os, sys
sys.argv[0] = os.environ["PROGRAM"]
import robocache_ros.nodes
print(os.environ["LD_LIBRARY_PATH"])
"""


@pytest.fixture
def ros(tmp_path):
    """An rclpy on PYTHONPATH, which is what sourcing a ROS workspace amounts to here."""
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy" / "__init__.py").touch()
    return tmp_path


def start_as(program, python_path):
    """Start Python as `program`, as it is after the wheels' hook has run."""
    return python(
        "-c",
        CODE,
        PROGRAM=program,
        PYTHONPATH=f"{ROOT}{os.pathsep}{python_path}",
        LD_LIBRARY_PATH=LIBRARIES,
        _ROS_WHEELS_BOOTSTRAP_COMPLETE="1",
    )


def test_own_command_starts_over_with_the_sourced_libraries(ros):
    assert start_as("/ws/lib/robocache_ros/fusion_node", ros).stdout.strip() == "/opt/first:/opt/second"


def test_other_process_gets_how_to_start(ros):
    done = start_as("policy.py", ros)
    assert done.returncode == 1
    assert f"{ros}/rclpy" in done.stderr
    assert "export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1" in done.stderr


def test_wheels_only_are_left_as_they_are():
    pytest.importorskip("rclpy")
    assert start_as("fusion_node", "").stdout.strip() == LIBRARIES
