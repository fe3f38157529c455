"""One measured run in a process of its own, without the time of imports, and JSON.

`export`, `shares` (an export, and the CPU time of its parts), `encoders` or `reader`.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def export(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Export recordings as `robocache export` does: bags, spec, out, jobs, options of the export, device."""
    from robocache_ros.exporter.executors import return_freed_memory
    from robocache_ros.formats.registry import load_format
    from robocache_ros.spec import load_spec
    from robocache_ros.spec.dataset import DatasetOptions
    from test.exporting import export

    options = DatasetOptions(**{**wanted["options"], "formats": tuple(wanted["options"].get("formats", ["lerobot"]))})
    for name in options.formats:
        load_format(name)
    return_freed_memory()
    before = cpu_seconds()
    spec = load_spec(wanted["spec"])
    more = {"jobs": wanted["jobs"], "device": wanted.get("device", "cpu")}
    done = export([Path(bag) for bag in wanted["bags"]], spec, wanted["out"], options, **more)
    return {"seconds": done.seconds, "cpu_seconds": cpu_seconds() - before, "rows": done.frames}


# What of an export is measured by itself: module, class or table, and function.
PARTS = {
    "encode video": ("robocache_ros.formats.video", "VideoFile", "write"),
    "encode jpeg": ("robocache_ros.formats.pictures", "ENCODE", "jpeg"),
    "write encoded images": ("robocache_ros.formats.pictures", "BlobWriter", "append"),
    "statistics of images": ("robocache_ros.formats.statistics", "Histogram", "add"),
    "SHA-256 of the recording": ("robocache_ros.exporter.pieces", "Checksums", "_sha256"),
    "read the recording": ("robocache_ros.storage.downloads", "StoredFile", "block"),
    "copy images of ticks": ("robocache_ros.engine.backends.cpu", "MediaStore", "take"),
    "SHA-256 of pieces and datasets": ("robocache_ros.formats.dataset_folder", "", "sha256"),
    "flush to disk": ("robocache_ros.formats.dataset_folder", "", "sync"),
    "compress chunks of Zarr": ("robocache_ros.formats.diffusion_policy", "", "_write_chunk"),
    "write HDF5": ("robocache_ros.formats.robomimic", "", "_write_file"),
    "write mcap": ("robocache_ros.formats.mcap", "", "_write_episodes"),
}


def shares(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Export as `export` does, in this process; also return the CPU seconds of each of `PARTS`."""
    found = dict.fromkeys(PARTS, 0.0)
    lock = threading.Lock()

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*given, **options)
            finally:
                with lock:
                    found[part] += time.thread_time() - started

        return run

    for part, (module, owner, name) in PARTS.items():
        place: Any = import_module(module)
        place = getattr(place, owner) if owner else place
        if isinstance(place, dict):
            place[name] = timed(part, place[name])
        else:
            setattr(place, name, timed(part, getattr(place, name)))
    return {**export(wanted), "shares": found}


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
    kinds = {"export": export, "shares": shares, "encoders": encoders, "reader": reader}
    print(json.dumps(kinds[sys.argv[1]](json.loads(sys.argv[2]))))
