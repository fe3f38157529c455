"""/tf_static over real DDS: latched transforms with the bits of a recording; without tf2_msgs, one error."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
from std_msgs.msg import String

from robocache_ros.decode.transforms import read_transforms
from robocache_ros.engine.transforms import StaticTransforms
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import middleware
from robocache_ros.nodes.middleware import latched
from robocache_ros.nodes.subscriptions import TF_STATIC_DEPTH, subscribe_static_transforms
from robocache_ros.spec import TF_TYPE, load_spec
from test.nodes.rig import until

GRID = {"origin_m": [-1, -1, 0], "size_m": 0.1, "shape": [20, 20, 20], "frame": "base_link"}
SPEC = {"robocache": 1, "streams": {"scan": {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": GRID}}}
POSES = [
    ("base_link", "mast", (0.1, -0.2, 2.1), (0.0, 0.0, 0.6, 0.8)),
    ("mast", "optical", (0.05, 0.0, 0.3), (0.48, -0.6, 0.0, 0.64)),
]


@pytest.mark.usefixtures("tf_as_bytes")
def test_latched_transforms_give_the_bits_of_a_recording(rig, tf_message):
    data = [tf_message((0, *pose)) for pose in POSES]
    profile = latched(TF_STATIC_DEPTH)
    publishers = []  # of a node each, as robots have them; and before the fusion node listens
    for one in data:
        publishers.append(rig.stranger().create_publisher(String, "/tf_static", profile))
        publishers[-1].publish(one)
    node = rig.fusion(SPEC)
    node.autostart()
    known = node.parts.ingest.transforms
    live = until(lambda: known.lookup("base_link", "optical"), "the transforms")
    recorded = StaticTransforms()
    for one in reversed(data):
        for transform in read_transforms(one):
            recorded.add(transform)
    assert live == recorded.lookup("base_link", "optical")


POSE = {"robocache": 1, "streams": {"ee": {"topic": "/tf", "type": TF_TYPE, "frames": ["base", "tool"]}}}


@pytest.mark.parametrize(
    ("spec", "where", "way_out"),
    [
        (SPEC, r"streams\.scan\.voxels\.frame", r"install it, or give voxels\.extrinsic"),
        (POSE, r"streams\.ee\.type", "install it$"),
    ],
)
def test_without_tf2_msgs_there_is_one_clear_error(rig, monkeypatch, spec, where, way_out):
    monkeypatch.setattr(middleware, "load_message_class", lambda _name: None)
    with pytest.raises(RoboCacheError, match=f"{where}: /tf_static needs the package tf2_msgs, .* {way_out}"):
        subscribe_static_transforms(rig.node, load_spec(spec), None)
