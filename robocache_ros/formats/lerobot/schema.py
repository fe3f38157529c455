"""Files, features and columns of LeRobot datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need
from robocache_ros.formats.dataset import IMAGES, Episode, ExportedDataset
from robocache_ros.formats.depth import MAX_M, MIN_M, SHIFT_M
from robocache_ros.formats.parquet import column
from robocache_ros.formats.pictures import VIDEO
from robocache_ros.formats.video import DEPTH_VIDEO
from robocache_ros.spec import FusionSpec

# The rows of LeRobot datasets of both versions, as pyarrow tables.


PART_BYTES = 16 << 20  # rows that are read at once


REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"  # what follows the action of a row


def outcome_dtypes(dataset: ExportedDataset) -> dict[str, str]:
    """Return the types of the columns of LeRobot that say how episodes went; none if nothing is known of it."""
    reward = {REWARD: "float32", DONE: "bool"} if "reward" in dataset.outcomes else {}
    return reward | ({SUCCESS: "bool"} if "success" in dataset.outcomes else {})


def standard_columns(dataset: ExportedDataset, episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot defines for an episode."""
    rows = np.arange(episode.length)
    outcomes = {REWARD: episode.rewards, DONE: rows == episode.length - 1, SUCCESS: episode.successes}
    return {
        **{name: outcomes[name] for name in outcome_dtypes(dataset)},
        "timestamp": (rows / dataset.rate_hz).astype(np.float32),
        "frame_index": rows,
        "episode_index": np.full(episode.length, episode.index),
        "index": episode.first_row + rows,
        "task_index": np.full(episode.length, episode.task_index),
    }


class RowTables:
    """Makes the tables of a dataset.

    Args:
        dataset: the dataset.
        images: encoding, png, by stream of images that are stored in the table.
        lists: vectors that are lists also if they have one value. By default such a vector is a plain column.
        image_types: state in the table that `datasets.Image` reads the images, for readers that do not use info.json.
    """

    def __init__(
        self,
        dataset: ExportedDataset,
        images: Mapping[str, str],
        *,
        lists: Sequence[str] = (),
        image_types: bool = False,
    ) -> None:
        self._dataset, self._images, self._lists = dataset, images, lists
        kinds = {IMAGES.format(name): {"_type": "Image"} for name in images} if image_types else {}
        self._metadata = {"huggingface": json.dumps({"info": {"features": kinds}})} if kinds else None

    def parts(self, episode: Episode, own: Mapping[str, NDArray[Any]]) -> Iterator[Any]:
        """Yield the rows of an episode in tables of bounded size; `own` columns come after those of the dataset."""
        sizes = np.full(episode.length, 8 * episode.layout.row_width)
        for name, encoding in self._images.items():
            sizes += episode.images(name, encoding).sizes
        start = size = 0
        for row, of_row in enumerate(sizes.tolist()):
            if start < row and size + of_row > PART_BYTES:
                yield self._table(episode, own, slice(start, row))
                start, size = row, 0
            size += of_row
        yield self._table(episode, own, slice(start, episode.length))

    def _table(self, episode: Episode, own: Mapping[str, NDArray[Any]], rows: slice) -> Any:
        pyarrow = need("pyarrow", "export")
        part = {name: values[rows] for name, values in episode.rows.items()}
        columns = {name: feature.values(part) for name, feature in self._dataset.features.items()}
        columns.update({name: values[rows] for name, values in own.items()})
        table = {name: column(values, as_list=name in self._lists) for name, values in columns.items()}
        for name, encoding in self._images.items():
            images = episode.images(name, encoding)
            files = [{"bytes": images[row], "path": None} for row in range(rows.start, rows.stop)]
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            table[IMAGES.format(name)] = pyarrow.array(files, kind)  # as `datasets.Image` reads it
        return pyarrow.table(table).replace_schema_metadata(self._metadata)


# The files in a LeRobot dataset's meta/ folder.


