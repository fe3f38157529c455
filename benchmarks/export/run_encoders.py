"""Encodes the images of a recording, without anything else, and prints the time. Run by the benchmarks.

The images are in memory before the time starts. There is an encoder with one thread for each core: the images of a
camera are divided among several encoders if there are more cores than cameras.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.export.run_export import cpu_seconds
from benchmarks.recordings import CAMERA_HZ, HEIGHT, WIDTH, camera_topic
from robocache_ros.bags.reader import Bag
from robocache_ros.exporter.executors.local import available_cores
from robocache_ros.formats.video import VideoFile, VideoSettings

PIXELS = HEIGHT * WIDTH * 3


def main() -> None:
    """Encode; the argument is a JSON object: bag, cameras, codec, crf, preset, gop."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    settings = VideoSettings(wanted["crf"], wanted["preset"], wanted["gop"])
    with Bag(wanted["bag"]) as bag:
        films = [
            [np.frombuffer(message.data, np.uint8)[-PIXELS:] for message in bag.messages([camera_topic(camera)])]
            for camera in range(wanted["cameras"])
        ]
    rows = len(films[0])
    share = max(1, available_cores() // len(films))
    parts = [film[rows * k // share : rows * (k + 1) // share] for film in films for k in range(share)]

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(parts)) as pool:

        def encode(number: int, images: list[NDArray[np.uint8]]) -> None:
            video = VideoFile(Path(folder) / f"{number}.mp4", (HEIGHT, WIDTH), CAMERA_HZ, wanted["codec"], settings)
            for image in images:
                video.write(image.reshape(HEIGHT, WIDTH, 3).transpose(2, 0, 1))
            video.close()

        before, begun = cpu_seconds(), time.perf_counter()
        list(pool.map(encode, range(len(parts)), parts))
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds() - before, "rows": rows}))


if __name__ == "__main__":
    main()
