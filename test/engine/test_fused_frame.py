"""A frame as a mapping, and what it shows of itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout

TICK_NS = 1_700_000_000_020_000_000


def vector(dim: int, **more: Any) -> dict[str, Any]:
    return {"topic": "/t", "type": "std_msgs/msg/Float64MultiArray", "dim": dim, **more}


LAYOUT = Layout(
    load_spec(
        {"robocache": 1, "streams": {"joints": vector(2), "command": vector(1, align="hold", role="action"),
                                     "tool": vector(3)}}
    )
)  # fmt: skip


def frame(*valid: int) -> FusedFrame:
    """A frame of two ticks, with `valid` of the newest."""
    row = [1.0, 2.0, 9.0, 3.0, 4.0, 5.0, *valid, 0.0, 0.0, 0.0]
    return split_window(LAYOUT, TICK_NS, torch.tensor([[0.0] * len(row), row]))


def test_mapping_gives_the_observations_and_finds_the_actions() -> None:
    made = frame(1, 1, 1)

    assert list(made.keys()) == ["joints", "tool"]
    assert {name: value[-1].tolist() for name, value in dict(made).items()} == {"joints": [1, 2], "tool": [3, 4, 5]}
    assert "command" in made
    assert made["command"][-1].tolist() == [9]
    assert "camera" not in made


def test_missing_stream_is_named_with_those_that_the_frame_has() -> None:
    with pytest.raises(KeyError, match=r"fornt: the frame has joints, command, tool; name image and voxel streams in"):
        frame(1, 1, 1)["fornt"]


@pytest.mark.parametrize(("valid", "expected"), [((1, 0, 2), True), ((1, 1, 0), False)], ids=["action", "observation"])
def test_all_are_valid_where_each_observation_has_a_value_at_the_tick(valid: tuple[int, ...], expected: bool) -> None:
    assert frame(*valid).all_valid is expected


def test_repr_is_one_line_of_a_screen() -> None:
    assert repr(frame(1, 0, 1)) == (
        "<FusedFrame tick 1700000000.020000000; joints 2x2, command 2x1, tool 2x3; invalid: command>"
    )
    many = {f"a_stream_with_a_long_name_{k}": torch.zeros(2, k) for k in range(50)}
    crowded = FusedFrame(TICK_NS, torch.zeros(2), many, dict.fromkeys(many, torch.zeros(2)), {})
    assert len(repr(crowded)) <= 120
    assert "and 49 more" in repr(crowded)


def test_frame_without_tensors_is_true() -> None:
    assert FusedFrame(TICK_NS, torch.zeros(1), {}, {}, {})


def test_row_for_lerobot_needs_the_layout() -> None:
    with pytest.raises(RoboCacheError, match=r"frame\.lerobot: the layout is not known"):
        FusedFrame(TICK_NS, torch.zeros(1), {}, {}, {}).lerobot()
