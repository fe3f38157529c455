"""Where sensors are: /tf_static into the ingest, for streams whose grid is in a frame of its own."""

from __future__ import annotations

from rclpy.node import Node

from robocache_ros.engine import Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import compat, qos
from robocache_ros.spec import TF_STATIC, FusionSpec

TF_TYPE = "tf2_msgs/msg/TFMessage"
DEPTH = 100  # every publisher of static transforms keeps a message for us


class StaticFrames:
    """The subscription of /tf_static; there is none where no stream has a `voxels.frame`.

    Args:
        node: whose it is.
        spec: the streams.
        ingest: where the transforms go.

    Raises:
        RoboCacheError: tf2_msgs is not installed.
    """

    def __init__(self, node: Node, spec: FusionSpec, ingest: Ingest) -> None:
        self._node = node
        self._subscription = None
        if not spec.framed:
            return
        found = compat.load_message_class(TF_TYPE)
        if found is None:
            raise RoboCacheError(
                f"streams.{spec.framed[0].name}.voxels.frame: {TF_STATIC} cannot be read, as tf2_msgs is not "
                f"installed; install it, or give voxels.extrinsic"
            )
        self._subscription = node.create_subscription(
            found, TF_STATIC, ingest.static_transforms, qos.latched(DEPTH), raw=True
        )

    def destroy(self) -> None:
        """Give the subscription back."""
        if self._subscription:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None
