"""Exports in the formats of this folder, made once, and what the engine computes for their episodes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.engine_rows import Rows, engine_episodes
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

FORMATS = ("rlds", "webdataset", "mcap")
TASK = "lift the cube: größer"


@dataclass(frozen=True)
class Exported:
    """A dataset in each format, and what the engine computes for its episodes."""

    out: Path
    spec: FusionSpec
    recordings: tuple[Path, ...]  # of the episodes
    episodes: tuple[Rows, ...]

    @property
    def lengths(self) -> list[int]:
        """Number of ticks of each episode."""
        return [len(rows["tick_ns"]) for rows in self.episodes]

    def vectors(self, expected: Rows, role: str) -> np.ndarray:
        """(T, S) the vectors of a role that are not windows, one beside the other."""
        names = [stream.name for stream in self.spec.vectors if stream.role == role and not stream.rows]
        return np.concatenate([expected[name] for name in names], axis=1)


def tables(reported: dict[str, Any]) -> Iterator[Rows]:
    """The arrays that a probe wrote, by episode."""
    for episode in reported["episodes"]:
        with np.load(episode["file"]) as file:
            yield {name.replace("|", "/"): file[name] for name in file.files}


def picture(data: bytes) -> np.ndarray:
    """(H, W, 3) a jpeg or PNG file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def close(images: np.ndarray, expected: np.ndarray) -> bool:
    """Whether images are those of a jpeg of high quality; those of the sensors are noise, its worst case."""
    return bool(np.abs(images.astype(int) - expected).mean() < 20)


KINDS = [("robot", "image"), ("robot", "video"), ("sensors", "image"), ("sensors", "video"), ("sensors", "none")]
Make = Callable[[str, str], Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, bags: list[Path], spec: FusionSpec) -> Make:
    """Datasets by recordings and media. `robot`: voxels; `sensors`: masks, gray and depth images, a window."""
    folder = tmp_path_factory.mktemp("records")
    sensors = tuple(sensor_recording(folder / f"sensors_{seed}", seed) for seed in (1, 2))
    recordings = {"robot": (tuple(bags), spec), "sensors": (sensors, sensor_spec())}
    made: dict[tuple[str, str], Exported] = {}

    def make(name: str, media: str) -> Exported:
        if (name, media) not in made:
            found, own = recordings[name]
            own = own.without_cameras() if media == "none" else own
            options = DatasetOptions(formats=FORMATS, task=TASK, robot_type="panda", media=media)
            result = export(found, own, folder / f"{name}_{media}", options)
            paths = [recording.bag for recording in result.recordings for _ in recording.episodes]
            made[name, media] = Exported(result.out, own, tuple(paths), tuple(engine_episodes(result, own)))
        return made[name, media]

    return make
