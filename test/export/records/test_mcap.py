from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.formats.mcap import field_names
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.records.conftest import Make

OPTIONS = DatasetOptions(formats=("mcap",), task="lift", media="none")


def test_an_episode_is_a_recording_that_is_read_like_others(exported: Make) -> None:
    made = exported("robot", "video")
    for index, length in enumerate(made.lengths):
        with Bag(made.out / "mcap" / f"episode_{index:06d}") as bag:
            assert not bag.notes
            assert bag.integrity == CHECKED
            assert bag.topics["/robocache/joint_position"].count == length
            assert bag.topics["/robocache/episode/task"].count == 1
            assert bag.topics["/robocache/front"].type == "sensor_msgs/msg/CompressedImage"
            assert 0 < bag.topics["/robocache/front"].count < length  # a new image is not at every tick


def test_an_exported_recording_can_be_exported_again(exported: Make, tmp_path: Path) -> None:
    made = exported("robot", "none")
    names = [f"panda_joint{k}" for k in range(1, 8)]
    stream = {"topic": "/robocache/joint_position", "type": "robocache/msg/JointPosition", "field": names, "dim": 7}
    spec = load_spec({"robocache": 1, "streams": {"joint_position": {**stream, "align": "hold", "stamp": "receive"}}})
    with Bag(made.out / "mcap" / "episode_000000") as bag:
        (frames,) = BagRun(bag, spec).frames()
    assert np.array_equal(frames.ticks_ns, made.episodes[0]["tick_ns"])
    assert np.array_equal(frames.fused.numpy(), made.episodes[0]["joint_position"])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("panda_joint1", "x"), ("panda_joint1", "x")),
        (("0", "1"), ("v0", "v1")),
        (("Arm/Shoulder-Pan", "position.x"), ("arm_shoulder_pan", "position_x")),
        (("a-b", "a_b", "é"), ("a_b", "a_b_1", "v")),
        (("valid", "stamp"), ("valid_0", "stamp_1")),
    ],
)
def test_each_value_has_a_field_name_of_ros(labels: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert field_names(labels) == names