def write_tasks(meta: Path, tasks: Sequence[str]) -> None:
    """Write tasks.parquet, which names the task of every frame."""
    pyarrow = need("pyarrow", "export")
    # The metadata that pandas writes for a frame with the task as index. LeRobot looks up tasks by this index.
    table = pyarrow.table({"task_index": np.arange(len(tasks)), "task": list(tasks)})
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
        ],
    }
    table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
    need("pyarrow.parquet", "export").write_table(table, meta / "tasks.parquet")


def write_json(path: Path, value: Any) -> None:
    """Write a human-readable JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def write_provenance(
    meta: Path, dataset: ExportedDataset, encodings: Mapping[str, str], arrays: Mapping[str, Any]
) -> None:
    """Write robocache.json: where the dataset is from, and how its images and arrays are stored."""
    names = [stream.name for stream in dataset.spec.media]
    stored = {name: dataset.stored(name, encodings.get(name)) for name in names if name not in arrays}
    stored.update(dict.fromkeys(arrays, "arrays, lossless"))
    images = image_contract(dataset.spec, stored)
    write_json(meta / "robocache.json", {**dataset.provenance, "images": images, "arrays": arrays})


def image_contract(spec: FusionSpec, stored: Mapping[str, str]) -> dict[str, Any]:
    """Return by image stream how pixels are stored, and the normalization in the spec.

    A dataset contains pixels before normalization. The training code normalizes them once.
    """
    return {
        stream.name: {
            "stored": stored.get(stream.name, "not stored"),
            "normalized": False,
            "normalize": asdict(stream.image.normalize) if stream.image and stream.image.normalize else None,
        }
        for stream in spec.streams
        if stream.kind == "image"
    }


def features(
    dataset: ExportedDataset, encodings: Mapping[str, str], depth_videos: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the features of info.json, given the encoding of each image stream, and the streams of depth videos."""
    found: dict[str, Any] = {}
    engine = {
        name: {"dtype": f.dtype, "shape": list(f.shape), "names": list(f.names) or None}
        for name, f in dataset.features.items()
    }
    own = ("robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns")
    found.update({name: feature for name, feature in engine.items() if name not in own})
    for name, encoding in encodings.items():
        found[IMAGES.format(name)] = _picture(dataset, name, encoding)
    found.update({IMAGES.format(name): _depth(dataset, name) for name in depth_videos})
    found.update({name: engine[name] for name in own})
    indices = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    for key, dtype in {**outcome_dtypes(dataset), "timestamp": "float32", **indices}.items():
        found[key] = {"dtype": dtype, "shape": [1], "names": None}
    return found


def _depth(dataset: ExportedDataset, stream: str) -> dict[str, Any]:
    """Return the feature of a depth video. LeRobot computes depths from codes with these parameters."""
    info = dataset.arrays[stream]
    _, height, width = info.shape
    told = {
        "video.height": height,
        "video.width": width,
        "video.codec": DEPTH_VIDEO,
        "video.pix_fmt": "gray12le",
        "video.fps": dataset.rate_hz,
        "video.channels": 1,
        "has_audio": False,
        "is_depth_map": True,
        "depth_unit": info.depth_unit,
        "video.depth_min": MIN_M,
        "video.depth_max": MAX_M,
        "video.shift": SHIFT_M,
        "video.use_log": True,
    }
    return {"dtype": "video", "shape": [height, width, 1], "names": ["height", "width", "channels"], "info": told}


def _picture(dataset: ExportedDataset, stream: str, encoding: str) -> dict[str, Any]:
    picture = dataset.pictures[stream]
    feature: dict[str, Any] = {"dtype": "image", "shape": [*picture.shape, 3], "names": ["height", "width", "channels"]}
    if encoding in VIDEO:
        feature["dtype"] = "video"
        feature["info"] = {
            "video.height": picture.shape[0],
            "video.width": picture.shape[1],
            "video.codec": picture.codecs[encoding],
            "video.pix_fmt": picture.pixel_formats[encoding],
            "video.is_depth_map": False,
            "video.fps": dataset.rate_hz,
            "video.channels": 3,
            "has_audio": False,
        }
    return feature
