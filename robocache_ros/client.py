"""What a policy uses: `FusedSubscriber` gives the ticks of a fusion node as torch tensors.

Its frames are those of a loop::

    from robocache_ros.client import FusedSubscriber

    with FusedSubscriber("fusion_node", images=["front"]) as ticks:
        for frame in ticks:  # or: async for frame in ticks
            action = policy(frame["joint_position"], frame["front"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.engine.frames import FusedFrame

if TYPE_CHECKING:
    from robocache_ros.nodes.client.subscriber import FusedSubscriber

__all__ = ["FusedFrame", "FusedSubscriber"]


def __getattr__(name: str) -> object:
    # rclpy is imported with the subscriber, not with the frame's type.
    if name == "FusedSubscriber":
        from robocache_ros.nodes.client import subscriber

        return subscriber.FusedSubscriber
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
