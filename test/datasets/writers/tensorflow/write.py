"""Runs under tensorflow-datasets with TensorFlow: writes a dataset with its builder, and reads it with its reader.

Arguments: the folder of the dataset, and the folder for the steps of each episode as arrays.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

data_dir, out = sys.argv[1], Path(sys.argv[2])
LENGTHS = (5, 1, 7, 3, 4)


def step(rng, row, length):
    """A step, with every kind of feature."""
    return {
        "observation": {
            "jpeg": rng.integers(0, 256, (24, 32, 3), np.uint8),
            "wrist": {"png": rng.integers(0, 256, (16, 12, 3), np.uint8)},
            "joints": {
                "position": rng.normal(size=7).astype(np.float64),
                "gripper": np.float32(rng.normal()),
                "half": rng.normal(size=2).astype(np.float16),
                "matrix": rng.normal(size=(2, 3)).astype(np.float32),
            },
            "contacts": rng.integers(-5, 6, row % 3).astype(np.int32),
            "tokens": rng.integers(-(2**40), 2**40, 4),
            "tactile": rng.integers(0, 256, (2, 5), np.uint8),
            "packed": rng.normal(size=(2, 2)).astype(np.float32),
        },
        "action": rng.normal(size=7).astype(np.float32),
        "reward": np.float32(row == length - 1),
        "is_first": row == 0,
        "is_last": row == length - 1,
        "phase": row % 3,
        "language_instruction": "Öffne die Tür, 開けて",
    }


def episodes():
    """The episodes, the same in each call."""
    rng = np.random.default_rng(0)
    for index, length in enumerate(LENGTHS):
        steps = [step(rng, row, length) for row in range(length)]
        yield index, {"steps": steps, "episode_metadata": {"file_path": f"episode_{index}", "success": index % 2 == 0}}


class Robot(tfds.core.GeneratorBasedBuilder):
    """A dataset as those of Open X-Embodiment."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        feature = tfds.features
        steps = {
            "observation": {
                "jpeg": feature.Image(shape=(24, 32, 3), encoding_format="jpeg"),
                "wrist": {"png": feature.Image(shape=(16, 12, 3), encoding_format="png")},
                "joints": {
                    "position": feature.Tensor(shape=(7,), dtype=np.float64),
                    "gripper": feature.Scalar(dtype=np.float32),
                    "half": feature.Tensor(shape=(2,), dtype=np.float16),
                    "matrix": feature.Tensor(shape=(2, 3), dtype=np.float32),
                },
                "contacts": feature.Sequence(np.int32),
                "tokens": feature.Tensor(shape=(4,), dtype=np.int64),
                "tactile": feature.Tensor(shape=(2, 5), dtype=np.uint8),
                "packed": feature.Tensor(shape=(2, 2), dtype=np.float32, encoding="zlib"),
            },
            "action": feature.Tensor(shape=(7,), dtype=np.float32),
            "reward": feature.Scalar(dtype=np.float32),
            "is_first": feature.Scalar(dtype=np.bool_),
            "is_last": feature.Scalar(dtype=np.bool_),
            "phase": feature.ClassLabel(names=["reach", "grasp", "lift"]),
            "language_instruction": feature.Text(),
        }
        about = {"file_path": feature.Text(), "success": feature.Scalar(dtype=np.bool_)}
        features = feature.FeaturesDict({"steps": feature.Dataset(steps), "episode_metadata": about})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, _manager):
        return {"train": episodes(), "val": episodes()}

    def _generate_examples(self):
        raise NotImplementedError


def flat(value, name=""):
    """Nested features by their path."""
    if not isinstance(value, dict):
        return {name: value}
    parts = [flat(part, f"{name}/{key}" if name else key) for key, part in value.items()]
    return {path: leaf for part in parts for path, leaf in part.items()}


builder = Robot(data_dir=data_dir)
builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
folder = Path(builder.data_path)
for path in folder.glob("*-val.tfrecord*"):  # tfds does not compress, but TensorFlow's files may be
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for record in records:
            writer.write(record)

given = [[flat(each) for each in episode["steps"]] for _, episode in episodes()]
files = {"steps": {"observation": {"jpeg": tfds.decode.SkipDecoding()}}}
for index, episode in enumerate(tfds.as_numpy(builder.as_dataset("train", decoders=files, shuffle_files=False))):
    steps = [flat(each) for each in episode["steps"]]
    for each in steps:  # as other decoders do; the default of TensorFlow is a faster and less exact transform
        jpeg = tf.io.decode_jpeg(each["observation/jpeg"], dct_method="INTEGER_ACCURATE")
        each["observation/jpeg"] = jpeg.numpy()
    images = {key: np.stack([step[key] for step in steps]) for key in ("observation/jpeg", "observation/wrist/png")}
    read = {key: [step[key] for step in steps] for key in steps[0] if key not in images}
    arrays = {f"read|{key}": np.stack(values) for key, values in images.items()}
    for key, values in read.items():
        if key in ("observation/contacts", "language_instruction"):
            continue
        for kind, rows in (("read", values), ("given", [step[key] for step in given[index]])):
            arrays[f"{kind}|{key}"] = np.stack([np.asarray(row) for row in rows])
    arrays["given|observation/wrist/png"] = np.stack([step["observation/wrist/png"] for step in given[index]])
    for row, each in enumerate(given[index]):
        arrays[f"contacts|{row}"] = each["observation/contacts"]
    np.savez(out / f"episode-{index}.npz", **{key.replace("/", "."): value for key, value in arrays.items()})
print(json.dumps({"folder": str(folder), "shards": list(builder.info.splits["train"].shard_lengths)}))  # noqa: T201
