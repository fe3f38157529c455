"""RLDS episodes with jpeg images read by tf.data, tuned and as a loop over steps. Needs TensorFlow."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf: Any = import_module("tensorflow")


def parsed(files: list[str]) -> Any:
    """The episodes as they are stored: images are jpeg files."""
    floats = tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)
    features = {
        "steps/observation/image": tf.io.VarLenFeature(tf.string),
        "steps/observation/state": floats,
        "steps/action": floats,
    }

    def parse(record: Any) -> dict[str, Any]:
        found = tf.io.parse_single_example(record, features)
        return {key: getattr(value, "values", value) for key, value in found.items()}

    return tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).map(
        parse, num_parallel_calls=tf.data.AUTOTUNE
    )


def by_episode(files: list[str], *, parallel: int) -> Iterator[Any]:
    """Whole episodes, decoded in parallel; `parallel` images of an episode at once."""

    def decoded(episode: dict[str, Any]) -> dict[str, Any]:
        images = tf.map_fn(
            lambda image: tf.io.decode_jpeg(image, channels=3),
            episode["steps/observation/image"],
            fn_output_signature=tf.TensorSpec((None, None, 3), tf.uint8),
            parallel_iterations=parallel,
        )
        return {**episode, "steps/observation/image": images}

    return iter(parsed(files).map(decoded, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))


def by_step(files: list[str], steps: int) -> Iterator[Any]:
    """Images of all episodes decoded in parallel one by one, and batched by episode."""
    images = parsed(files).flat_map(lambda e: tf.data.Dataset.from_tensor_slices(e["steps/observation/image"]))
    decoded = images.map(lambda image: tf.io.decode_jpeg(image, channels=3), num_parallel_calls=tf.data.AUTOTUNE)
    return iter(decoded.batch(steps).prefetch(tf.data.AUTOTUNE))


def nested(files: list[str]) -> Iterator[Any]:
    """A loop over the steps of each episode, which are a dataset of their own, as in RLDS."""
    for episode in parsed(files):
        images = tf.data.Dataset.from_tensor_slices(episode["steps/observation/image"])
        yield [step.numpy() for step in images.map(lambda image: tf.io.decode_jpeg(image, channels=3))]


def main() -> None:
    """Measure; the argument is a JSON object: path, steps (of an episode)."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    files = sorted(str(file) for file in Path(wanted["path"]).glob("*.tfrecord-*"))
    forms: dict[str, Callable[[], Iterator[Any]]] = {
        "tf.data, episodes in parallel": lambda: by_episode(files, parallel=1),
        "tf.data, episodes and images in parallel": lambda: by_episode(files, parallel=10),
        "tf.data, images in parallel": lambda: by_step(files, wanted["steps"]),
        "nested loop": lambda: nested(files),
    }
    found = {}
    for name, form in forms.items():
        next(form())
        started = time.perf_counter()
        count = sum(1 for _ in form())
        found[name] = count / (time.perf_counter() - started)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
