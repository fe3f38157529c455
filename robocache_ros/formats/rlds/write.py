"""Write RLDS datasets: TFRecord files of episodes, with the metadata of TFDS."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.dataset import Episode, ExportedDataset, StoredMedia
from robocache_ros.formats.read import ACTION, PROVENANCE, STATE
from robocache_ros.formats.rlds import read as rlds
from robocache_ros.formats.rlds.tfrecord import RECORD_BYTES, BytesList, Feature, encode_example, write_records
from robocache_ros.formats.write import (
    FileTask,
    HeldBytes,
    WrittenByTasks,
    shard_tasks,
    write_json,
    write_provenance,
)
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

_MODULE = "tensorflow_datasets.core.features."


def tensor(shape: Sequence[int], dtype: str, description: str = "", encoding: str = "none") -> dict[str, Any]:
    """Return a feature of numbers; with the encoding zlib it is stored as the compressed bytes of each array."""
    return {
        "pythonClassName": _MODULE + ("tensor_feature.Tensor" if shape else "scalar.Scalar"),
        "tensor": {"shape": _shape(shape), "dtype": dtype, "encoding": encoding},
        "description": description,
    }


def image(shape: Sequence[int], encoding: str, description: str) -> dict[str, Any]:
    """Return a feature of 8-bit images as jpeg or png files."""
    return {
        "pythonClassName": _MODULE + "image_feature.Image",
        "image": {"shape": _shape(shape), "dtype": "uint8", "encodingFormat": encoding},
        "description": description,
    }


def text(description: str) -> dict[str, Any]:
    """Return a feature of text."""
    return {"pythonClassName": _MODULE + "text_feature.Text", "text": {}, "description": description}


def features_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feature that consists of named features."""
    return {
        "pythonClassName": _MODULE + "features_dict.FeaturesDict",
        "featuresDict": {"features": dict(features)},
    }


def episode_features(
    dataset: ExportedDataset, encodings: Mapping[str, str], windows: Sequence[StreamSpec]
) -> dict[str, Any]:
    """Return features.json."""
    streams = len(dataset.layout.names)
    names = ", ".join(dataset.layout.names)
    engine: dict[str, Any] = {
        "tick_ns": tensor((), "int64", "Time of the step in nanoseconds."),
        "stamp_ns": tensor((streams,), "int64", f"Stamp of the sample used, 0 if there is none: {names}."),
        "valid": tensor((streams,), "uint8", f"0 no value, 1 aligned, 2 held: {names}."),
        "age_ns": tensor((streams,), "int64", f"Age of the sample at the tick: {names}."),
    }
    if windows:
        ages = "Age of each sample in ms, negative for padding."
        engine["sample_age_ms"] = features_dict({s.name: tensor((s.rows,), "float32", ages) for s in windows})
    steps = {
        "observation": features_dict(_observation(dataset, encodings, windows)),
        "reward": tensor((), "float32", "Reward of the step."),
        "discount": tensor((), "float32", "Always 1."),
        "is_first": tensor((), "bool", "True on the first step of the episode."),
        "is_last": tensor((), "bool", "True on the last step of the episode."),
        "is_terminal": tensor((), "bool", "True on the last step of an episode that is known to have succeeded."),
        "language_instruction": text("The task."),
        "robocache": features_dict(engine),
    }
    if dataset.actions:
        steps["action"] = tensor((_width(dataset.actions),), "float32", _labels(dataset.actions))
    metadata = {
        "file_path": text("The recording."),
        "episode_index": tensor((), "int64", "Index in the dataset."),
        "success": tensor((), "int64", "1 success, 0 failure, -1 not known."),
    }
    steps_feature = {
        "pythonClassName": _MODULE + "dataset_feature.Dataset",
        "sequence": {"feature": features_dict(steps), "length": "-1"},
    }
    return features_dict({"steps": steps_feature, "episode_metadata": features_dict(metadata)})


