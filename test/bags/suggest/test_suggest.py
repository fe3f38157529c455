"""Suggested specs: what they contain, and what a policy needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from robocache_ros.bags.describe import BagInfo, describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import _nominal_hz, suggest_spec
from robocache_ros.bags.suggest.spec_text import SuggestedStream, with_common_size
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, load_spec
from test.bags.conftest import MS, START_NS, numbers, pose

POSE, ARRAY = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray"


def suggested(bag: Path) -> FusionSpec:
    return load_spec(yaml.safe_load(suggest_spec(describe(bag))))


def with_the_cloud(bag: Path) -> FusionSpec:
    """The suggested spec with the lines of its slow cloud, which are comments."""
    text = suggest_spec(describe(bag)).replace("  # front_voxels:", "  front_voxels:").replace("  #   ", "    ")
    return load_spec(yaml.safe_load(text))


def recorded(path: Path, types: dict[str, str]) -> Path:
    """A 50 Hz recording of poses and arrays on the given topics."""
    data = {POSE: lambda t, k: pose(t, 0.1 * k), ARRAY: lambda _, k: numbers(k, -k)}
    messages = [
        (topic, START_NS + 20 * k * MS, data[kind](START_NS + 20 * k * MS, k))
        for k in range(50)
        for topic, kind in types.items()
    ]
    return write_bag(path, types, messages)


def test_the_suggested_spec_fits_its_recording(make_bag: Callable[..., Path]) -> None:
    path = make_bag()
    spec = suggested(path)
    with Bag(path) as bag:
        frames = list(BagRun(bag, spec).frames())
    assert sum(len(part) for part in frames) > 80


def test_a_pose_becomes_a_position_and_an_orientation_on_the_sphere(panda_lift: Path) -> None:
    spec = suggested(panda_lift)
    assert [(s.name, s.field, s.align) for s in spec.streams if s.topic == "/panda/ee_pose"] == [
        ("ee_position", "pose.position", "linear"),
        ("ee_orientation", "pose.orientation", "slerp"),
    ]
    assert spec.stream("panda_command").role == "action"


def test_the_delay_covers_the_longest_and_the_neighbour_after_the_tick(make_bag: Callable[..., Path]) -> None:
    assert suggested(make_bag()).delay_ms == 30  # logged 5 ms late, and the next sample comes 20 ms later


def test_declared_rates_are_the_nominal_ones(panda_lift: Path) -> None:
    rates = {stream.topic: stream.rate_hz for stream in suggested(panda_lift).streams}
    assert rates == {
        "/panda/joint_states": 500,
        "/panda/gripper/joint_states": 50,
        "/panda/ee_pose": 100,
        "/panda/command": 20,
        "/camera/front/image_raw/compressed": 30,
        "/camera/wrist/image_raw": 15,
    }


def test_the_grid_holds_the_cloud(panda_lift: Path) -> None:
    voxels = with_the_cloud(panda_lift).stream("front_voxels").voxels
    assert voxels
    # 98 % of the points are in x -1.2 … 1.2, y -0.6 … 0.2, z 0.5 … 2.5, in the camera's frame.
    for axis, (low, high) in enumerate([(-1.1, 1.1), (-0.5, 0.2), (0.55, 2.4)]):
        assert voxels.origin_m[axis] <= low
        assert voxels.origin_m[axis] + voxels.shape[axis] * voxels.size_m[axis] >= high
    assert max(voxels.shape) == 64


def test_names_of_like_topics_are_made_different(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/left/tool/pose": POSE, "/right/tool/pose": POSE, "/left/tool_pose": POSE})
    names = [stream.name for stream in suggested(path).streams]
    assert len(set(names)) == len(names) == 3


def test_no_command_is_said(tmp_path: Path) -> None:
    text = suggest_spec(describe(recorded(tmp_path / "bag", {"/arm/pose": POSE})))
    assert "No topic looks like a command" in text


def test_what_cannot_be_fused_is_listed_with_its_reason(tmp_path: Path) -> None:
    text_message = b"\0\1\0\0\x02\0\0\0a\0"
    types = {"/arm/pose": POSE, "/log": "std_msgs/msg/String", "/once": ARRAY}
    messages = [("/arm/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(50)]
    messages += [("/log", START_NS + 100 * k * MS, text_message) for k in range(10)]
    messages += [("/once", START_NS, numbers(1.0))]
    path = write_bag(tmp_path / "bag", types, sorted(messages, key=lambda m: m[1]))
    text = suggest_spec(describe(path))
    assert "#   /log (std_msgs/msg/String): text, not numbers" in text
    assert "#   /once (std_msgs/msg/Float64MultiArray): 1 message only" in text


def test_a_recording_with_nothing_to_fuse_is_an_error(tmp_path: Path) -> None:
    path = write_bag(
        tmp_path / "bag",
        {"/log": "std_msgs/msg/String"},
        [("/log", START_NS + k, b"\0\1\0\0\x02\0\0\0a\0") for k in range(3)],
    )
    with pytest.raises(RoboCacheError, match=r"has no topic that can be fused \(1 topic: String\); record"):
        suggest_spec(describe(path))


def test_damaged_messages_do_not_stop_the_description(tmp_path: Path) -> None:
    messages = [("/arm/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)[: 5 + k]) for k in range(20)]
    info = describe(write_bag(tmp_path / "bag", {"/arm/pose": POSE}, messages))
    assert info.topics["/arm/pose"].stats.count == 20
    assert info.topics["/arm/pose"].messages == ()


def test_a_topic_that_one_wrong_stamp_makes_endless_has_a_rate_that_a_spec_takes(make_bag: Callable[..., Path]) -> None:
    topic = describe(make_bag()).topics["/arm/pose"]
    endless = replace(topic, stats=replace(topic.stats, stop_ns=topic.stats.start_ns + 10**18))
    assert _nominal_hz(topic) == 50
    assert _nominal_hz(endless) == 0.01


def cameras(*images: tuple[int, int, str]) -> list[dict[str, Any]]:
    """The images that are suggested for cameras of a height, a width and an encoding."""
    topics = {
        f"/camera_{n}": SimpleNamespace(messages=[SimpleNamespace(height=height, width=width, encoding=encoding)])
        for n, (height, width, encoding) in enumerate(images)
    }
    streams = [
        SuggestedStream(name[1:], {"topic": name, "image": {"size": [m.height, m.width]}}, ("as recorded",))
        for name, topic in topics.items()
        for m in topic.messages
    ]
    found = with_common_size(SimpleNamespace(topics=topics), streams)  # type: ignore[arg-type]
    return [stream.keys["image"] for stream in found]


def test_cameras_get_the_size_of_the_smallest() -> None:
    assert cameras((240, 320, "rgb8"), (120, 160, "bgr8")) == [{"size": [120, 160]}, {"size": [120, 160]}]


def test_a_camera_of_another_aspect_ratio_is_cropped_around_its_centre() -> None:
    wide, small = cameras((240, 426, "rgb8"), (120, 160, "rgb8"))

    assert wide == {"size": [120, 160], "crop": [0, 53, 240, 320]}
    assert small == {"size": [120, 160]}


def test_a_depth_camera_keeps_its_size() -> None:
    assert cameras((240, 320, "rgb8"), (120, 160, "16UC1")) == [{"size": [240, 320]}, {"size": [120, 160]}]


@pytest.fixture(scope="module")
def panda() -> BagInfo:
    return describe(Path(__file__).parents[2] / "data" / "panda_lift")


def test_a_slow_cloud_is_commented_out_with_the_reason(panda: BagInfo) -> None:
    text = suggest_spec(panda)

    assert "  # left out, because it is slow: it needs delay_ms 80, and the other streams 60\n" in text
    assert "  # front_voxels:\n  #   topic: /camera/front/points\n" in text
    assert "\ndelay_ms: 60\n" in text


def test_a_cloud_that_is_as_fast_as_the_rest_is_in_the_spec(panda: BagInfo) -> None:
    cloud = panda.topics["/camera/front/points"]
    fast = replace(cloud, stats=replace(cloud.stats, delays_ms=cloud.stats.delays_ms / 2))

    assert "\n  front_voxels:\n" in suggest_spec(replace(panda, topics={**panda.topics, "/camera/front/points": fast}))


def test_a_cloud_without_other_streams_is_in_the_spec(panda: BagInfo) -> None:
    separate = {"/camera/front/points": panda.topics["/camera/front/points"]}

    assert "\n  front_voxels:\n" in suggest_spec(replace(panda, topics=separate))
