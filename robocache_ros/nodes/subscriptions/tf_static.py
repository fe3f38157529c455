"""The subscription of /tf_static, for poses from /tf and for streams with a `voxels.frame`."""

from __future__ import annotations

from rclpy.node import Node

from robocache_ros.engine import Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.middleware import compat, qos
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec

DEPTH = 100  # one message of each publisher of static transforms


class StaticTransformSubscription:
    """The subscription of /tf_static; created only if a stream needs it.

    Args:
        node: owns the subscription.
        spec: the streams.
        ingest: receives the transforms.

    Raises:
        RoboCacheError: tf2_msgs is not installed.
    """

    def __init__(self, node: Node, spec: FusionSpec, ingest: Ingest) -> None:
        self._node = node
        self._subscription = None
        if not spec.framed and not spec.transforms:
            return
        found = compat.load_message_class(TF_TYPE)
        if found is None:
            key = f"{spec.framed[0].name}.voxels.frame" if spec.framed else f"{spec.transforms[0].name}.type"
            hint = "install it, or give voxels.extrinsic" if spec.framed else "install it"
            raise RoboCacheError(
                f"streams.{key}: {TF_STATIC} needs the package tf2_msgs, which is not installed; {hint}"
            )
        self._subscription = node.create_subscription(
            found, TF_STATIC, ingest.static_transforms, qos.latched(DEPTH), raw=True
        )

    def destroy(self) -> None:
        """Destroy the subscription."""
        if self._subscription:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None
