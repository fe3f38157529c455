"""Small datasets as the tools of each format write them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.datasets import LoaderOptions, SourceEpisode, Stream, TimelineDataset, TimelineLoader
from robocache_ros.extras import need
from robocache_ros.formats.rlds.tfrecord import BytesList, encode_example, write_records

EPISODES, STEPS, SIZE = 2, 6, 16  # of a dataset, unless a test chooses others


def picture(pixels: int | NDArray[np.uint8], kind: str = "png", **options: Any) -> bytes:
    """An image file of (H, W, 3) pixels, or of one value."""
    file = io.BytesIO()
    given = np.full((8, 8, 3), pixels, np.uint8) if isinstance(pixels, int) else pixels
    need("PIL.Image", "datasets").fromarray(given).save(file, kind, **options)
    return file.getvalue()


def write_video(path: Path, images: NDArray[np.uint8], rate: int = 50, gop: int | None = None) -> Path:
    """Write (N, H, W, 3) images as a video, in the container that the name of the file ends with."""
    av = need("av", "datasets")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(rate))  # in every FFmpeg
        stream.height, stream.width, stream.pix_fmt = *images.shape[1:3], "yuv420p"
        if gop:
            stream.gop_size = gop
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode())
    return path


def _state(episode: int, steps: int = STEPS) -> NDArray[np.float32]:
    return (episode + np.arange(steps * 3).reshape(steps, 3) / 7).astype(np.float32)


def _images(episode: int, steps: int = STEPS) -> NDArray[np.uint8]:
    return np.random.default_rng(episode).integers(0, 256, (steps, SIZE, SIZE, 3), np.uint8)


class InMemory:
    """A source of episodes that have some streams each."""

    def __init__(self, *episodes: Sequence[Stream]) -> None:
        self.episodes = [{stream.name: stream for stream in streams} for streams in episodes]

    def __len__(self) -> int:
        return len(self.episodes)

    def read(self, index: int) -> SourceEpisode:
        return SourceEpisode(self.episodes[index], f"task {index}", "memory", f"memory: {index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        return self.read(index).span_ns()


def loader_of(dataset: Any, batch_size: int = 4, **options: Any) -> TimelineLoader:
    """A loader, by its options and those of `LoaderOptions`."""
    loading = {field.name: options.pop(field.name) for field in fields(LoaderOptions) if field.name in options}
    return TimelineLoader(dataset, batch_size, options=LoaderOptions(**loading), **options)


def first_batch(dataset: Any, batch_size: int = 4, **options: Any) -> dict[str, Any]:
    return next(iter(loader_of(dataset, batch_size, **options)))


def samples(*datasets: TimelineDataset) -> list[dict[str, Any]]:
    """The samples of datasets, one dataset after the other."""
    return [dataset[index] for dataset in datasets for index in range(len(dataset))]


def same(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two sequences of samples or of batches are the same, bit for bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return a.dtype == b.dtype and a.equal(b)
        return bool(a == b)

    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a) for a, b in zip(first, second, strict=True)
    )


# RLDS.


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    """A feature of features.json."""
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": encoding}}


def sequence(feature: dict[str, Any], length: int = -1) -> dict[str, Any]:
    return {"sequence": {"feature": feature, "length": str(length)}}


def features_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": dict(features)}}


IMAGE: dict[str, Any] = {"image": {"shape": {}}}
STEP = {
    "observation": features_dict({"state": tensor("float32", 2), "image": IMAGE}),
    "action": tensor("float32", 1),
    "is_first": tensor("bool"),
    "language_instruction": {"text": {}},
}


def write_tfds(
    folder: Path,
    episodes: Sequence[Mapping[str, Any]],
    steps: Mapping[str, Any] = STEP,
    *,
    name: str = "bridge",
    shards: int = 1,
    beside: Mapping[str, Any] | None = None,
    **split: Any,
) -> Path:
    """Write a TFDS dataset: the values of each episode by their path in `steps`, or in `beside`, its other features.

    `split` is what dataset_info.json states of the split `train`, in place of what is true.
    """
    beside = beside or {}
    folder.mkdir(parents=True, exist_ok=True)
    tree = features_dict({"steps": sequence(features_dict(steps)), **beside})
    (folder / "features.json").write_text(json.dumps(tree), encoding="utf-8")
    lengths = [len(part) for part in np.array_split(np.arange(len(episodes)), shards)]
    about = {"name": "train", "shardLengths": [str(n) for n in lengths], "numBytes": "0", **split}
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [about]}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    rest = iter(episodes)
    for shard, count in enumerate(lengths):
        records = []
        for _ in range(count):
            given = {path if path in beside else f"steps/{path}": values for path, values in next(rest).items()}
            features = {k: BytesList(v) if isinstance(v, list) else v for k, v in given.items()}
            records.append(encode_example(features))
        write_records(folder / f"{name}-train.tfrecord-{shard:05d}-of-{shards:05d}", records)
    return folder


def episode(length: int, start: float = 0.0) -> dict[str, Any]:
    """An episode with the features `STEP`: the state counts from `start` on."""
    rows: NDArray[np.float32] = (start + np.arange(length)).astype(np.float32)
    return {
        "observation/state": np.stack([rows, -rows], axis=1),
        "observation/image": [picture(step) for step in range(length)],
        "action": rows * 10,
        "is_first": np.arange(length) == 0,
        "language_instruction": [b"lift"] * length,
    }


def write_rlds(folder: Path, *, compressed: bool = False) -> None:
    """Write a TFDS dataset, a record per episode in one file."""
    observation = features_dict({"state": tensor("float32", 3), "image": IMAGE})
    episodes = [
        {
            "observation/state": _state(number),
            "observation/image": [picture(image, "jpeg") for image in _images(number)],
            "action": -_state(number),
            "is_first": np.arange(STEPS) == 0,
            "language_instruction": [b"lift"] * STEPS,
        }
        for number in range(EPISODES)
    ]
    write_tfds(folder, episodes, {**STEP, "observation": observation, "action": tensor("float32", 3)})
    if compressed:
        (path,) = folder.glob("*.tfrecord*")
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


# Files of HDF5.


def robomimic_demo(number: int, steps: int = STEPS) -> dict[str, NDArray[Any]]:
    """The arrays of a demonstration by their names in its group."""
    state, random = _state(number, steps).astype(np.float64), np.random.default_rng(number)
    return {
        "actions": -state,
        "rewards": (np.arange(steps) == steps - 1).astype(np.float64),
        "obs/state": state,
        "obs/gripper": random.normal(size=(steps, 2)),
        "obs/front_image": _images(number, steps),
        "obs/front_depth": random.random((steps, SIZE, SIZE, 1), np.float32),
        "next_obs/state": state + 1,
    }


def write_robomimic(
    folder: Path,
    *,
    compressed: bool = False,
    lengths: Sequence[int] = (STEPS,) * EPISODES,
    masks: Mapping[str, Sequence[int]] | None = None,
    name: str = "lift.hdf5",
    **env: Any,
) -> Path:
    """Write an HDF5 file as robomimic does: demonstrations of some lengths, masks, and keywords of the environment."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"compression": "gzip"} if compressed else {}
    with need("h5py", "datasets").File(path, "w") as file:
        data = file.create_group("data")
        about = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, **env}}
        data.attrs["env_args"] = json.dumps(about, indent=4)
        data.attrs["total"] = sum(lengths)
        for number, steps in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            for key, values in robomimic_demo(number, steps).items():
                demo.create_dataset(key, data=values, **options)
        for mask, numbers in (masks or {"train": range(len(lengths))}).items():
            file[f"mask/{mask}"] = np.array([f"demo_{k}" for k in numbers], "S")
    return path


