"""A fusion node that messages and publishers of a test misuse."""

from __future__ import annotations

import pytest


@pytest.fixture
def fusion(rig, joint_spec):
    from test.nodes.faults.fusion_rig import FusionRig  # needs rclpy, without which `rig` skips the test

    return FusionRig(rig, joint_spec)
