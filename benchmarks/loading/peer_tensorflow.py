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


def image_of(size: int | None = None, ratio: int = 1) -> Callable[[Any], Any]:
    """Decodes an image, at 1 / `ratio` of its size, and resizes it if that is not `size`."""

    def decoded(data: Any) -> Any:
        image = tf.io.decode_jpeg(data, channels=3, ratio=ratio)
        if size is None or ratio > 1:
            return image
        return tf.cast(tf.round(tf.image.resize(image, (size, size), method="area")), tf.uint8)

    return decoded


def by_episode(files: list[str], image: Callable[[Any], Any], *, parallel: int) -> Iterator[Any]:
    """Whole episodes, decoded in parallel; `parallel` images of an episode at once."""

    def decoded(episode: dict[str, Any]) -> dict[str, Any]:
        images = tf.map_fn(
            image,
            episode["steps/observation/image"],
            fn_output_signature=tf.TensorSpec((None, None, 3), tf.uint8),
            parallel_iterations=parallel,
        )
        return {**episode, "steps/observation/image": images}

    return iter(parsed(files).map(decoded, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))


def by_step(files: list[str], steps: int, image: Callable[[Any], Any]) -> Iterator[Any]:
    """Images of all episodes decoded in parallel one by one, and batched by episode."""
    images = parsed(files).flat_map(lambda e: tf.data.Dataset.from_tensor_slices(e["steps/observation/image"]))
    decoded = images.map(image, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(decoded.batch(steps).prefetch(tf.data.AUTOTUNE))


def nested(files: list[str]) -> Iterator[Any]:
    """A loop over the steps of each episode, which are a dataset of their own, as in RLDS."""
    for episode in parsed(files):
        images = tf.data.Dataset.from_tensor_slices(episode["steps/observation/image"])
        yield [step.numpy() for step in images.map(image_of())]


def main() -> None:
    """Measure; the argument is a JSON object: path, steps (of an episode), size of the images or null.

    With a size, the rates are per second of the processor, which other load changes little.
    """
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    files = sorted(str(file) for file in Path(wanted["path"]).glob("*.tfrecord-*"))
    steps, size = wanted["steps"], wanted.get("size")
    forms: dict[str, Callable[[], Iterator[Any]]] = {
        "tf.data, episodes in parallel": lambda: by_episode(files, image_of(), parallel=1),
        "tf.data, episodes and images in parallel": lambda: by_episode(files, image_of(), parallel=10),
        "tf.data, images in parallel": lambda: by_step(files, steps, image_of()),
        "nested loop": lambda: nested(files),
    }
    if size:
        forms = {
            "tf.data, tf.image.resize, episodes in parallel": lambda: by_episode(files, image_of(size), parallel=1),
            "tf.data, tf.image.resize, images in parallel": lambda: by_step(files, steps, image_of(size)),
            "tf.data, ratio=2, episodes in parallel": lambda: by_episode(files, image_of(size, 2), parallel=1),
            "tf.data, ratio=2, images in parallel": lambda: by_step(files, steps, image_of(size, 2)),
        }
    found, clock = {}, time.process_time if size else time.perf_counter
    for name, form in forms.items():
        next(form())
        started = clock()
        count = sum(1 for _ in form())
        found[name] = count / (clock() - started)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
