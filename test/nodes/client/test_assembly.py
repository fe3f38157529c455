"""Windows and images of one tick, in whatever order their topics bring them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.nodes.fused_subscriber import AWAITED, Assembly

Event = tuple[str, int]


def window(tick_ns: int, valid: int = 1) -> FusedFrame:
    ticks_ns, tensors = torch.tensor([tick_ns]), {"joints": torch.zeros(1, 2)}
    return FusedFrame(tick_ns, ticks_ns, tensors, {"front": torch.tensor([valid])}, {})


def windows(*ticks: int) -> list[Event]:
    return [("window", tick) for tick in ticks]


def both(*ticks: int) -> list[Event]:
    return [(kind, tick) for tick in ticks for kind in ("image", "window")]


@pytest.mark.parametrize(
    ("events", "complete", "incomplete"),
    [
        pytest.param([("window", 1), ("image", 1)], [1], 0, id="a frame waits for its image"),
        pytest.param([("image", 1), ("window", 1)], [1], 0, id="an image waits for its window"),
        pytest.param([("invalid", 1)], [1], 0, id="an invalid image is not waited for"),
        pytest.param([*windows(1, 2, 3), ("image", 2)], [2], 1, id="a newer frame that is complete"),
        pytest.param([*windows(1, 2, 3), ("image", 2), ("image", 3)], [2, 3], 1, id="those after it"),
        pytest.param(windows(*range(AWAITED + 3)), [], 3, id="no more than are awaited"),
        pytest.param(
            [*both(*range(100, 100 + AWAITED)), *both(1, 2, 3)],
            [*range(100, 100 + AWAITED), 1, 2, 3],
            0,
            id="the clock jumps back",
        ),
        pytest.param([("window", 100), ("image", 100), ("image", 1), ("window", 1)], [100, 1], 0, id="image at a jump"),
        pytest.param([*both(1, 2, 3), ("window", 2)], [1, 2, 3], 0, id="an image of before a jump"),
        pytest.param([*both(1, 2, 3), ("window", 2), ("image", 2)], [1, 2, 3, 2], 0, id="an image of after a jump"),
        pytest.param(windows(100, 101, 1), [], 2, id="frames that wait at a jump"),
    ],
)
def test_frames_are_complete_with_the_image_of_their_tick(events, complete, incomplete):
    assembly, frames = Assembly(["front"]), []
    for number, (kind, tick) in enumerate(events):
        if kind == "image":
            frames += assembly.add_image("front", tick, torch.full((3,), number))
        else:
            frames += assembly.add_window(window(tick, valid=int(kind == "window")))

    assert ([frame.tick_ns for frame in frames], assembly.incomplete) == (complete, incomplete)
    if frames and events[-1][0] != "invalid":  # each has the newest image of its tick
        numbers = [number for number, event in enumerate(events) if event == ("image", frames[-1].tick_ns)]
        assert frames[-1].tensors["front"].tolist() == [numbers[-1]] * 3
    else:
        assert not any("front" in frame.tensors for frame in frames)


def test_an_image_of_a_stream_that_the_node_does_not_have_is_not_waited_for():
    assert [frame.tick_ns for frame in Assembly(["side"]).add_window(window(1))] == [1]
