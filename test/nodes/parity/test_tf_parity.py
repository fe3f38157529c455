"""Poses from /tf and clouds of a moving sensor over real DDS: bit for bit what the recording gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
pytest.importorskip("rosbags", reason="needs the `bags` extra")
from std_msgs.msg import String

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.nodes.middleware import latched
from robocache_ros.spec import TF_TYPE, load_spec
from test.nodes.parity.live import replay
from test.nodes.rig import until

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000
CLOUD = "sensor_msgs/msg/PointCloud2"
TF = {"topic": "/tf", "type": TF_TYPE, "max_gap_ms": 150, "max_age_ms": 80}
GRID = {"origin_m": [-4, -4, -4], "size_m": 0.25, "shape": [32, 32, 32], "frame": "odom"}
SPEC = {
    "robocache": 1,
    "delay_ms": 60,
    "streams": {
        "tool": {**TF, "frames": ["base", "tool"]},
        "base": {**TF, "frames": ["odom", "base"]},
        "cube": {**TF, "frames": ["tool", "cube"]},
        "scan": {"topic": "/scan", "type": CLOUD, "voxels": GRID, "max_gap_ms": 150, "max_age_ms": 200},
    },
}


@pytest.fixture
def recording(tmp_path, tf_message, one_point):
    """Three seconds of odometry at 10 Hz, an arm at 40 Hz, a cube that the gripper takes after 1.5 s, and a lidar."""
    rng = np.random.default_rng(1)

    def pose() -> tuple[tuple[float, ...], tuple[float, ...]]:
        q = rng.normal(size=4) * 0.3 + np.array([0, 0, 0, 1])
        return tuple(rng.normal(size=3)), tuple(q / np.linalg.norm(q))

    messages = []
    for ms in range(0, 3000, 25):
        t = START_NS + ms * MS
        holder = "tool" if ms >= 1500 else "base"
        transforms = [(t, "base", "arm", *pose()), (t, "arm", "wrist", *pose()), (t, holder, "cube", *pose())]
        messages.append(("/tf", t + int(rng.integers(1, 90)) * MS, tf_message(*transforms)))
        if ms % 100 == 0:
            messages.append(("/tf", t + int(rng.integers(1, 30)) * MS, tf_message((t, "odom", "base", *pose()))))
            messages.append(
                ("/scan", t + int(rng.integers(1, 50)) * MS, one_point(t + 7 * MS, (0.5, 0.2, 1.0), "lidar"))
            )
    fixed = tf_message((0, "wrist", "tool", (0, 0, 0.2)), (0, "arm", "lidar", (0, 0.1, 0)))
    messages.append(("/tf_static", START_NS - 20 * MS, fixed))
    types = {"/tf": TF_TYPE, "/tf_static": TF_TYPE, "/scan": CLOUD}
    return write_bag(tmp_path / "recording", types, sorted(messages, key=lambda message: message[1]))


@pytest.mark.usefixtures("tf_as_bytes")
def test_poses_and_clouds_of_a_moving_sensor_are_those_of_the_recording(rig, recording):
    spec = load_spec(SPEC)
    with Bag(recording) as bag:
        run = BagRun(bag, spec, visibility="deployed", trim=False)
        parts = list(run.frames())
        static = next(bag.messages(["/tf_static"])).data
        last_ns = bag.stop_ns - 150 * MS
    rows = dict(
        zip(np.concatenate([p.ticks_ns for p in parts]).tolist(), torch.cat([p.rows() for p in parts]), strict=True)
    )
    grids = dict(zip(rows, torch.cat([p.media["scan"] for p in parts]), strict=True))

    node = rig.fusion(SPEC, use_sim_time=True, reliable=True)
    node.autostart()
    publisher = rig.stranger().create_publisher(String, "/tf_static", latched(1))
    publisher.publish(static)
    until(lambda: node.parts.ingest.transforms.lookup("arm", "lidar"), "the static transforms")
    found = replay(rig, SPEC, last_ns, recording, node=node, media=True, rate=2.0, topics=("/tf", "/scan"))

    live = found.rows
    assert len(live) > 30
    width = run.layout.width
    for tick, row in live.items():
        assert row.numpy().tobytes() == rows[tick].numpy().tobytes(), tick
    valid = torch.stack([*live.values()])[:, width : width + 4]
    assert ((valid > 0).float().mean(dim=0) > 0.5).all()  # of each stream
    counters = node.parts.ingest.counters
    assert counters["cube"]["reparented"] >= 1
    assert counters["scan"]["accepted"] + counters["scan"]["late"] > 20  # most wait longer than delay_ms
    seen = found.media["scan"]
    assert len({grid.numpy().tobytes() for grid in seen.values()}) > 10
    assert all(torch.equal(grid, grids[tick]) for tick, grid in seen.items())
