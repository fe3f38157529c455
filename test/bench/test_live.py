"""The complete measurement, small: real processes over real DDS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")
from typer import Typer
from typer.testing import CliRunner

from robocache_ros.bench import command, live, processes
from robocache_ros.bench.load import Load
from robocache_ros.errors import RoboCacheError
from test import forked
from test.nodes.rig import until

pytestmark = pytest.mark.ros

SMALL = Load(cameras=1, width=32, height=24, camera_hz=10, points=50, cloud_hz=5, joints_hz=50, imu_hz=20, pose_hz=10)


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "WARM_UP_S", 1.0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def children_of(pid: int | str) -> set[str]:
    return {child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.mark.slow
def test_the_complete_measurement_of_node_and_peer(tmp_path):
    before = children_of("self")
    live.main(live.Options(SMALL, seconds=2.0, device="cpu", delay_ms=20.0), naive=True, out=tmp_path)

    assert children_of("self") == before  # nothing is left running
    assert {"live.json", "live.png"} <= set(os.listdir(tmp_path))
    found = json.loads((tmp_path / "live.json").read_text())
    node, naive = found["node"], found["naive"]
    assert set(node["streams"]) == {"camera0", "cloud", "joints", "imu", "pose"}
    assert all(0 < stream["received"] <= stream["sent"] for stream in node["streams"].values())
    assert node["frames_in_consumer"] > 0  # without a copy
    assert node["tensors_in_consumer"]["cloud"] == "(64, 64, 64) torch.uint8 cpu"
    assert node["jitter_ms"]["count"] == node["ticks"]
    assert naive["streams"]["joints"]["received"] > 0
    assert naive["jitter_ms"]["count"] > 0


def test_sigterm_ends_a_measurement_with_its_processes(tmp_path):
    arguments = ["--device", "cpu", "--seconds", "600", "--cameras", "0", "--cloud-hz", "0", "--out", str(tmp_path)]
    run = forked.Popen([sys.executable, "-m", "robocache_ros.cli.commands", "bench", "live", *arguments])
    try:
        started = until(lambda: children_of(run.pid), "the node")
        run.terminate()

        assert run.wait(60) == 128 + signal.SIGTERM
        assert not [pid for pid in started if Path("/proc", pid).exists()]
    finally:
        run.kill()
        run.wait()


@pytest.fixture
def forks(monkeypatch):
    """The processes of a measurement are forked."""
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": forked.Popen}))


@pytest.mark.usefixtures("forks")
def test_node_that_does_not_start_says_why(tmp_path):
    with processes.Family(tmp_path, {}) as family:
        child = family.start("node", "traced_node", spec="/nowhere.yaml", device="cpu", rows=1)
        with pytest.raises(RoboCacheError, match=r"node: ended with exit code 1;[\s\S]*/nowhere.yaml: cannot be read"):
            child.await_ready()


@pytest.mark.usefixtures("forks")
def test_child_without_a_result_is_an_error(tmp_path):
    with processes.Family(tmp_path, {}) as family:
        child = family.start("naive", "naive_node")
        child.process.wait()

        with pytest.raises(RoboCacheError, match=r"naive: left no result; its log ends with:[\s\S]*KeyError"):
            family.result(child)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], "seconds: 0 is not in 0..3600"),
        (["--via", "pigeon"], "via: 'pigeon' is not one of auto, message, ring"),
        (["--camera-hz", "0", "--cloud-hz", "0", "--joints-hz", "0", "--imu-hz", "0", "--pose-hz", "0"], "all are 0"),
    ],
)
def test_impossible_measurement_is_refused(arguments, message):
    app = Typer()
    app.callback()(lambda: None)
    app.command()(command.live)

    result = CliRunner().invoke(app, ["live", *arguments])

    assert isinstance(result.exception, RoboCacheError)
    assert message in str(result.exception)