def _observation(
    dataset: ExportedDataset, encodings: Mapping[str, str], windows: Sequence[StreamSpec]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dataset.state:
        found["state"] = tensor((_width(dataset.state),), "float32", _labels(dataset.state))
    for name, encoding in encodings.items():
        found[name] = image((*dataset.pictures[name].shape, 3), encoding, f"RGB image of {name}.")
    for name, info in dataset.arrays.items():
        found[name] = tensor(info.shape, info.numpy_dtype.name, f"Array of {name}.", "zlib")
    for stream in windows:
        samples = f"Samples since the last tick, oldest first: {', '.join(stream.components)}."
        found[stream.name] = tensor(stream.shape, "float32", samples)
    return found


def _width(streams: Sequence[StreamSpec]) -> int:
    return sum(stream.width for stream in streams)


def _labels(streams: Sequence[StreamSpec]) -> str:
    return ", ".join(f"{stream.name}.{component}" for stream in streams for component in stream.components)


def _shape(shape: Sequence[int]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in shape]} if shape else {}


# RLDS datasets (Open X-Embodiment), read by tensorflow-datasets and written without TensorFlow.
#
# robocache/1.0.0/robocache-train.tfrecord-00000-of-0000N   an episode per record
# robocache/1.0.0/features.json                             the features of a record
# robocache/1.0.0/robocache.json                            the provenance
# robocache/1.0.0/dataset_statistics.json                   for normalization, in the form of Octo and OpenVLA
# robocache/1.0.0/dataset_info.json                         the files, written last


NAME, VERSION = "robocache", "1.0.0"  # tfds.builder("robocache", data_dir=...) finds the dataset by them
SHARD_BYTES = 256 << 20  # a file that has about this size is followed by another
ZLIB_LEVEL = 1  # higher levels take several times as long for depth images that are a tenth smaller


class _RldsFormat(WrittenByTasks):
    """RLDS in the files of TFDS."""

    name = "rlds"
    title = "RLDS (TFDS, Open X-Embodiment)"
    entry = NAME
    needs_stats = True

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a spec without observations, and one with a name that RLDS uses for the vectors."""
        need("google_crc32c", "export")
        own = [stream for stream in spec.streams if stream.rows or stream.kind != "vector"]
        if any(stream.name == "state" for stream in own):
            raise RoboCacheError("streams.state: rlds stores all vectors under this name; rename the stream")
        observed = [s for s in spec.vectors if s.role == "observation"] + list(spec.media)
        if not any(s.kind != "image" or options.media != "none" for s in observed):
            raise RoboCacheError("streams: rlds needs an observation; add a stream with role observation")

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        return shard_tasks(dataset, _Contents(dataset).step_bytes(), SHARD_BYTES, _write_shard)

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the metadata. dataset_info.json, by which TFDS recognizes the dataset, is written last."""
        shards, nbytes = [len(group) for group, _ in results], sum(size for _, size in results)
        folder, contents = folder / NAME / VERSION, _Contents(dataset)
        folder.mkdir(parents=True, exist_ok=True)
        features = episode_features(dataset, contents.encodings, contents.windows)
        write_json(folder / rlds.FEATURES, features)
        write_provenance(folder / PROVENANCE, dataset, contents.encodings)
        write_json(folder / rlds.STATISTICS, _statistics(dataset))
        description = f"Robot {dataset.options.robot_type}: {'; '.join(dataset.tasks[:20])}"
        split = {
            "name": "train",
            "filepathTemplate": rlds.TEMPLATE,
            "shardLengths": [str(length) for length in shards],  # numbers of 64 bits are text in the JSON of protobuf
            "numBytes": str(nbytes),
        }
        about = {"name": NAME, "version": VERSION, "description": description, "fileFormat": "tfrecord"}
        write_json(folder / rlds.INFO, {**about, "splits": [split]})


