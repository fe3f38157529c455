"""A process that publishes well-behaved or hostile messages: `python -m test.fuzz.node_sender JSON`.

It publishes until its standard input ends, or until `count` messages are sent, and then prints how many it sent.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState

from test.fuzz import node_inputs as inputs

JOINTS = ("a", "b")
JOINT_HZ, CLOCK_HZ, BOMB_HZ = 200.0, 200.0, 5.0
DEPTH = 1000


class Sender:
    """Publishes one kind of message until it is told to stop."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self._node, self._options = node, options
        self.sent = self.refused = 0
        self.ended = threading.Event()

    def joints(self) -> None:
        """Publish valid joint states at a fixed rate, stamped with the wall clock or with sim time."""
        publish = self._publisher(JointState, "/joints")
        offset_ns = self._options.get("sim_offset_ns", 0)
        self._at_rate(JOINT_HZ, lambda: publish(inputs.joint_state(time.time_ns() - offset_ns, JOINTS)))

    def garbage(self) -> None:
        """Publish garbage to a joint, an image and a compressed image topic, as fast as possible."""
        kinds = ((JointState, "/garbage"), (Image, "/raw"), (CompressedImage, "/camera"))
        publishers = [self._publisher(kind, topic) for kind, topic in kinds]
        for publish, data in zip(cycle(publishers), inputs.garbage(), strict=False):
            if self.sent >= self._options["count"] or self.ended.is_set():
                return
            try:
                publish(data)
                self.sent += 1
            except RuntimeError:  # RCLError: the middleware's queue stayed full for as long as a publisher waits
                self.refused += 1

    def bombs(self) -> None:
        """Publish images that are expensive to decode, and raw images whose fields contradict each other."""
        compressed, raw = self._publisher(CompressedImage, "/camera"), self._publisher(Image, "/raw")
        bombs = cycle([("png", inputs.png_bomb()), ("jpeg", inputs.jpeg_bomb())])
        odd = cycle(
            [(2, 2, "32FC1", 9, bytes(18)), (2**31, 2**31, "rgb8", 2**32 - 1, b""), (1, 1, "x\n" * 99, 1, b"0")]
        )

        def publish() -> None:
            now_ns = time.time_ns()
            compressed(inputs.compressed_image(now_ns, *next(bombs)))
            raw(inputs.raw_image(now_ns, *next(odd)))

        self._at_rate(BOMB_HZ, publish)

    def clocks(self) -> None:
        """Publish /clock at the pace of the wall clock, an invalid message after each valid one."""
        publish = self._publisher(Clock, "/clock")
        bad = cycle(inputs.invalid_clocks())

        def both() -> None:
            publish(inputs.clock(*divmod(time.time_ns() - self._options["sim_offset_ns"], 1_000_000_000)))
            publish(next(bad))

        self._at_rate(CLOCK_HZ, both)

    def _at_rate(self, rate_hz: float, publish: Callable[[], None]) -> None:
        due_s = time.monotonic()
        while not self.ended.is_set():
            publish()
            self.sent += 1
            due_s = max(due_s + 1 / rate_hz, time.monotonic() - 0.5)
            self.ended.wait(max(0.0, due_s - time.monotonic()))

    def _publisher(self, kind: type[Any], topic: str) -> Callable[[bytes], None]:
        publisher = self._node.create_publisher(kind, topic, QoSProfile(depth=DEPTH))
        while not publisher.get_subscription_count() and not self.ended.is_set():  # otherwise no message arrives
            self.ended.wait(0.01)
        found: Callable[[bytes], None] = publisher.publish
        return found


def main() -> None:
    """Run as a child process."""
    options = json.loads(sys.argv[1])
    rclpy.init(args=[])
    sender = Sender(rclpy.create_node(f"sender_{options['mode']}"), options)

    def wait_for_end() -> None:
        sys.stdin.read()
        sender.ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    getattr(sender, options["mode"])()
    sys.stdout.write(json.dumps({"sent": sender.sent, "refused_by_the_middleware": sender.refused}) + "\n")
    sys.stdout.flush()
    sender.ended.wait()
    rclpy.shutdown()


if __name__ == "__main__":
    main()
