"""Where ROS wheels and a sourced ROS meet, the sourced one wins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHEELS = str(Path(sys.prefix) / "lib")
CODE = """
import os, sys
sys.argv[0] = os.environ["PROGRAM"]
import robocache_ros.nodes
print(os.environ["LD_LIBRARY_PATH"])
"""


@pytest.fixture
def ros(tmp_path):
    """What sourcing a ROS workspace amounts to here: an rclpy on PYTHONPATH."""
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy" / "__init__.py").touch()
    return tmp_path


def start(program, python_path):
    """Start Python as `program`, as it is after the wheels' hook has run."""
    env = os.environ | {
        "PROGRAM": program,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[2]), str(python_path))),
        "LD_LIBRARY_PATH": os.pathsep.join(("/opt/first", WHEELS, "/opt/second")),
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1",
    }
    return subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)


def test_own_command_starts_over_with_the_sourced_libraries(ros):
    assert start("/ws/lib/robocache_ros/fusion_node", ros).stdout.strip() == "/opt/first:/opt/second"


def test_other_process_gets_how_to_start(ros):
    done = start("policy.py", ros)

    assert done.returncode == 1
    assert f"{ros}/rclpy" in done.stderr
    assert "export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1" in done.stderr


def test_wheels_only_are_left_as_they_are():
    pytest.importorskip("rclpy")

    assert start("fusion_node", "").stdout.strip() == os.pathsep.join(("/opt/first", WHEELS, "/opt/second"))