def write_hdf5(folder: Path, **storage: Any) -> Path:
    """Write trajectories of one's own."""
    folder.mkdir(parents=True, exist_ok=True)
    with need("h5py", "datasets").File(folder / "own.hdf5", "w") as file:
        for number in range(EPISODES):
            streams = {"joints": _state(number), "actions": -_state(number), "front": _images(number)}
            for name, values in streams.items():
                file.create_dataset(f"{number}/{name}/values", data=values, **storage)
                file[f"{number}/{name}/stamps_ns"] = np.arange(STEPS) * 20_000_000
    return folder / "own.hdf5"


# LeRobot.

CAMERA = "observation.images.front"


def write_lerobot(
    folder: Path, *, media: str = "image", version: str = "v3.0", lengths: Sequence[int] = (STEPS,) * EPISODES
) -> Path:
    """Write a LeRobot dataset; `media` is image or video, `version` v3.0 or v2.1."""
    (folder / "meta").mkdir(parents=True)
    shape: dict[str, Any] = {"dtype": "float32", "shape": [3]}
    image = {"dtype": media, "shape": [SIZE, SIZE, 3]}
    chunk = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    if version != "v3.0":
        chunk = "chunk-{episode_chunk:03d}/episode_{episode_index:06d}"
    info = {
        "codebase_version": version,
        "fps": 50,
        "chunks_size": 1000,
        "features": {"observation.state": shape, "action": shape, CAMERA: image},
        "data_path": f"data/{chunk}.parquet",
        "video_path": f"videos/{{video_key}}/{chunk}.mp4",
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info), encoding="utf-8")
    write = _write_v3 if version == "v3.0" else _write_v2
    write(folder, [_table(number, steps, media) for number, steps in enumerate(lengths)], media)
    return folder


