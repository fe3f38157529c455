"""Windows and images of one tick, in whatever order their topics bring them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.nodes.fused_subscriber import AWAITED, Assembly


def window(tick_ns: int, valid: int = 1) -> FusedFrame:
    ticks_ns, tensors = torch.tensor([tick_ns]), {"joints": torch.zeros(1, 2)}
    return FusedFrame(tick_ns, ticks_ns, tensors, {"front": torch.tensor([valid])}, {})


def ticks(frames: list[FusedFrame]) -> list[int]:
    return [frame.tick_ns for frame in frames]


def test_a_frame_waits_for_its_image() -> None:
    assembly = Assembly(["front"])
    assert assembly.add_window(window(1)) == []

    complete = assembly.add_image("front", 1, torch.ones(3))

    assert ticks(complete) == [1]
    assert torch.equal(complete[0].tensors["front"], torch.ones(3))


def test_an_image_waits_for_its_window() -> None:
    assembly = Assembly(["front"])
    assert assembly.add_image("front", 1, torch.ones(3)) == []
    assert ticks(assembly.add_window(window(1))) == [1]


def test_a_frame_without_a_valid_image_waits_for_none() -> None:
    complete = Assembly(["front"]).add_window(window(1, valid=0))
    assert ticks(complete) == [1]
    assert "front" not in complete[0].tensors


def test_an_older_frame_is_given_up_for_a_newer_one_that_is_complete() -> None:
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


def test_frames_go_on_after_the_clock_has_jumped_back() -> None:
    assembly = Assembly(["front"])
    for tick in range(100, 100 + AWAITED):
        assembly.add_image("front", tick, torch.zeros(3))
        assembly.add_window(window(tick))

    frames = []
    for tick in range(1, 4):
        frames += assembly.add_image("front", tick, torch.ones(3))
        frames += assembly.add_window(window(tick))

    assert ticks(frames) == [1, 2, 3]


def test_images_before_their_windows_survive_a_jump_back() -> None:
    assembly = Assembly(["front"])
    assembly.add_window(window(100))
    assembly.add_image("front", 100, torch.zeros(3))
    assembly.add_image("front", 1, torch.ones(3))

    assert ticks(assembly.add_window(window(1))) == [1]


def test_image_from_before_a_jump_back_is_not_given_to_the_same_tick_after_it() -> None:
    assembly = Assembly(["front"])
    for tick in (1, 2, 3):
        assembly.add_image("front", tick, torch.zeros(3))
        assembly.add_window(window(tick))

    assert assembly.add_window(window(2)) == []
    frames = assembly.add_image("front", 2, torch.ones(3))

    assert ticks(frames) == [2]
    assert torch.equal(frames[0].tensors["front"], torch.ones(3))


def test_frames_that_wait_when_the_clock_jumps_back_are_counted_as_incomplete() -> None:
    assembly = Assembly(["front"])
    for tick in (100, 101, 1):
        assembly.add_window(window(tick))

    assert assembly.incomplete == 2
