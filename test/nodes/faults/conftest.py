"""A fusion node that messages and publishers of a test misuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from test.nodes.faults.fusion_rig import FusionRig


@pytest.fixture
def fusion(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> FusionRig:
    from test.nodes.faults.fusion_rig import FusionRig  # needs rclpy, without which `rig` skips the test

    return FusionRig(rig, wait, joint_spec)
