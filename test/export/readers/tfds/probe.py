"""Runs under tensorflow-datasets without TensorFlow: reads a dataset, and writes each episode to a file of arrays."""

import json
import os
import struct
import sys

import numpy as np
import tensorflow_datasets as tfds

builder = tfds.builder_from_directory(sys.argv[1])
split = builder.info.splits[sys.argv[2] if len(sys.argv) > 2 else "train"]


def records(path):
    """The records of a file; the test of the framing is that of the package."""
    with open(path, "rb") as file:
        while head := file.read(12):
            yield file.read(struct.unpack_from("<Q", head)[0])
            file.read(4)


def flat(value, name=""):
    """Nested features by their path."""
    if not isinstance(value, dict):
        return {name: value}
    parts = [flat(part, f"{name}/{key}" if name else key) for key, part in value.items()]
    return {path: leaf for part in parts for path, leaf in part.items()}


episodes = []
for path in split.filepaths:
    for record in records(path):
        example = builder.info.features.deserialize_example_np(record)
        steps = [flat(step) for step in example["steps"]]
        columns = {name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]}
        instructions = columns.pop("language_instruction")
        file = os.path.abspath(f"episode-{len(episodes)}.npz")
        np.savez(file, **{name.replace("/", "|"): values for name, values in columns.items()})
        metadata = example["episode_metadata"]
        metadata["file_path"] = metadata["file_path"].decode()
        episodes.append({"file": file, "tasks": sorted({text.decode() for text in instructions}), **metadata})

answer = {
    "name": builder.info.full_name,
    "lengths": list(split.shard_lengths),
    "bytes": split.num_bytes,
    "episodes": episodes,
    "tensorflow": "tensorflow" in sys.modules,
}
print(json.dumps(answer))  # noqa: T201
