"""Datasets of every format: real ones, exports of a recording, and small synthetic ones."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.formats.rlds.tfrecord import BytesList, RecordWriter, encode_example
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.shared import once

ROOT = Path(__file__).parents[2]
MODULE = "tensorflow_datasets.core.features."


@pytest.fixture(scope="session")
def spec() -> FusionSpec:
    return load_spec(ROOT / "config" / "panda_lift.yaml")


@pytest.fixture(scope="session")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short cut of the Panda recording around its gap: two episodes."""
    folder = tmp_path_factory.mktemp("bag")
    with Bag(ROOT / "test" / "data" / "panda_lift") as complete:
        types = {name: topic.type for name, topic in complete.topics.items()}
        start = complete.start_ns + 3_500_000_000
        return write_bag(folder / "lift", types, list(complete.messages(None, start, start + 1_500_000_000)))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, bag: Path, spec: FusionSpec) -> Callable[[str], Path]:
    """The recording in all formats, by how its images are stored."""

    def make(folder: Path) -> Path:
        formats = ("lerobot", "lerobot21", "robomimic", "rlds", "webdataset", "diffusion_policy", "mcap", "delta")
        media = folder.name.rpartition("_")[2]
        options = DatasetOptions(formats=formats, task="lift the cube", robot_type="panda", media=media)
        return export([bag], spec, folder / "out", options).out

    return lambda media: once(tmp_path_factory, f"panda_in_all_formats_{media}", make)


@pytest.fixture
def real() -> Path:
    """The folder of recordings and datasets that others made."""
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    return Path(folder)


def picture(value: int, kind: str = "png", size: int = 8) -> bytes:
    """An image file of one value."""
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(file, kind)
    return file.getvalue()


def tensor(dtype: str, *shape: int) -> dict[str, Any]:
    """A feature of features.json."""
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": "none"}}


def features_dict(features: dict[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


def write_tfds(
    folder: Path, steps: dict[str, Any], episodes: list[dict[str, Any]], *, name: str = "bridge", shards: int = 1
) -> Path:
    """Write a TFDS dataset of the features of a step, and the values of each episode by their path in `steps`."""
    folder.mkdir(parents=True)
    tree = {"sequence": {"feature": features_dict(steps), "length": "-1"}}
    (folder / "features.json").write_text(json.dumps(features_dict({"steps": tree})))
    lengths = [len(part) for part in np.array_split(np.arange(len(episodes)), shards)]
    split = {"name": "train", "shardLengths": [str(n) for n in lengths], "numBytes": "0"}
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    rest = iter(episodes)
    for shard, count in enumerate(lengths):
        writer = RecordWriter(folder / f"{name}-train.tfrecord-{shard:05d}-of-{shards:05d}")
        for _ in range(count):
            given = {f"steps/{path}": values for path, values in next(rest).items()}
            writer.write(*encode_example({k: BytesList(v) if isinstance(v, list) else v for k, v in given.items()}))
        writer.close()
    return folder


STEPS = {
    "observation": features_dict({"state": tensor("float32", 2), "image": {"image": {"shape": {}}}}),
    "action": tensor("float32", 1),
    "is_first": tensor("bool"),
    "language_instruction": {"text": {}},
}


def episode(length: int, start: float = 0.0) -> dict[str, Any]:
    """An episode with the features `STEPS`: the state counts from `start` on."""
    rows: NDArray[np.float32] = (start + np.arange(length)).astype(np.float32)
    return {
        "observation/state": np.stack([rows, -rows], axis=1),
        "observation/image": [picture(step) for step in range(length)],
        "action": rows * 10,
        "is_first": np.arange(length) == 0,
        "language_instruction": [b"lift"] * length,
    }


def write_calvin(folder: Path, steps: int = 12, annotations: Any = None) -> Path:
    """Write a split of CALVIN of two recordings, and its annotations."""
    folder.mkdir(parents=True)
    np.save(folder / "ep_start_end_ids.npy", np.array([[100, 99 + steps // 2], [100 + steps // 2, 99 + steps]]))
    for step in range(steps):
        np.savez(
            folder / f"episode_{100 + step:07d}.npz",
            rgb_static=np.full((20, 20, 3), step, np.uint8),
            rgb_gripper=np.full((8, 8, 3), 100 + step, np.uint8),
            rgb_tactile=np.zeros((4, 4, 6), np.uint8),
            robot_obs=np.arange(15) + step,
            rel_actions=np.arange(7) / 10 - step / 100,
            actions=np.arange(7) * 1.0,
            scene_obs=np.zeros(24),
        )
    if annotations is not None:
        (folder / "lang_annotations").mkdir()
        np.save(folder / "lang_annotations" / "auto_lang_ann.npy", annotations, allow_pickle=True)
    return folder
