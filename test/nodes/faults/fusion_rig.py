"""An active fusion node that subscribes to joints, and what it counts. Import it where rclpy is installed."""

from __future__ import annotations

import time
from typing import Any

from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from test.nodes.rig import stamped, until

AHEAD_NS = 4 * 10**9  # of the clock, below max_skew_ms: no message is late where a busy machine takes long to send it


def joint_state(time_ns: int | None = None, names: tuple[str, ...] = ("a", "b")) -> JointState:
    message = JointState(name=list(names), position=[0.5] * len(names))
    return stamped(message, time.time_ns() + AHEAD_NS if time_ns is None else time_ns)


class FusionRig:
    """An active node that subscribes to joints."""

    def __init__(self, rig: Any, spec: dict[str, Any], **parameters: Any) -> None:
        self.rig = rig
        self.node = rig.fusion(spec, **parameters)
        self.node.autostart()
        self.fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
        self.joints = rig.publisher(JointState, "/joints")
        until(lambda: self.joints.get_subscription_count() and len(rig.diagnostics), "the node")

    def counts(self, part: str = "joints") -> dict[str, str]:
        return self.rig.counts(part)

    def until_counted(self, key: str, count: int, part: str = "joints") -> None:
        until(lambda: int(self.counts(part).get(key, "0")) >= count, f"{key} to be {count}")

    def assert_alive(self) -> None:
        before = len(self.fused)
        until(lambda: len(self.fused) > before + 3, "further ticks")
        accepted = int(self.counts().get("accepted", "0"))
        self.joints.publish(joint_state())
        self.until_counted("accepted", accepted + 1)
