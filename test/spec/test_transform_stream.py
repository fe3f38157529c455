"""The keys of a stream of poses."""

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec

TF = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage", "frames": ["base_link", "tool0"]}


def load(**keys):
    return load_spec({"robocache": 1, "streams": {"ee": {**TF, **keys}}})


def test_two_frames_make_a_pose_of_seven_values_received_as_tf2_does():
    stream = load().stream("ee")
    assert stream.is_transform
    assert stream.components == ("px", "py", "pz", "qx", "qy", "qz", "qw")
    assert (stream.width, stream.align, stream.stamp) == (7, "linear", "header")
    assert (stream.qos.reliability, stream.qos.durability, stream.qos.depth) == ("reliable", "volatile", 100)


def test_a_quality_of_service_that_is_written_out_is_kept():
    assert load(qos={"reliability": "best_effort"}).stream("ee").qos.reliability == "best_effort"


def test_the_resolved_spec_reads_back_the_same():
    assert load_spec(load().to_dict()) == load()


def test_a_field_of_one_transform_of_the_message_can_still_be_read():
    keys = {k: v for k, v in TF.items() if k != "frames"}
    stream = load_spec(
        {"robocache": 1, "streams": {"q": {**keys, "field": "transforms[0].transform.rotation"}}}
    ).stream("q")
    assert not stream.is_transform
    assert stream.width == 4


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"frames": ["base", "/base"]}, r"streams\.ee\.frames: expected two frames"),
        ({"frames": ["/", "base"]}, r"streams\.ee\.frames: expected two frames"),
        ({"frames": ["base"]}, r"streams\.ee\.frames: expected 2 values"),
        ({"align": "angle"}, r"streams\.ee\.align: 'angle' .* use linear, hold, nearest"),
        ({"dim": 6}, r"streams\.ee\.dim: 6, but a pose has 7"),
        (
            {"field": "transforms[0].transform.rotation"},
            r"streams\.ee\.frames: needs tf2_msgs/msg/TFMessage and no field",
        ),
        ({"topic": "/tf_static"}, r"streams\.ee\.topic: /tf_static is read with /tf"),
        ({"type": "sensor_msgs/msg/Image"}, r"streams\.ee\.frames: needs tf2_msgs/msg/TFMessage"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_the_way_out(keys, expected):
    with pytest.raises(RoboCacheError, match=expected):
        load(**keys)


def test_frames_are_required():
    keys = {k: v for k, v in TF.items() if k != "frames"}
    with pytest.raises(RoboCacheError, match=r"frames: expected two frames; name them, as in \[base_link, tool0\]"):
        load_spec({"robocache": 1, "streams": {"ee": keys}})


def test_a_sensor_that_may_move_adds_tf_to_the_feeds():
    voxels = {"origin_m": [0, 0, 0], "size_m": 1, "shape": [8, 8, 8], "frame": "base"}
    scan = {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": voxels}
    spec = load_spec({"robocache": 1, "streams": {"scan": scan}})
    assert [(feed.name, feed.topic) for feed in spec.feeds] == [("scan", "/scan"), ("/tf", "/tf")]
    assert spec.feeds[1].qos.reliability == "reliable"
