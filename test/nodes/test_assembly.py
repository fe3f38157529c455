"""Windows and images of one tick, in whatever order their topics bring them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros.frame import FusedFrame
from robocache_ros.nodes.assembly import AWAITED, Assembly


def window(tick_ns: int, valid: int = 1) -> FusedFrame:
    ticks_ns, tensors = torch.tensor([tick_ns]), {"joints": torch.zeros(1, 2)}
    return FusedFrame(tick_ns, ticks_ns, tensors, {"front": torch.tensor([valid])}, {})


def ticks(frames: list[FusedFrame]) -> list[int]:
    return [frame.tick_ns for frame in frames]


def test_a_frame_waits_for_its_image() -> None:
    assembly = Assembly(["front"])
    assert assembly.add_window(window(1)) == []

    whole = assembly.add_image("front", 1, torch.ones(3))

    assert ticks(whole) == [1]
    assert torch.equal(whole[0].tensors["front"], torch.ones(3))


def test_an_image_waits_for_its_window() -> None:
    assembly = Assembly(["front"])
    assert assembly.add_image("front", 1, torch.ones(3)) == []
    assert ticks(assembly.add_window(window(1))) == [1]


def test_a_frame_without_a_valid_image_waits_for_none() -> None:
    whole = Assembly(["front"]).add_window(window(1, valid=0))
    assert ticks(whole) == [1]
    assert "front" not in whole[0].tensors


def test_an_older_frame_is_given_up_for_a_newer_one_that_is_whole() -> None:
    assembly = Assembly(["front"])
    for tick in (1, 2, 3):
        assembly.add_window(window(tick))

    assert ticks(assembly.add_image("front", 2, torch.ones(3))) == [2]
    assert assembly.incomplete == 1
    assert ticks(assembly.add_image("front", 3, torch.ones(3))) == [3]


def test_no_more_frames_wait_than_are_awaited() -> None:
    assembly = Assembly(["front"])
    for tick in range(AWAITED + 3):
        assert assembly.add_window(window(tick)) == []
    assert assembly.incomplete == 3


def test_an_image_of_a_stream_that_the_node_does_not_have_is_not_waited_for() -> None:
    assert ticks(Assembly(["side"]).add_window(window(1))) == [1]
