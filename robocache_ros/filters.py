"""`FusedFilter`: fused frames as a filter of message_filters, in place of an ApproximateTimeSynchronizer.

For example::

    from message_filters import Subscriber
    from robocache_ros.filters import FusedFilter

    inputs = [Subscriber(node, Image, "/front"), Subscriber(node, JointState, "/joint_states")]
    joints = {"topic": "/joint_states", "names": ["shoulder", "elbow"]}
    fused = FusedFilter(node, inputs, rate_hz=50, streams={"joints": joints})
    fused.registerCallback(on_frame)
"""

from __future__ import annotations

from robocache_ros.errors import RoboCacheError

try:
    from robocache_ros.nodes.fused_filter import FusedFilter, StampedFrame
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("message_filters", "rclpy"):
        raise
    raise RoboCacheError(
        f"robocache_ros.filters: {error.name} is not installed; source a ROS 2 installation with it "
        f"(ros-$ROS_DISTRO-message-filters); it is not on PyPI"
    ) from None

__all__ = ["FusedFilter", "StampedFrame"]
