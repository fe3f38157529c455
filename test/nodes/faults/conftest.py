"""A fusion node that messages and publishers of a test misuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass


@pytest.fixture
def fusion(rig, joint_spec):
    from test.nodes.faults.fusion_rig import FusionRig  # needs rclpy, without which `rig` skips the test

    return FusionRig(rig, joint_spec)
