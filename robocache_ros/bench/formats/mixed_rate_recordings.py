"""The synthetic episodes as recordings, from which exports make datasets of every format."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.bags.write import write_bag
from robocache_ros.bench.training.mixed_rate_episodes import STREAMS
from robocache_ros.datasets import EpisodeSource
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.job import export
from robocache_ros.spec import load_spec

ARRAY = "std_msgs/msg/Float32MultiArray"
START_NS = 1_760_000_000_000_000_000
RATE_HZ = 50
TASK = "follow the wave"


def spec() -> dict[str, Any]:
    """A spec with the streams of the episodes. The messages have no header: their log times are their stamps."""
    streams = {
        stream.name: {
            "topic": f"/{stream.name}",
            "type": ARRAY,
            "dim": stream.width,
            "stamp": "receive",
            "align": "hold" if stream.role == "action" else "linear",
            "role": stream.role,
        }
        for stream in STREAMS
    }
    return {"robocache": 1, "rate_hz": RATE_HZ, "streams": streams}


def export_episodes(source: EpisodeSource, work: Path, out: Path, formats: tuple[str, ...]) -> None:
    """Export episodes to a folder, each format in a folder of its name.

    Args:
        source: of the streams of `mixed_rate_episodes.STREAMS`.
        work: empty folder for the recordings.
        out: new folder for the datasets.
        formats: at least one.
    """
    types = {f"/{stream.name}": ARRAY for stream in STREAMS}
    bags = [write_bag(work / f"episode_{k:05d}", types, _messages(source, k)) for k in range(len(source))]
    target = out / formats[0] if len(formats) == 1 else out
    export(bags, load_spec(spec()), target, ExportOptions(formats, task=TASK, media="none"), report=False)


def _messages(source: EpisodeSource, index: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield (topic, log time in ns, CDR bytes) in the order of their times."""
    found = []
    for name, stream in source.read(index).streams.items():
        values = np.asarray(stream.values, np.float32)
        head = b"\0\1\0\0" + struct.pack("<3I", 0, 0, values.shape[1])
        found += [
            (START_NS + t, f"/{name}", head + row.tobytes()) for t, row in zip(stream.stamps_ns, values, strict=True)
        ]
    for stamp_ns, topic, data in sorted(found, key=lambda each: each[0]):
        yield topic, int(stamp_ns), data