def _table(number: int, steps: int, media: str) -> Any:
    arrow = need("pyarrow", "datasets")

    def vectors(values: NDArray[np.float32]) -> Any:
        return arrow.FixedSizeListArray.from_arrays(values.reshape(-1), 3)

    columns = {
        "observation.state": vectors(_state(number, steps)),
        "action": vectors(-_state(number, steps)),
        "episode_index": arrow.array(np.full(steps, number)),
        "task_index": arrow.array(np.zeros(steps, np.int64)),
    }
    if media == "image":
        files = [{"bytes": picture(image), "path": None} for image in _images(number, steps)]
        columns[CAMERA] = arrow.array(files, arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())]))
    return arrow.table(columns)


def _write_v3(folder: Path, tables: list[Any], media: str) -> None:
    arrow, parquet = need("pyarrow", "datasets"), need("pyarrow.parquet", "datasets")
    for name in ("data", "meta/episodes"):
        (folder / name / "chunk-000").mkdir(parents=True)
    parquet.write_table(arrow.concat_tables(tables), folder / "data/chunk-000/file-000.parquet")
    rows = []
    for number, table in enumerate(tables):
        first = sum(map(len, tables[:number]))
        row: dict[str, Any] = {"episode_index": number, "length": len(table)}
        row |= {"data/chunk_index": 0, "data/file_index": 0}
        row |= {"dataset_from_index": first, "dataset_to_index": first + len(table)}
        if media == "video":
            video = {"chunk_index": 0, "file_index": 0, "from_timestamp": first / 50}
            row |= {f"videos/{CAMERA}/{name}": value for name, value in video.items()}
        rows.append(row)
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    parquet.write_table(arrow.table({"task_index": [0], "task": ["lift"]}), folder / "meta/tasks.parquet")
    if media == "video":
        images = np.concatenate([_images(number, len(table)) for number, table in enumerate(tables)])
        write_video(folder / f"videos/{CAMERA}/chunk-000/file-000.mp4", images)


def _write_v2(folder: Path, tables: list[Any], media: str) -> None:
    parquet = need("pyarrow.parquet", "datasets")
    (folder / "data/chunk-000").mkdir(parents=True)
    rows = [{"episode_index": k, "tasks": ["lift"], "length": len(table)} for k, table in enumerate(tables)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "lift"}', encoding="utf-8")
    for number, table in enumerate(tables):
        parquet.write_table(table, folder / f"data/chunk-000/episode_{number:06d}.parquet")
        if media == "video":
            path = folder / f"videos/{CAMERA}/chunk-000/episode_{number:06d}.mp4"
            write_video(path, _images(number, len(table)))


# CALVIN.

TASKS = ("open_drawer", "push_block")


def calvin_step(step: int) -> dict[str, NDArray[Any]]:
    """The arrays of a step; the smaller ones of those that CALVIN's recorder writes."""
    random = np.random.default_rng(step)
    ramp = np.add.outer(np.add.outer(3 * np.arange(20), 5 * np.arange(20)), 7 * np.arange(3)) + step
    return {
        "rgb_static": ramp.astype(np.uint8),
        "rgb_gripper": (100 + ramp[:8, :8]).astype(np.uint8),
        "rgb_tactile": np.zeros((4, 4, 6), np.uint8),
        "depth_static": random.random((20, 20), np.float32),
        "robot_obs": np.arange(15.0) + step,
        "rel_actions": random.uniform(-1, 1, 7),
        "actions": random.normal(size=7),
        "scene_obs": np.zeros(24),
    }


def write_calvin(
    folder: Path, lengths: Sequence[int] = (STEPS,) * EPISODES, annotated: Sequence[tuple[int, int]] | None = None
) -> Path:
    """Write a split of CALVIN: recordings of some steps, and the first and last steps of each annotation.

    Without annotations of its own, each recording has one; without any, the split has none.
    """
    (folder / "lang_annotations").mkdir(parents=True)
    ends = np.cumsum(lengths)
    np.save(folder / "ep_start_end_ids.npy", np.stack([ends - lengths, ends - 1], axis=1))
    for step in range(sum(lengths)):
        np.savez(folder / f"episode_{step:07d}.npz", **calvin_step(step))  # type: ignore[arg-type]
    indices = list(zip(ends - lengths, ends - 1, strict=True)) if annotated is None else list(annotated)
    if indices:
        write_annotations(folder, indices)
    return folder


def write_annotations(folder: Path, indices: Any, **language: Any) -> None:
    """Write the annotations of a split: ranges of steps, whose tasks and texts take turns."""
    count = len(indices) if isinstance(indices, list) else EPISODES
    tasks = [TASKS[k % 2] for k in range(count)]
    texts = [f"{task.replace('_', ' ')} {k}" for k, task in enumerate(tasks)]
    about = {"ann": texts, "task": tasks, "emb": np.zeros((count, 1, 8), np.float32), **language}
    reported: Any = {"language": about, "info": {"indx": indices, "episodes": []}}
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", reported, allow_pickle=True)
