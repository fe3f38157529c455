"""What a policy uses: `FusedSubscriber` gives the ticks of a fusion node as torch tensors.

Its frames are those of a loop::

    from robocache_ros.client import FusedSubscriber

    with FusedSubscriber("fusion_node", images=["front"]) as ticks:
        for frame in ticks:  # or: async for frame in ticks
            action = policy(frame["joint_position"], frame["front"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.engine.frames import FusedFrame as FusedFrame
from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.nodes.fused_subscriber import FusedSubscriber as FusedSubscriber

# rclpy is imported with the subscriber, not with the frame's type.
__getattr__, __dir__, __all__ = lazy_names(__name__, {"robocache_ros.nodes.fused_subscriber": ("FusedSubscriber",)})
__all__ += ["FusedFrame"]
