"""Writes an episode of 500 Hz joints and two 30 Hz cameras until it is killed; notes what it has put.

Arguments: folder of recordings, file for the log time of each message of the joints.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
import time
from pathlib import Path

from robocache_ros.recorder.episodes import Message, RecordedTopic, RecordingsFolder

JOINTS = RecordedTopic("/joint_states", "sensor_msgs/msg/JointState")
CAMERAS = tuple(RecordedTopic(f"/{name}/compressed", "sensor_msgs/msg/CompressedImage") for name in ("left", "right"))
MAX_MESSAGES = 100_000
NOTE = struct.Struct("<q")


def main(folder: str, notes: str) -> None:
    """Record."""
    Path(notes).write_bytes(bytes(NOTE.size * MAX_MESSAGES))
    with Path(notes).open("r+b") as file, mmap.mmap(file.fileno(), 0) as noted:
        episode = RecordingsFolder(folder).start({"task": "Lift the cube"}, (JOINTS, *CAMERAS))
        jpeg = random.Random(0).randbytes(40_000)
        start = time.monotonic()
        for number in range(MAX_MESSAGES):
            time.sleep(max(0.0, start + number / 500 - time.monotonic()))
            log_ns = time.time_ns()
            episode.put(Message(JOINTS, log_ns, log_ns - 1000, struct.pack("<I", number) + bytes(300)))
            for camera in CAMERAS if number % 17 == 0 else ():
                episode.put(Message(camera, log_ns, log_ns, struct.pack("<I", number) + jpeg))
            NOTE.pack_into(noted, NOTE.size * number, log_ns)


if __name__ == "__main__":
    main(*sys.argv[1:])
