"""Messages out of tensors and back; `~/plot`: the numbers of a tick with their names, for viewers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState, PointField
from std_msgs.msg import Float32MultiArray, Header

from robocache_ros.nodes import frame_messages
from robocache_ros.nodes.publishers import Window
from robocache_ros.reductions import SPEC_REDUCTIONS
from robocache_ros.spec import StreamSpec, VoxelSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.rig import repeating, stamped, until

PERIOD_NS = 20_000_000


@pytest.mark.parametrize("tick_ns", [0, 20_000_000, 1_760_003_600_020_000_000])
def test_fused_bytes_read_as_the_message(tick_ns):
    window = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    data = frame_messages.fused_cdr(tick_ns, window)
    message = deserialize_message(data, Float32MultiArray)
    assert len(serialize_message(message)) == len(data)  # ROS leaves its padding as it finds it
    assert [dim.label for dim in message.layout.dim] == [f"tick_ns={tick_ns}", "column"]
    tick, read = frame_messages.read_fused(message)
    assert tick == tick_ns
    assert np.array_equal(read.numpy(), window)
    with pytest.raises(ValueError, match="not enough values"):
        frame_messages.read_fused(Float32MultiArray(data=[1.0]))


@pytest.mark.parametrize(
    ("image", "encoding"),
    [
        (torch.arange(24, dtype=torch.uint8).reshape(3, 2, 4), "rgb8"),
        (torch.arange(8, dtype=torch.uint8).reshape(1, 2, 4), "mono8"),
        (torch.arange(8, dtype=torch.float32).reshape(1, 2, 4), "32FC1"),
        (torch.arange(24, dtype=torch.float32).reshape(3, 2, 4), "32FC3"),
    ],
    ids=["rgb8", "mono8", "32FC1", "32FC3"],
)
def test_image_comes_back_as_it_went(image, encoding):
    message = frame_messages.image_message(1_000_000_001, "camera", image)
    assert message.encoding == encoding
    assert (message.height, message.width) == (2, 4)
    assert len(message.data) == message.step * message.height
    assert frame_messages.stamp_ns(message.header) == 1_000_000_001
    assert torch.equal(frame_messages.read_image(message), image)


GRIDS = {
    "empty": torch.zeros(2, 2, 2, dtype=torch.uint8),
    "occupancy": torch.tensor([0, 1, 0, 0, 1, 0, 0, 1], dtype=torch.uint8).reshape(2, 2, 2),
    "count": torch.tensor([0, 3, 0, 0, 1, 0, 0, 700], dtype=torch.int32).reshape(2, 2, 2),
    "mean": torch.tensor([0, 1.5, 0, 0, 0, 0, 0, 2.5] * 2).reshape(2, 2, 2, 2),
}


@pytest.mark.parametrize("name", GRIDS)
def test_voxels_come_back_as_they_went(name):
    features = ("intensity", "range") if name == "mean" else ()
    reduce = "occupancy" if name == "empty" else name
    grid = VoxelSpec((-0.5, 0.1, 0.4), (0.02, 0.03, 0.04), (2, 2, 2), reduce, features)
    message = frame_messages.voxel_message(7, "map", GRIDS[name], grid)
    assert message.width == int((GRIDS[name] != 0).sum()) // max(1, len(features))
    assert torch.equal(frame_messages.read_voxels(message, grid), GRIDS[name])


def test_points_are_the_centres_of_occupied_cells():
    grid = VoxelSpec((-1.0, 0.0, 2.0), (0.5, 0.5, 0.5), (2, 2, 2))
    voxels = torch.zeros(2, 2, 2, dtype=torch.uint8)
    voxels[1, 0, 1] = 1
    message = frame_messages.voxel_message(0, "map", voxels, grid)
    assert [field.name for field in message.fields] == ["x", "y", "z"]
    assert np.frombuffer(message.data, np.float32).tolist() == [-0.25, 0.25, 2.75]


@pytest.mark.parametrize("reduce", [name for name, kind in SPEC_REDUCTIONS.items() if kind.needs_features])
def test_fields_of_a_voxel_cloud_are_named_once(reduce):
    grid = VoxelSpec((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (2, 2, 2), reduce, ("r", "z"))
    message = frame_messages.voxel_message(0, "map", torch.ones(2, 2, 2, 2), grid)
    assert [field.name for field in message.fields] == ["x", "y", "z", "r", f"{reduce}_z"]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_own_cloud_is_that_of_sensor_msgs_py(count):
    point_cloud2 = pytest.importorskip("sensor_msgs_py.point_cloud2")
    points = np.random.default_rng(0).standard_normal((count, 3), np.float32)
    fields = [PointField(name=n, offset=4 * i, datatype=PointField.FLOAT32, count=1) for i, n in enumerate("xyz")]
    theirs = point_cloud2.create_cloud(Header(), fields, points)
    assert frame_messages.cloud_message(Header(), ("x", "y", "z"), points) == theirs


def test_blank_of_an_image_without_a_size_is_not_known():
    assert frame_messages.blank(StreamSpec("a", topic="/a", type="sensor_msgs/msg/Image")) is None


@pytest.mark.parametrize(
    ("horizon", "ticks", "expected"),
    [
        pytest.param(3, [100], [0, 0, 100], id="it begins with zeros"),
        pytest.param(3, range(100, 400), [397, 398, 399], id="the last ticks in order"),
        pytest.param(4, [100, 101, 103], [100, 101, 0, 103], id="a tick that was not published"),
        pytest.param(3, [100, 101, 90], [0, 0, 90], id="the clock jumps back"),
        pytest.param(3, [100, 101, 500], [0, 0, 500], id="the clock jumps ahead"),
        pytest.param(1, range(200), [199], id="one tick"),
    ],
)
def test_window_has_the_rows_of_the_last_ticks(horizon, ticks, expected):
    window = Window(horizon, 1, 50)
    for tick in ticks:
        rows = window.push(tick * PERIOD_NS, np.array([tick], np.float32))
    assert rows[:, 0].tolist() == expected


NAMES = ["joints.a", "joints.b", "command.0", "valid:joints", "valid:command", "age_ms:joints", "age_ms:command"]


def test_a_subscriber_gets_names_and_values_of_each_tick(rig, joint_spec):
    rig.fusion(joint_spec).autostart()
    joints, plots = rig.publisher(JointState, "/joints"), rig.listen(JointState, "/fusion_node/plot")
    message = JointState(name=["a", "b"], position=[0.5, 0.5])

    def found() -> list[JointState]:
        return [plot for plot in plots.messages if plot.position[NAMES.index("valid:joints")]]

    plot = until(repeating(lambda: joints.publish(stamped(message)), found, 0.02), "a tick with joints")[0]
    assert list(plot.name) == NAMES
    values = dict(zip(plot.name, plot.position, strict=True))
    assert (values["joints.a"], values["joints.b"]) == (0.5, 0.5)
    assert math.isnan(values["command.0"])
    assert math.isnan(values["age_ms:command"])
    assert values["valid:command"] == 0
    assert frame_messages.stamp_ns(plot.header) % PERIOD_NS == 0
    assert not plot.velocity


def test_nothing_is_plotted_without_a_subscriber(rig, joint_spec, monkeypatch):
    made: list[int] = []
    plot_message = frame_messages.plot_message
    monkeypatch.setattr(frame_messages, "plot_message", lambda *args: made.append(1) or plot_message(*args))
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    until(lambda: len(fused) > 5, "ticks")
    assert not made


def test_of_a_window_the_newest_sample_is_plotted():
    imu = {"topic": "/imu", "type": "sensor_msgs/msg/Imu", "field": "angular_velocity", "align": "window", "samples": 2}
    layout = Layout(load_spec({"robocache": 1, "actions": "none", "streams": {"imu": imu}}))
    row = np.array([1, 2, 3, 4, 5, 6, 1, 7.5, 9, 7.5], np.float32)
    plot = frame_messages.plot_message(0, row, layout)
    expected = {"imu.x": 4, "imu.y": 5, "imu.z": 6, "valid:imu": 1, "age_ms:imu": 7.5}
    assert dict(zip(plot.name, plot.position, strict=True)) == expected
