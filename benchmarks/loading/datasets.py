"""Writes the datasets of the benchmark: the sizes are those of the public ones, the values are synthetic."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import recordings
from robocache_ros.extras import need
from robocache_ros.formats.rlds.tfrecord import BytesList, encode_example, write_records
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export

OBSERVATIONS = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10}
RLDS_STEPS, RLDS_SIZE = 100, 256
VIDEO_SIZE, EPISODE_S = 224, 8.0


def robomimic(path: Path, demos: int = 200) -> Path:
    """Write low-dimensional demonstrations, as many and as long as those of Lift of robomimic."""
    rng = np.random.default_rng(0)
    with need("h5py", "datasets").File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}})
        for index in range(demos):
            steps = int(rng.integers(40, 57))
            demo = data.create_group(f"demo_{index}")
            demo.attrs["num_samples"] = steps
            demo["actions"] = rng.normal(size=(steps, 7))
            demo["rewards"], demo["dones"] = np.zeros(steps), np.zeros(steps, np.int64)
            for key, width in OBSERVATIONS.items():
                demo[f"obs/{key}"] = rng.normal(size=(steps, width))
    return path


def rlds(folder: Path, episodes: int = 48, shards: int = 4) -> Path:
    """Write a TFDS dataset with one jpeg image of 256x256 per step."""
    folder.mkdir(parents=True)
    (folder / "features.json").write_text(json.dumps(_features_dict({"steps": _sequence()})))
    lengths = [str(episodes // shards)] * shards
    split = {"name": "train", "shardLengths": lengths, "numBytes": "0"}
    info = {"name": "synthetic", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    rng = np.random.default_rng(0)
    for shard in range(shards):
        records, film = [], recordings.film(shard)
        for _ in range(episodes // shards):
            images = [_jpeg(next(film)[:RLDS_SIZE, :RLDS_SIZE]) for _ in range(RLDS_STEPS)]
            steps: dict[str, Any] = {
                "observation/image": BytesList(images),
                "observation/state": rng.normal(size=(RLDS_STEPS, 7)).astype(np.float32),
                "action": rng.normal(size=(RLDS_STEPS, 7)).astype(np.float32),
                "is_first": np.arange(RLDS_STEPS) == 0,
            }
            records.append(encode_example({f"steps/{name}": values for name, values in steps.items()}))
        write_records(folder / f"synthetic-train.tfrecord-{shard:05d}-of-{shards:05d}", records)
    return folder


def lerobot(folder: Path, seconds: float = 48) -> Path:
    """Write a LeRobot v3.0 dataset with videos of 224x224 at 30 Hz, and without what only this project adds."""
    bag = recordings.write(folder / "recording", seconds, 2, size=VIDEO_SIZE)
    options = DatasetOptions(formats=("lerobot",), split_s=EPISODE_S)
    out = folder / "dataset"
    export([bag], load_spec(recordings.spec(2)), out, options)
    _leave_out_additions(out)
    return out


def _leave_out_additions(folder: Path) -> None:
    parquet = need("pyarrow.parquet", "datasets")
    info = folder / "meta" / "info.json"
    content = json.loads(info.read_text())
    content["features"] = {
        name: each for name, each in content["features"].items() if not name.startswith("robocache.")
    }
    info.write_text(json.dumps(content))
    (folder / "meta" / "robocache.json").unlink()
    for file in (folder / "data").rglob("*.parquet"):
        table = parquet.read_table(file)
        kept = table.select([name for name in table.column_names if not name.startswith("robocache.")])
        parquet.write_table(kept.replace_schema_metadata(None), file)


def _jpeg(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    need("PIL.Image", "datasets").fromarray(image).save(file, "jpeg", quality=95)
    return file.getvalue()


def _sequence() -> dict[str, Any]:
    steps = {
        "observation": _features_dict({"state": _tensor("float32", 7), "image": {"image": {"shape": {}}}}),
        "action": _tensor("float32", 7),
        "is_first": _tensor("bool"),
    }
    return {"sequence": {"feature": _features_dict(steps), "length": "-1"}}


def _tensor(dtype: str, *shape: int) -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": "none"}}


def _features_dict(features: dict[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}
