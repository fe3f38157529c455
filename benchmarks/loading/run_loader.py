"""Measures our loader on one dataset, and what bounds it, in a process of its own. Run by the benchmark."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robocache_ros.datasets import (
    LeRobotTimelineDataset,
    RoboMimicDataset,
    RTXDataset,
    ShuffledRuns,
    TimelineLoader,
    Window,
)
from robocache_ros.extras import need

MIMIC_BATCH, VIDEO_BATCH, HORIZON = 100, 32, 16
RATE_HZ = 10  # of the RLDS dataset; the ticks are its steps
Rates = Mapping[str, Callable[[], float]]  # what -> a measurement per second


def robomimic(path: Path, keys: list[str], workers: int) -> Rates:
    """Batches per second of low-dimensional windows in random order."""
    dataset = RoboMimicDataset(path, target_hz=20, rate_hz=20, obs_keys=keys, window=Window())
    loader = TimelineLoader(dataset, MIMIC_BATCH, shuffle=True, drop_last=True, cache="host")
    next(iter(loader))
    table = torch.zeros(len(dataset), 64)
    order = torch.split(torch.randperm(len(dataset)), MIMIC_BATCH)
    return {
        "ours, cache='host'": lambda: _rate(lambda: sum(1 for _ in range(5) for _ in loader)),
        "bound: one gather of 256 B per sample": lambda: _rate(
            lambda: sum(1 for _ in range(5) for rows in order if table.index_select(0, rows) is not None)
        ),
    }


def rlds(path: Path, keys: list[str], workers: int) -> Rates:
    """Episodes per second with images."""
    dataset = RTXDataset(path, target_hz=RATE_HZ, rate_hz=RATE_HZ)
    decode = need("simplejpeg", "datasets").decode_jpeg
    episodes: list[Any] = [dataset.streams_of(index).streams["vision/image"].values for index in range(4)]
    files = [[bytes(each) for each in episode] for episode in episodes]
    out = np.empty((256, 256, 3), np.uint8)
    return {
        **_by_workers(workers, lambda n: TimelineLoader(dataset, 1, shuffle=True, workers=n), lambda batch: 1),
        "bound: jpeg alone, one core": lambda: _rate(
            lambda: sum(1 for episode in files for file in episode if decode(file, "RGB", buffer=out) is not None) / 100
        ),
    }


def rlds_small(path: Path, keys: list[str], workers: int) -> Rates:
    """Episodes per second of the processor with images of half the size, without workers."""

    def measured(resize: str) -> float:
        dataset = RTXDataset(path, target_hz=RATE_HZ, rate_hz=RATE_HZ, image_size=(128, 128), image_resize=resize)
        loader = TimelineLoader(dataset, 1, shuffle=True)
        next(iter(loader))
        started = time.process_time()
        return sum(1 for _ in loader) / (time.process_time() - started)

    return {f"ours, {resize}": lambda resize=resize: measured(resize) for resize in ("area", "reduced")}  # type: ignore[misc]


def lerobot(path: Path, keys: list[str], workers: int) -> Rates:
    """Samples per second of windows with images of videos in random order."""
    dataset = LeRobotTimelineDataset(path, target_hz=30, window=Window(horizon=HORIZON))

    def made(shuffle: bool | ShuffledRuns) -> Callable[[int], TimelineLoader]:
        return lambda workers: TimelineLoader(dataset, VIDEO_BATCH, shuffle=shuffle, workers=workers)

    forms = {}
    for name, shuffle in (("ShuffledRuns", ShuffledRuns()), ("shuffle=True", True)):
        each = _by_workers(workers, made(shuffle), lambda batch: len(batch["index"]))
        forms.update({f"{key}, {name}": measure for key, measure in each.items()})
    video = next((path / "videos").rglob("*.mp4"))
    return {
        **forms,
        "bound: decoding in sequence, two frames a sample, one core": lambda: _rate(lambda: _frames(video) / 2),
    }


def lerobot_numbers(path: Path, keys: list[str], workers: int) -> Rates:
    """Samples per second of windows without images in random order."""
    dataset = LeRobotTimelineDataset(path, ("proprio", "language"), target_hz=30, window=Window(horizon=HORIZON))
    loader = TimelineLoader(dataset, VIDEO_BATCH, shuffle=True, cache="host")
    next(iter(loader))
    runs = TimelineLoader(dataset, VIDEO_BATCH, shuffle=ShuffledRuns())
    return {
        "ours, cache='host'": lambda: _rate(lambda: sum(len(b["index"]) for _ in range(20) for b in loader)),
        "ours, ShuffledRuns, no cache": lambda: _rate(lambda: sum(len(b["index"]) for b in runs)),
    }


def _by_workers(
    workers: int, make: Callable[[int], TimelineLoader], count: Callable[[Mapping[str, Any]], int]
) -> dict[str, Callable[[], float]]:
    """Measure a loader with and without workers; their start is not measured."""

    def measured(number: int) -> float:
        loader = make(number)
        iterator = iter(loader)
        next(iterator)
        del iterator
        found = _rate(lambda: sum(map(count, loader)))
        loader.close()
        return found

    return {f"ours, {number} workers": lambda number=number: measured(number) for number in (0, workers)}  # type: ignore[misc]


def _rate(counted: Callable[[], float]) -> float:
    started = time.perf_counter()
    return counted() / (time.perf_counter() - started)


def _frames(video: Path) -> int:
    with need("av", "datasets").open(str(video)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        converter = need("av.video.reformatter", "datasets").VideoReformatter()
        frames: Iterable[Any] = container.decode(stream)
        return sum(1 for frame in frames if converter.reformat(frame, format="rgb24").to_ndarray() is not None)


CASES = {
    "robomimic": robomimic,
    "rlds": rlds,
    "rlds_small": rlds_small,
    "lerobot": lerobot,
    "lerobot_numbers": lerobot_numbers,
}


def main() -> None:
    """Measure; the argument is a JSON object: case, path, keys, workers."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    rates = CASES[wanted["case"]](Path(wanted["path"]), wanted["keys"], wanted["workers"])
    print(json.dumps({name: measure() for name, measure in rates.items()}))


if __name__ == "__main__":
    main()
