"""features.json and dataset_info.json, as tensorflow-datasets 4.9 reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.spec import StreamSpec

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
    """Return features.json.

    Args:
        dataset: the contents.
        encodings: jpeg or png, for each image stream that is stored.
        windows: the streams whose ticks have several samples.
    """
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


def dataset_info(name: str, version: str, description: str, shards: Sequence[int], nbytes: int) -> dict[str, Any]:
    """Return dataset_info.json.

    Args:
        name: of the dataset, with which the names of its files begin.
        version: as in the path.
        description: a text.
        shards: number of episodes in each file.
        nbytes: of all episodes.
    """
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(length) for length in shards],  # numbers of 64 bits are text in the JSON of protobuf
        "numBytes": str(nbytes),
    }
    return {"name": name, "version": version, "description": description, "fileFormat": "tfrecord", "splits": [split]}


def _observation(
    dataset: ExportedDataset, encodings: Mapping[str, str], windows: Sequence[StreamSpec]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dataset.state:
        found["state"] = tensor((_width(dataset.state),), "float32", _labels(dataset.state))
    for name, encoding in encodings.items():
        found[name] = image((*dataset.pictures[name].shape, 3), encoding, f"RGB image of {name}.")
    for name, info in dataset.arrays.items():
        dtype = "uint8" if info.dtype == "bits" else info.dtype
        found[name] = tensor(info.shape, dtype, f"Array of {name}.", "zlib")
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
