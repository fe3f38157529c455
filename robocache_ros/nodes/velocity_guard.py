"""Sends zero velocity when a policy runner is killed: some controllers keep the last command for ever.

It is a process of its own. Its first line of input is JSON: a list of topics, with the type and the message of each,
and whether the stamp of its header is set. It ends at the line `done`; if the input ends without one, the runner was
killed.
"""

from __future__ import annotations

import base64
import json
import signal
import struct
import sys
import time

import rclpy
from rclpy.signals import SignalHandlerOptions

from robocache_ros.nodes import middleware

REPEATS, PAUSE_S = 10, 0.05


def main() -> int:
    """Wait for the end of the runner; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its runner
    outputs = json.loads(sys.stdin.buffer.readline() or b"[]")
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("velocity_guard", start_parameter_services=False, enable_rosout=False)
    publishers = [
        (node.create_publisher(found, output["topic"], middleware.reliable(1)), output)
        for output in outputs
        if (found := middleware.load_message_class(output["type"]))
    ]
    if sys.stdin.buffer.readline() != b"done\n":
        for _ in range(REPEATS):  # controllers may still be reading the last command of the runner
            for publisher, output in publishers:
                data = bytearray(base64.b64decode(output["data"]))
                if output["stamped"]:  # after the encapsulation
                    struct.pack_into("<iI", data, 4, *divmod(time.time_ns(), 10**9))
                publisher.publish(bytes(data))
            time.sleep(PAUSE_S)
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
