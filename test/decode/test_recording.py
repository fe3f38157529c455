"""Every message of a real recording: decoded from its bytes, with its faults as they are."""

from pathlib import Path

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from robocache_ros.decode import DecodeError, decode_compressed, make_decoder

BAG = Path(__file__).parents[1] / "data" / "panda_lift"
JOINTS = [f"panda_joint{i}" for i in range(1, 8)]
STREAMS = {
    "/panda/joint_states": ("sensor_msgs/msg/JointState", {"names": JOINTS}),
    "/panda/gripper/joint_states": (
        "sensor_msgs/msg/JointState",
        {"names": ["panda_finger_joint2", "panda_finger_joint1"]},
    ),
    "/panda/ee_pose": ("geometry_msgs/msg/PoseStamped", {"field": "pose.orientation", "align": "slerp"}),
    "/panda/command": ("std_msgs/msg/Float64MultiArray", {"dim": 7}),
    "/camera/front/image_raw/compressed": ("sensor_msgs/msg/CompressedImage", {}),
    "/camera/wrist/image_raw": ("sensor_msgs/msg/Image", {}),
    "/camera/front/points": ("sensor_msgs/msg/PointCloud2", {}),
}


@pytest.fixture(scope="module")
def reader():
    with AnyReader([BAG]) as opened:
        yield opened


def messages(reader, topic):
    return reader.messages([c for c in reader.connections if c.topic == topic])


@pytest.mark.parametrize("topic", STREAMS)
def test_every_message_decodes(reader, stream_of, topic):
    kind, keys = STREAMS[topic]
    decoder = make_decoder(stream_of(kind, **keys))
    samples = [decoder.decode_cdr(data) for _, _, data in messages(reader, topic)]
    assert len(samples) > 0
    assert decoder.changed_sets == 0


def test_joints_follow_the_truth_though_their_order_changes(reader, stream_of):
    with np.load(BAG / "truth.npz") as truth:
        stamps_ns, positions = truth["stamp_ns"], truth["joint_pos"]
    decoder = make_decoder(stream_of("sensor_msgs/msg/JointState", names=JOINTS))
    orders = set()
    for connection, _, data in messages(reader, "/panda/joint_states"):
        sample = decoder.decode_cdr(data)
        orders.add(tuple(reader.deserialize(data, connection.msgtype).name))
        nearest = np.abs(stamps_ns - sample.stamp_ns).argmin()
        assert np.abs(sample.value - positions[nearest]).max() < 0.01
    assert len(orders) > 1


def test_the_grippers_empty_velocity_is_an_error_with_a_name(reader, stream_of):
    decoder = make_decoder(stream_of("sensor_msgs/msg/JointState", names=["panda_finger_joint1"], field="velocity"))
    _, _, data = next(messages(reader, "/panda/gripper/joint_states"))
    with pytest.raises(DecodeError, match="velocity: empty") as error:
        decoder.decode_cdr(data)
    assert error.value.cause == "empty"


def test_the_definitions_in_the_recording_give_the_same_samples(reader, stream_of, same):
    for connection in reader.connections:
        kind, keys = STREAMS[connection.topic]
        text, _ = reader.typestore.generate_msgdef(connection.msgtype, ros_version=2)
        stream = stream_of(kind, **keys)
        _, _, data = next(messages(reader, connection.topic))
        same(make_decoder(stream, {kind: text}).decode_cdr(data), make_decoder(stream).decode_cdr(data))


def test_camera_frames_decompress_to_their_size(reader, stream_of):
    decoder = make_decoder(stream_of("sensor_msgs/msg/CompressedImage"))
    _, _, data = next(messages(reader, "/camera/front/image_raw/compressed"))
    image = decode_compressed(decoder.decode_cdr(data).value)
    assert (image.encoding, image.width, image.height) == ("rgb8", 320, 240)
