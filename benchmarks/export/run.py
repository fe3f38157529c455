"""One measured run in a process of its own, without the time of imports: `export`, `encoders` or `reader`, and JSON."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def export(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Export recordings as `robocache export` does: bags, spec, out, jobs, options of the export, device."""
    from robocache_ros.exporter.executors import return_freed_memory
    from robocache_ros.exporter.job import export
    from robocache_ros.formats.registry import load_format
    from robocache_ros.spec import load_spec
    from robocache_ros.spec.dataset import DatasetOptions

    options = DatasetOptions(**{**wanted["options"], "formats": tuple(wanted["options"].get("formats", ["lerobot"]))})
    for name in options.formats:
        load_format(name)
    return_freed_memory()
    before = cpu_seconds()
    spec = load_spec(wanted["spec"])
    more = {"jobs": wanted["jobs"], "device": wanted.get("device", "cpu")}
    done = export([Path(bag) for bag in wanted["bags"]], spec, wanted["out"], options, **more)
    return {"seconds": done.seconds, "cpu_seconds": cpu_seconds() - before, "rows": done.frames}


def encoders(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the images of a recording, without anything else: bag, cameras, codec, crf, preset, gop.

    The images are in memory before the time starts. There is an encoder with one thread for each core: the images of a
    camera are divided among several encoders if there are more cores than cameras.
    """
    import numpy as np

    from benchmarks.recordings import CAMERA_HZ, HEIGHT, WIDTH, camera_topic
    from robocache_ros.bags.reader import Bag
    from robocache_ros.exporter.executors import available_cores
    from robocache_ros.formats.video import VideoFile, VideoSettings

    settings = VideoSettings(wanted["crf"], wanted["preset"], wanted["gop"])
    pixels = HEIGHT * WIDTH * 3
    with Bag(wanted["bag"]) as bag:
        films = [
            [np.frombuffer(message.data, np.uint8)[-pixels:] for message in bag.messages([camera_topic(camera)])]
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

        before, started = cpu_seconds(), time.perf_counter()
        list(pool.map(encode, range(len(parts)), parts))
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "cpu_seconds": cpu_seconds() - before, "rows": rows}


def reader(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Read all messages of a recording: reader, `robocache` or `rosbags`, and bag."""
    size = 0
    if wanted["reader"] == "robocache":
        from robocache_ros.bags.reader import Bag
        from robocache_ros.extras import need

        need("pyarrow", "export")  # imported before, as in an export

        started, before = time.perf_counter(), time.process_time()
        with Bag(wanted["bag"]) as bag:
            for message in bag.messages(views=True):
                size += len(message.data)
    else:
        from rosbags.rosbag2 import Reader

        started, before = time.perf_counter(), time.process_time()
        with Reader(wanted["bag"]) as opened:
            for _, _, data in opened.messages():
                size += len(data)
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - before, "bytes": size}


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    print(json.dumps({"export": export, "encoders": encoders, "reader": reader}[sys.argv[1]](json.loads(sys.argv[2]))))
