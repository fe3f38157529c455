"""What the suggested spec does for policies: cameras of one size, and no cloud that delays all ticks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robocache_ros.bags.describe import BagInfo, describe
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.suggest.spec_text import SuggestedStream, with_common_size


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
    alone = {"/camera/front/points": panda.topics["/camera/front/points"]}

    assert "\n  front_voxels:\n" in suggest_spec(replace(panda, topics=alone))
