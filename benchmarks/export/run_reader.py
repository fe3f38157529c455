"""Reads all messages of a recording, and prints the time without imports. Run by the benchmarks."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Read; the arguments are `robocache` or `rosbags`, and the recording."""
    reader, path = sys.argv[1:]
    size = 0
    if reader == "robocache":
        from robocache_ros.bags.reader import Bag
        from robocache_ros.extras import need

        need("pyarrow", "export")  # imported before, as in an export

        begun, before = time.perf_counter(), time.process_time()
        with Bag(path) as bag:
            for message in bag.messages(views=True):
                size += len(message.data)
    else:
        from rosbags.rosbag2 import Reader

        begun, before = time.perf_counter(), time.process_time()
        with Reader(path) as opened:
            for _, _, data in opened.messages():
                size += len(data)
    told = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - before, "bytes": size}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