class _Contents:
    """The features of each episode, named as in a tf.train.Example."""

    def __init__(self, dataset: ExportedDataset) -> None:
        self.dataset = dataset
        self.encodings = dataset.encodings(RLDS.encoding)
        self.windows = [stream for stream in dataset.spec.vectors if stream.rows]

    def features(self, episode: Episode) -> dict[str, Feature]:
        """Return the features of an episode. Images and arrays are read when they are encoded."""
        found = self._numbers(episode)
        for name, encoding in self.encodings.items():
            images = episode.images(name, encoding)
            found[rlds.OBSERVATION + name] = BytesList(images, images.sizes.tolist())
        for name in self.dataset.arrays:
            found[rlds.OBSERVATION + name] = BytesList(_compressed(episode.arrays(name)))
        return found

    def step_bytes(self) -> int:
        """Return about how many bytes a step takes: in the first episode, with the array in the middle of it."""
        episode = self.dataset.episodes[0]
        nbytes, _ = encode_example(self._numbers(episode))
        nbytes += sum(int(episode.images(name, encoding).sizes.sum()) for name, encoding in self.encodings.items())
        arrays = (len(_compressed(episode.arrays(name))[episode.length // 2]) for name in self.dataset.arrays)
        return nbytes // int(episode.length) + sum(arrays)

    def _numbers(self, episode: Episode) -> dict[str, Feature]:
        """Return the features without images and arrays."""
        length = episode.length
        steps = np.arange(length)
        found: dict[str, Any] = {
            rlds.REWARD: episode.rewards,
            f"{rlds.STEPS}discount": np.ones(length, np.float32),
            f"{rlds.STEPS}is_first": steps == 0,
            f"{rlds.STEPS}is_last": steps == length - 1,
            f"{rlds.STEPS}is_terminal": (steps == length - 1) & bool(episode.success),
            rlds.LANGUAGE: BytesList([episode.task.encode()] * length),
            rlds.TICK: episode.ticks_ns,
            rlds.STAMP: episode.stamps_ns,
            rlds.VALID: episode.valid,
            rlds.AGE: episode.age_ns,
        }
        if self.dataset.state:
            found[rlds.STATE] = episode.state
        if self.dataset.actions:
            found[rlds.ACTION] = episode.action
        for stream in self.windows:
            found[rlds.OBSERVATION + stream.name] = episode.vector(stream.name)
            found[rlds.SAMPLE_AGES + stream.name] = episode.window_ages_ms(stream.name)
        success = -1 if episode.success is None else int(episode.success)
        return {
            **found,
            rlds.RECORDING: BytesList([printable(episode.recording, 4096).encode()]),
            rlds.EPISODE_INDEX: np.array([episode.index]),
            rlds.SUCCESS: np.array([success]),
        }


def _write_shard(dataset: ExportedDataset, folder: Path, group: range, shard: int, shards: int) -> tuple[range, int]:
    """Write the records of some episodes; return the episodes, and the bytes of the records."""
    folder, contents = folder / NAME / VERSION, _Contents(dataset)
    folder.mkdir(parents=True, exist_ok=True)

    def record(index: int) -> tuple[int, Iterator[bytes]]:
        episode = dataset.episodes[index]
        nbytes, chunks = encode_example(contents.features(episode))
        if nbytes > RECORD_BYTES:
            raise RoboCacheError(
                f"{printable(episode.recording, 60)}: an episode of {episode.length:,} ticks takes {nbytes:,} "
                "bytes, and rlds holds 2 GiB at most; use smaller images or shorter episodes"
            )
        return nbytes, chunks

    name = f"{NAME}-train.tfrecord-{shard:05d}-of-{shards:05d}"
    return group, write_records(folder / name, map(record, group))


def _compressed(arrays: StoredMedia) -> HeldBytes:
    return HeldBytes(arrays.samples, lambda tick: zlib.compress(arrays.array(tick).data, ZLIB_LEVEL))


def _statistics(dataset: ExportedDataset) -> dict[str, Any]:
    """Return the statistics in the form of Octo (p01, p99) and OpenVLA (q01, q99), which compute their own without."""
    kinds = {**{kind: kind for kind in ("mean", "std", "min", "max", "q01", "q99")}, "p01": "q01", "p99": "q99"}
    stats = dataset.stats
    return {
        **{
            name: {kind: stats[key][own] for kind, own in kinds.items()}
            for name, key in (("action", ACTION), ("proprio", STATE))
            if key in stats
        },
        "num_transitions": dataset.frames,
        "num_trajectories": len(dataset.episodes),
    }


RLDS = _RldsFormat()
