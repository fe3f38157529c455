"""Datasets with one fault each, and what the validation of each must say."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage.mcap import add_checksums
from robocache_ros.bags.write import write_bag
from robocache_ros.formats.mcap import definition, message_dtype, number_message, text_message
from robocache_ros.formats.rlds.tfrecord import BytesList, encode_example, parse_example, read_records, write_records
from robocache_ros.formats.video import add_stream_like
from test.export.sensor_recording import sensor_spec

ROWS = 40  # of each of three episodes, whose tasks differ
MS, TICK_NS = 1_000_000, 20_000_000
STREAMS = ("state", "force", "color", "gray", "depth", "arm", "reward", "success")
STATE, ARM, COLOR = (STREAMS.index(name) for name in ("state", "arm", "color"))
Plant = Callable[[Path], Any]


@dataclass(frozen=True)
class Fault:
    """A fault of a dataset.

    Attributes:
        format: of the dataset, and how its images are stored if that is not video: `lerobot image`.
        name: what is wrong.
        finds: a part of what the validation must find; empty: the dataset does not reveal the fault.
        plant: changes a dataset.
        decode: images are decoded.
    """

    format: str
    name: str
    finds: str
    plant: Plant
    decode: bool = False


def planter(function: Callable[..., Any]) -> Callable[..., Plant]:
    """A function of a dataset and more, as one that takes the rest and returns a function of the dataset."""
    return lambda *given, **named: lambda dataset: function(dataset, *given, **named)


@planter
def change_json(dataset: Path, name: str, change: Callable[[Any], Any]) -> None:
    value = json.loads((dataset / name).read_text())
    change(value)
    (dataset / name).write_text(json.dumps(value))


@planter
def change_lines(dataset: Path, name: str, change: Callable[[list[Any]], Any]) -> None:
    values = [json.loads(line) for line in (dataset / name).read_text().splitlines()]
    change(values)
    (dataset / name).write_text("".join(json.dumps(value) + "\n" for value in values))


def set_at(*path: Any) -> Callable[[Any], None]:
    """Set the value at a path of keys, whose last part is the value."""
    *keys, last, new = path

    def change(value: Any) -> None:
        parent = reduce(getitem, keys, value)
        parent[last] = new(parent[last]) if callable(new) else new

    return change


def pop_at(*path: Any) -> Callable[[Any], Any]:
    """Remove the value at a path of keys."""
    return lambda value: reduce(getitem, path[:-1], value).pop(path[-1])


@planter
def remove(dataset: Path, name: str) -> None:
    shutil.rmtree(dataset / name) if (dataset / name).is_dir() else (dataset / name).unlink()


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """What a function returns, or the value itself, which the function changes in place."""
    new = change(value)
    return value if new is None else new


def changed_column(table: Any, key: str, change: Callable[[Any], Any]) -> Any:
    """Return a table with another column. `change` gets an array, or a list of what is not a number."""
    column = table[key].combine_chunks()
    kind = column.type
    while pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind):
        kind = kind.value_type
    values = changed(np.array(column.to_pylist()) if pyarrow.types.is_primitive(kind) else column.to_pylist(), change)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return table.set_column(table.column_names.index(key), key, pyarrow.array(values, column.type))


@planter
def change_column(dataset: Path, name: str, key: str, change: Callable[[Any], Any]) -> None:
    table = parquet.read_table(dataset / name, partitioning=None)
    parquet.write_table(changed_column(table, key, change), dataset / name)


def at(index: Any, change: Any) -> Callable[[np.ndarray], None]:
    """Add to the values at an index, or set what a function returns."""

    def apply(values: np.ndarray) -> None:
        values[index] = change(values[index]) if callable(change) else values[index] + change

    return apply


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def put(index: Any, value: Any) -> Callable[[Any], None]:
    return at(index, to(value))


def rolled(rows: slice) -> Callable[[np.ndarray], None]:
    return at(rows, lambda values: np.roll(values, 1, axis=0))


def exchanged(one: Any, other: Any) -> Callable[[Any], None]:
    """Exchange two parts of an array, or two items of a list."""

    def apply(values: Any) -> None:
        values[one], values[other] = copy(values[other]), copy(values[one])

    return apply


def setter(name: str, *before: Any) -> Callable[..., Plant]:
    return lambda *path: change_json(name, set_at(*before, *path))


def both(one: Plant, other: Plant) -> Plant:
    return lambda dataset: (one(dataset), other(dataset))


# LeRobot

DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
CAMERA, GRAY_CAMERA = "observation.images.color", "observation.images.gray"
VIDEO, GRAY = (f"videos/{camera}/chunk-000/file-000.mp4" for camera in (CAMERA, GRAY_CAMERA))
SECOND = slice(ROWS, 2 * ROWS)  # the rows of the second episode
OLDER = at((9, slice(0, 5)), 2.0)  # the ages of a window
INFO, STATS, OWN, TASKS = "meta/info.json", "meta/stats.json", "meta/robocache.json", "meta/tasks.parquet"
DATA21 = [f"data/chunk-000/episode_00000{k}.parquet" for k in range(4)]
VIDEO21 = [f"videos/chunk-000/{CAMERA}/episode_00000{k}.mp4" for k in range(2)]
DEPTH = "arrays/depth/chunk-000/file-000.parquet"
rows, episodes, depth, rows21 = (partial(change_column, name) for name in (DATA, EPISODES, DEPTH, DATA21[1]))
info, stats, own, modality = map(setter, (INFO, STATS, OWN, "meta/modality.json"))
feature, openpi = setter(INFO, "features"), setter("meta/openpi/norm_stats.json", "norm_stats")


def ours(key: str, change: Callable[[Any], Any]) -> Plant:
    return rows(f"robocache.{key}", change)


@planter
def remux(dataset: Path, name: str, keep: Callable[[int], int | None]) -> None:
    """Write a video again, with the packet of each frame at another place, or without it (None)."""
    import av

    path = dataset / name
    draft = path.with_name("draft.mp4")
    with av.open(str(path)) as source, av.open(str(draft), "w") as target:
        stream = source.streams.video[0]
        copy = add_stream_like(target, stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        step = packets[1].pts - packets[0].pts
        for packet in packets:
            place = keep(round(packet.pts / step))
            if place is not None:
                packet.pts = packet.dts = place * step
                packet.stream = copy
                target.mux(packet)
    draft.replace(path)


def but_last(frames: int) -> Callable[[int], int | None]:
    return lambda k: k if k < frames - 1 else None


def in_reverse(dataset: Path) -> None:
    import av

    path = dataset / VIDEO
    with av.open(str(path)) as source:
        images = [frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)]
    with av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=50)
        stream.height, stream.width, stream.pix_fmt = *images[0].shape[:2], "yuv444p"
        for image in reversed(images):
            target.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        target.mux(stream.encode())


@planter
def exchanged_files(dataset: Path, one: str, other: str) -> None:
    (dataset / one).rename(dataset / "aside")
    (dataset / other).rename(dataset / one)
    (dataset / "aside").rename(dataset / other)


@planter
def replace_text(dataset: Path, name: str, old: str, new: str) -> None:
    (dataset / name).write_text((dataset / name).read_text().replace(old, new))


@planter
def cut_off(dataset: Path, name: str) -> None:
    os.truncate(dataset / name, (dataset / name).stat().st_size // 2)


@planter
def copy_file(dataset: Path, source: str, target: str) -> None:
    shutil.copyfile(dataset / source, dataset / target)


@planter
def drop_rows(dataset: Path, name: str, *rows: int) -> None:
    table = parquet.read_table(dataset / name, partitioning=None)
    parquet.write_table(table.take(np.delete(np.arange(len(table)), rows)), dataset / name)


def shifted(column: Callable[[str, Callable[[Any], Any]], Plant], episode: slice) -> tuple[Any, ...]:
    """A fault of all formats; what else may be wrong with the times of rows is one check, planted in those of LeRobot.

    `column` changes a column, `episode` are the rows of an episode.
    """
    return "ticks shifted by one", "the first tick is", column("tick_ns", at(episode, TICK_NS))


def together(column: Callable[[str, Callable[[Any], Any]], Plant]) -> tuple[Any, ...]:
    plants = column("stamp_ns", at((5, STATE), -MS)), column("age_ns", at((5, STATE), MS))
    return "a stamp and its age changed together, within max_age_ms", "", both(*plants)


def image_of_another_camera(dataset: Path) -> None:
    other = parquet.read_table(dataset / DATA)[GRAY_CAMERA].to_pylist()
    change_column(DATA, CAMERA, only_row(9, to(other[9])))(dataset)


def only_row(row: int, change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [*values[:row], change(values[row]), *values[row + 1 :]]


LEROBOT = [
    shifted(ours, SECOND),
    ("stamps shifted by 1 ms", "color: wrong in 40 rows; in row 0 stamp is", ours("stamp_ns", at((SECOND, COLOR), MS))),
    ("an age changed", "state: wrong in 1 rows; in row 3", ours("age_ns", at((3, STATE), 5))),
    ("an unknown valid", "in row 3 valid is 3", ours("valid", put((3, STATE), 3))),
    ("a video is cut off", "file-000.mp4: cannot be read", cut_off(GRAY)),
    ("files elsewhere", "is outside the dataset", info("data_path", "../{chunk_index}-{file_index}.parquet")),
    ("a tick off the grid", "not on the grid of 50 Hz", ours("tick_ns", at(7, 3))),
    ("stamps and ages changed together, beyond max_age_ms", "its samples are 0 to 60000000 ns old",
     both(ours("stamp_ns", at((5, COLOR), -90 * MS)), ours("age_ns", at((5, COLOR), 90 * MS)))),
    ("valid 0 with a value", "where valid is 0", ours("valid", put((9, STATE), 0))),
    ("valid 2 for 1", "robocache.valid: ", ours("valid", put((9, STATE), 2))),
    ("actions shifted by one row", "another value than in the row before", rows("action", rolled(SECOND))),
    ("a state changed", "stats/observation.state", rows("observation.state", at((9, 1), 0.01))),
    ("a state that is NaN", "NaN or infinite in 1 rows", rows("observation.state", put((9, 1), np.nan))),
    ("states of two rows exchanged, which stay those of the episode", "", rows("observation.state", exchanged(3, 9))),
    ("the padding of a window changed", "where there is no sample", rows("observation.window.force", at((0, 5, 0), 1))),
    ("the ages of a window shifted", "force: the newest sample of row 9 is", ours("sample_age_ms.force", OLDER)),
    ("done before the end", "next.done is True in row 9", rows("next.done", put(9, True))),
    ("the success of an episode", "next.success of the last row is", rows("next.success", put(ROWS - 1, False))),
    ("timestamps shifted by one row", "timestamp: wrong in", rows("timestamp", at(SECOND, 0.02))),
    ("two frame indices exchanged", "frame_index: wrong in 2 rows", rows("frame_index", exchanged(3, 4))),
    ("the episode of a row", "episode_index: wrong in 1 rows", rows("episode_index", at(3, 1))),
    ("the task of the rows of an episode", "task_index: its rows have the task", rows("task_index", put(SECOND, 0))),
    ("a row is missing", "119 rows; its episodes have 120", drop_rows(DATA, 50)),
    ("the texts of two tasks exchanged", f"{TASKS}: the list of tasks", change_column(TASKS, "task", exchanged(0, 1))),
    ("a text of a task", f"is not in {TASKS}", change_column(TASKS, "task", only_row(0, to("fold")))),
    ("an index of a task", "task_index is not 0, 1, 2", change_column(TASKS, "task_index", at(2, 4))),
    ("a mean of an episode", "stats/action: mean", episodes("stats/action/mean", at((1, 0), 0.01))),
    ("the mean of the images of an episode", f"stats.json: {CAMERA}: mean",
     episodes(f"stats/{CAMERA}/mean", put((0, 0, 0, 0), 0.9))),
    ("a mean of the dataset", "meta/stats.json: action: mean", stats("action", "mean", 0, 0.5)),
    ("no statistics of a column", "meta/stats.json: has no action", change_json(STATS, pop_at("action"))),
    ("openpi's statistics of states", "norm_stats.json: state: mean", openpi("state", "mean", 0, 0.5)),
    ("openpi's statistics of actions, which may be of chunks", "", openpi("actions", "mean", 0, 0.5)),
    ("total_frames", "total_frames is 121", info("total_frames", 121)),
    ("total_episodes", "total_episodes is 4", info("total_episodes", 4)),
    ("total_tasks", "total_tasks is 1", info("total_tasks", 1)),
    ("a split beyond the episodes", "0:4 is not in 0:3", info("splits", "train", "0:4")),
    ("splits that overlap", "has 1 episodes of train", info("splits", {"train": "0:2", "val": "1:3"})),
    ("an episode in no split", "1 of 3 episodes are in no split", info("splits", "train", "0:2")),
    ("fps", "fps is 25; meta/robocache.json has 50", info("fps", 25)),
    ("the fps of a video", "video.fps is 30", feature(CAMERA, "info", "video.fps", 30)),
    ("the codec of a video", "codec is", feature(CAMERA, "info", "video.codec", "hevc")),
    ("the robot", "robot_type is arms", info("robot_type", "arms")),
    ("names of columns exchanged", "features.observation.state: name 0 is state.1",
     feature("observation.state", "names", ["state.1", "state.0", "state.2"])),
    ("the shape of a video", "frames of", feature(CAMERA, "shape", [24, 31, 3])),
    ("the shape of a column", "its shape is [4]", feature("observation.state", "shape", [4])),
    ("the type of a column", "the feature is float64", feature("action", "dtype", "float64")),
    ("a feature is missing", "is not a feature of meta/info.json", change_json(INFO, pop_at("features", "action"))),
    ("the length of an episode", "they must be 0 to 39", episodes("length", at(0, -1))),
    ("episodes in another order", "episode_index is 1",
     lambda d: parquet.write_table(parquet.read_table(d / EPISODES).take([1, 0, 2]), d / EPISODES)),
    ("an episode is missing", "total_episodes is 3; the dataset has 2", drop_rows(EPISODES, 2)),
    ("the first frame of an episode", "shares frames with another episode",
     episodes(f"videos/{CAMERA}/from_timestamp", at(1, -0.02))),
    ("the end of an episode in a video", "to_timestamp is", episodes(f"videos/{CAMERA}/to_timestamp", at(1, 0.02))),
    ("a frame is missing", "119 frames; its episodes have 120", remux(VIDEO, but_last(120))),
    ("frames at other times", "rows have no frame", remux(VIDEO, lambda k: k if k < 60 else k + 1)),
    ("frames in another order, of lossy video", "", in_reverse),
    ("a video is missing", "file-000.mp4: is missing", remove(GRAY)),
    ("a video of no episode", "no episode is in this file", copy_file(GRAY, GRAY.replace("0.mp4", "1.mp4"))),
    ("the stamp of a depth image", "its stamp is", depth("stamp_ns", at(2, MS))),
    ("a depth image is missing", "rows have no array", drop_rows(DEPTH, 4)),
    ("the rows of a depth image", "are not in order", depth("frame_from", at(4, -1))),
    ("a depth image of another size", "bytes; the shape has", depth("data", only_row(0, lambda data: data[:-4]))),
    ("the files of depth images are missing", "arrays/depth: ", remove("arrays")),
    ("the provenance is missing", "meta/robocache.json: is missing", remove(OWN)),
    ("the length of an episode in the provenance", "its number of rows is 40", own("episodes", 1, "frames", 41)),
    ("the task of an episode in the provenance", "its task is task 1", own("episodes", 1, "task", "fold")),
    ("the limit of a stream in the provenance", "spec is not that of layout.spec",
     own("spec", "streams", "color", "max_age_ms", 500.0)),
    ("the columns of the layout in the provenance", "layout.columns: name 0 is",
     own("layout", "columns", lambda v: [v[1], v[0], *v[2:]])),
    ("an episode is missing in the provenance", f"3 episodes; {OWN} has 2", change_json(OWN, pop_at("episodes", -1))),
]  # fmt: skip
LEROBOT_IMAGE = [
    ("an image that is not one", "row 5: cannot be read",
     rows(CAMERA, only_row(5, to({"bytes": b"no image", "path": None})))),
    ("images of two rows exchanged", "another image than in the row before", rows(CAMERA, exchanged(3, 8))),
    ("an image of another size", "row 9 is 9x17", image_of_another_camera),
    ("an image is missing", "row 9 has no image", rows(CAMERA, only_row(9, to({"bytes": None, "path": None})))),
]  # fmt: skip


def lines21(name: str, change: Callable[[list[Any]], Any]) -> Plant:
    return change_lines(f"meta/{name}.jsonl", change)


def stats21(*path: Any) -> Plant:
    return lines21("episodes_stats", set_at(1, "stats", *path))


LEROBOT21 = [
    ("the data of two episodes exchanged", "episode_index: wrong in 40 rows", exchanged_files(DATA21[0], DATA21[1])),
    ("a file of no episode", "is not a file of an episode", copy_file(DATA21[0], DATA21[3])),
    ("the annotation of a row", "is not task_index in row 3",
     rows21("annotation.human.action.task_description", put(3, 0))),
    ("the task of an episode", "its rows have the task", lines21("episodes", set_at(0, "tasks", ["task 1"]))),
    ("the texts of two tasks exchanged", "the list of tasks",
     lines21("tasks", lambda v: [v[0].update(task="task 1"), v[1].update(task="task 0")])),
    ("the length of an episode", "the episode has 39", lines21("episodes", set_at(0, "length", 39))),
    ("a mean of an episode", "episode 1: action: mean", stats21("action", "mean", 0, 0.5)),
    ("statistics of images that no images have", "no pixels from 0 to 1", stats21(CAMERA, "mean", 0, [[1.5]])),
    ("a mean of images of an episode", "", stats21(CAMERA, "mean", 0, lambda v: [[v[0][0] + 0.01]])),
    ("GR00T's mean", "meta/stats.json: action: mean", stats("action", "mean", 0, 0.5)),
    ("GR00T's columns of a stream", "action.arm is [0, 1]", modality("action", "arm", "end", 1)),
    ("GR00T's name of a video", "observation.images.side is not a video",
     modality("video", "color", "original_key", "observation.images.side")),
    ("total_videos", "total_videos is 5", info("total_videos", 5)),
    ("total_chunks", "total_chunks is 2", info("total_chunks", 2)),
    ("a frame is missing", "39 frames; its episodes have 40", remux(VIDEO21[0], but_last(40))),
    ("the videos of two episodes exchanged, of equal length", "", exchanged_files(*VIDEO21)),
    ("a missing data file", "episode_000001.parquet: is missing", remove(DATA21[1])),
    ("a missing video", "episode_000000.mp4: is missing", remove(VIDEO21[0])),
    ("no quantile of GR00T's statistics", "action has no q99: GR00T overwrites the file",
     change_json(STATS, pop_at("action", "q99"))),
    ("a modality beyond the columns", "0 to 9 are not columns of action, which has 2",
     modality("action", "arm", "end", 9)),
    ("a line that is not JSON", "meta/episodes.jsonl: line 1: not JSON",
     lambda d: (d / "meta/episodes.jsonl").write_text('{"episode_index": 0,\n')),
    ("an episode longer than its video", "10000000000000 rows; the video has",
     lines21("episodes", set_at(0, "length", 10**13))),
]  # fmt: skip

# robomimic. What is checked of the files of other tools too is in test_validate.


@planter
def hdf5(dataset: Path, change: Callable[[Any], Any], name: str = "dataset.hdf5") -> None:
    import h5py

    with h5py.File(dataset / name, "r+") as file:
        change(file)


def link_elsewhere(file: Any) -> None:
    import h5py

    file["data/demo_1/obs/other"] = h5py.ExternalLink("secret.hdf5", "/data")


def array(name: str, change: Callable[[np.ndarray], Any]) -> Plant:
    """Change values of an array of the second demonstration."""

    def apply(file: Any) -> None:
        file[f"data/demo_1/{name}"][...] = changed(file[f"data/demo_1/{name}"][()], change)

    return hdf5(apply)


def attribute(name: str, value: Any, group: str = "data") -> Plant:
    """Set an attribute: to a number, or to lists and dictionaries as JSON."""
    return hdf5(lambda file: file[group].attrs.update({name: value if isinstance(value, int) else json.dumps(value)}))


def of_demo(key: str, change: Callable[[Any], Any]) -> Plant:
    return array(f"robocache/{key}", change)


def mask(name: str, *demos: int) -> Plant:
    def apply(file: Any) -> None:
        del file[f"mask/{name}"]
        file[f"mask/{name}"] = np.array([f"demo_{demo}" for demo in demos], "S")

    return hdf5(apply)


ROBOMIMIC = [
    shifted(of_demo, slice(None)),
    together(of_demo),
    ("a value that is NaN", "obs/state: NaN or infinite in 1 rows, the first is row 1",
     array("obs/state", put((1, 0), np.nan))),
    ("a link to another file", "data/demo_1/obs/other is a link", hdf5(link_elsewhere)),
    ("next_obs is obs of the same row", "is not obs of the next row in 39 rows",
     hdf5(lambda f: f["data/demo_1/next_obs/state"].write_direct(f["data/demo_1/obs/state"][()]))),
    ("the last row of next_obs", "the last row is not the last one of obs", array("next_obs/state", at(ROWS - 1, 1.0))),
    ("a value of obs and of next_obs", "",
     both(array("obs/state", at((3, 1), 1)), array("next_obs/state", at((2, 1), 1)))),
    ("an action changed", "actions: wrong in 1 rows; in row 3 value 0 is", array("actions", at((3, 0), -0.01))),
    ("the scale of actions", "actions: wrong in",
     hdf5(lambda file: file["data"].attrs.update(action_scale=file["data"].attrs["action_scale"] * 1.1))),
    ("done before the end", "dones: wrong in 1 rows; in row 3", array("dones", put(3, 1))),
    ("the reward of a sample", "", array("rewards", at([2, 3], 0.5))),
    ("rate_hz", "rate_hz is 25", attribute("rate_hz", 25)),
    ("env_args", "env_args has no type", attribute("env_args", {"env_name": "arm", "env_kwargs": {}})),
    ("the name of the environment", "env_name in env_args is leg",
     attribute("env_args", {"env_name": "leg", "type": 2, "env_kwargs": {}})),
    ("the task of a demonstration", "lang in ep_meta is fold", attribute("ep_meta", {"lang": "fold"}, "data/demo_1")),
    ("the names of actions", "action_names: name 0 is arm.1", attribute("action_names", ["arm.1", "arm.0"])),
    ("the names of streams", "streams: name 0 is force", attribute("streams", ["force", "state", *STREAMS[2:]])),
    ("a demonstration is missing", "its groups are not demo_0 to demo_1", hdf5(lambda f: f["data"].pop("demo_1"))),
    ("an observation is missing", "has no obs/state", hdf5(lambda f: f["data/demo_1/obs"].pop("state"))),
    ("a mask that names no demonstration", "names demo_7, which is missing", mask("train", 0, 2, 7)),
    ("a demonstration in train and valid", "are in train and in valid", mask("valid", 0, 1)),
    ("a demonstration in no mask", "is in neither train nor valid", mask("train", 0)),
    ("the mask of a task", "mask/task_1: ", mask("task_1", 0)),
    ("an image of another row", "color: in ", array("obs/color", exchanged(3, 8)), True),
    ("the ages of a window shifted", "force: the newest sample of row 9 is", of_demo("sample_age_ms.force", OLDER)),
    ("the provenance is missing", "robocache/provenance: is missing", hdf5(lambda f: f.pop("robocache/provenance"))),
]  # fmt: skip

# Diffusion Policy

ZARR = "replay_buffer.zarr"
IMAGES = f"{ZARR}/data/color"
zattrs = setter(f"{ZARR}/data/.zattrs")


@planter
def zarr(dataset: Path, name: str, change: Callable[[np.ndarray], Any]) -> None:
    folder = dataset / ZARR / name
    metadata = json.loads((folder / ".zarray").read_text())
    path = folder / ".".join("0" for _ in metadata["shape"])
    codec, kind, shape = pyarrow.Codec("zstd"), np.dtype(metadata["dtype"]), metadata["chunks"]
    data = codec.decompress(path.read_bytes(), int(np.prod(shape)) * kind.itemsize, asbytes=True)
    values = changed(np.frombuffer(data, kind).reshape(shape).copy(), change)
    path.unlink()
    path.write_bytes(codec.compress(values.astype(kind).tobytes(), asbytes=True))


def of_buffer(key: str, change: Callable[[Any], Any]) -> Plant:
    return zarr(f"data/robocache.{key}", change)


def swap_chunks(one: int, other: int) -> Plant:
    return exchanged_files(f"{IMAGES}/{one}.0.0.0", f"{IMAGES}/{other}.0.0.0")


DIFFUSION_POLICY = [
    shifted(of_buffer, SECOND),
    ("a damaged chunk", "data/action/0.0: damaged", cut_off(f"{ZARR}/data/action/0.0")),
    ("a value that is infinite", "NaN or infinite", zarr("data/state", put((3, 1), np.inf))),
    ("metadata that is not usable", "meta/episode_ends/.zarray: ",
     setter(f"{ZARR}/meta/episode_ends/.zarray")("chunks", [0])),
    ("actions shifted by one row", "another value than in the row before", zarr("data/action", rolled(SECOND))),
    ("an action where there is none", "where valid is 0", zarr("data/action", at((30, 0), 1.0))),
    ("a value of an observation", "", zarr("data/state", at((3, 1), 1.0))),
    together(of_buffer),
    ("the end of an episode", "its number of rows is 41", zarr("meta/episode_ends", at(0, 1))),
    ("ends that do not rise", "is not rising", zarr("meta/episode_ends", to(np.array([40, 40, 120])))),
    ("the task of an episode", "task_index, episode 1: it is 0", zarr("meta/task_index", put(1, 0))),
    ("the success of an episode", "success, episode 1: it is 1", zarr("meta/success", put(1, 1))),
    ("the texts of the tasks", "the list of tasks",
     setter(f"{ZARR}/meta/.zattrs")("tasks", ["task 1", "task 0", "task 2"])),
    ("a chunk of an image is missing", "1 chunks are missing", remove(f"{IMAGES}/5.0.0.0")),
    ("a chunk too many", "is not a chunk of its", copy_file(f"{IMAGES}/5.0.0.0", f"{IMAGES}/500.0.0.0")),
    ("images of two rows exchanged", "color: in", swap_chunks(3, 8)),
    ("images of two samples exchanged", "", both(swap_chunks(4, 8), swap_chunks(5, 9))),
    ("the shape of an array", "rows; the episodes have 120", setter(f"{ZARR}/data/state/.zarray")("shape", [119, 3])),
    ("names of columns exchanged", "columns.action: name 0 is arm.1", zattrs("columns", "action", ["arm.1", "arm.0"])),
    ("rate_hz", "rate_hz is 25", zattrs("rate_hz", 25)),
    ("an array is missing", "data/state/.zarray: is missing", remove(f"{ZARR}/data/state")),
    ("the provenance is missing", "has no provenance robocache", remove(f"{ZARR}/.zattrs")),
]  # fmt: skip

# RLDS

RLDS_FOLDER = "robocache/1.0.0/"
STEP = ("featuresDict", "features", "steps", "sequence", "feature", "featuresDict", "features")  # in features.json
rlds_info, rlds_stats = (setter(f"{RLDS_FOLDER}{name}.json") for name in ("dataset_info", "dataset_statistics"))
rlds_features = setter(f"{RLDS_FOLDER}features.json", *STEP)
RECORDS = RLDS_FOLDER + "robocache-train.tfrecord-00000-of-00001"


@planter
def records(dataset: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the features of the records, with right checksums and a right numBytes."""
    path = dataset / RECORDS
    episodes = [
        {key: list(map(bytes, v)) if isinstance(v, list) else np.array(v) for key, v in parse_example(data).items()}
        for data in read_records(path)
    ]
    episodes = changed(episodes, change)
    path.unlink()
    features = ({k: BytesList(v) if isinstance(v, list) else v for k, v in episode.items()} for episode in episodes)
    rlds_info("splits", 0, "numBytes", str(write_records(path, map(encode_example, features))))(dataset)


def step(key: str, change: Callable[[Any], Any], *shape: int) -> Plant:
    """Change a feature of the steps of the second episode; numbers have the shape of a step."""

    def apply(episodes: list[dict[str, Any]]) -> None:
        values = episodes[1][f"steps/{key}"]
        table = changed(values.reshape(-1, *shape) if isinstance(values, np.ndarray) else values, change)
        episodes[1][f"steps/{key}"] = table.reshape(-1) if isinstance(table, np.ndarray) else table

    return records(apply)


def second(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    """Add or replace features of the second episode."""
    return records(lambda episodes: episodes[1].update(change(episodes[1])))


def of_steps(key: str, change: Callable[[Any], Any]) -> Plant:
    return step(f"robocache/{key}", change, *(() if key == "tick_ns" else (len(STREAMS),)))


RLDS = [
    shifted(of_steps, slice(None)),
    ("an action that is NaN", "steps/action: NaN or infinite in 1", step("action", put((3, 0), np.nan), 2)),
    ("a number is missing", "79 numbers are not steps of shape [2]", step("action", lambda v: v[:-1])),
    ("images of another camera", "features.json says",
     second(lambda features: {"steps/observation/color": features["steps/observation/gray"]})),
    ("an image that is not one", "steps/observation/color: cannot be read",
     step("observation/color", put(0, b"no image"))),
    ("a feature that is not listed", "steps/other is not in features.json",
     second(to({"steps/other": np.zeros(ROWS, np.float32)}))),
    ("actions shifted by one row", "another value than in the row before", step("action", rolled(slice(None)), 2)),
    ("a state changed", "proprio: mean", step("observation/state", at((3, 1), 0.5), 3)),
    ("is_first in another step", "is_first is true at steps [3]", step("is_first", to(np.arange(ROWS) == 3))),
    ("is_last in another step", "is_last is true at steps [38]", step("is_last", to(np.arange(ROWS) == 38))),
    ("is_terminal of a failure", "is_terminal is True in step 39", step("is_terminal", to(np.arange(ROWS) == 39))),
    ("a discount", "discount is not 1", step("discount", at(3, -0.5))),
    ("the reward of a sample", "", step("reward", at([2, 3], 0.5))),
    ("the instruction of a step", "language_instruction is fold", step("language_instruction", put(0, b"fold"))),
    ("images of two steps exchanged", "color: in", step("observation/color", exchanged(3, 8))),
    ("a depth image of another size", "compressed with zlib", step("observation/depth", at(0, lambda data: data[:-2]))),
    ("an image is missing", "different numbers of steps", step("observation/color", lambda v: v[:-1])),
    ("a feature is missing", "steps/action is missing",
     records(lambda v: [v[0], {key: of for key, of in v[1].items() if key != "steps/action"}, v[2]])),
    ("two episodes exchanged", "episode_metadata/episode_index is 1", records(exchanged(0, 1))),
    ("the success of an episode", "episode_metadata/success is 1",
     second(to({"episode_metadata/success": np.array([1])}))),
    ("shardLengths", "3 records; dataset_info.json says 2", rlds_info("splits", 0, "shardLengths", ["2"])),
    ("numBytes", "numBytes is 9", rlds_info("splits", 0, "numBytes", "9")),
    ("the name of a split", "is missing", rlds_info("splits", 0, "name", "val")),
    ("the type of a feature", "features.json says int64", rlds_features("action", "tensor", "dtype", "int64")),
    ("names of actions exchanged", "steps/action: name 0 is arm.1",
     rlds_features("action", "description", "arm.1, arm.0")),
    ("num_transitions", "num_transitions is 9", rlds_stats("num_transitions", 9)),
    ("the provenance is missing", "robocache.json: is missing", remove(RLDS_FOLDER + "robocache.json")),
]  # fmt: skip

# WebDataset, as robomimic.

TAR, SAMPLE = "train-000000.tar", "000001_000003"
index = setter("dataset.json")


@planter
def members(dataset: Path, change: Callable[[dict[str, bytes]], Any]) -> None:
    """Change the members of the tar file, with a right size in dataset.json."""
    with tarfile.open(dataset / TAR) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    with tarfile.open(dataset / TAR, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in changed(found, change).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    index("shards", 0, "bytes", (dataset / TAR).stat().st_size)(dataset)


def member(name: str, change: Callable[[bytes], bytes]) -> Plant:
    return members(lambda found: {n: change(data) if re.fullmatch(name, n) else data for n, data in found.items()})


def meta(change: Callable[[dict[str, Any]], Any], name: str = SAMPLE) -> Plant:
    def apply(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return member(f"{name}.meta.json", apply)


def npy(name: str, change: Callable[[np.ndarray], Any]) -> Plant:
    def apply(data: bytes) -> bytes:
        file = io.BytesIO()
        np.save(file, changed(np.load(io.BytesIO(data)), change))
        return file.getvalue()

    return member(name, apply)


def shift_actions(found: dict[str, bytes]) -> None:
    names = [f"000001_{row:06d}.action.npy" for row in range(ROWS)]
    found |= dict(zip(names, [found[name] for name in (names[-1], *names[:-1])], strict=True))


WEBDATASET = [
    ("ticks shifted by one", "the first tick is", meta(set_at("tick_ns", lambda v: v + TICK_NS), "000001_.*")),
    ("a stream is missing in a sample", "valid: 7 names; the spec has 8", meta(pop_at("valid", "state"))),
    ("the task of a sample", "000001_000003: task is fold", meta(set_at("task", "fold"))),
    ("the index of a task", "task_index is 0", meta(set_at("task_index", 0), "000001_.*")),
    ("the success of a sample", "success is True", meta(set_at("success", True))),
    ("is_first in another sample", "its number of rows is 3", meta(set_at("is_first", True))),
    ("is_last in another sample", "is_last is True", meta(set_at("is_last", True))),
    ("the number of a sample", "tick is 4", meta(set_at("tick", 4))),
    ("the episode of a sample", "episode is 0", meta(set_at("episode", 0))),
    ("actions shifted by one row", "another value than in the row before", members(shift_actions)),
    ("a state changed", "stats.json: state.npy: mean", npy(f"{SAMPLE}.state.npy", at(1, 0.5))),
    ("a state of another shape", "float32 [2]; the first sample has float32 [3]",
     npy(f"{SAMPLE}.state.npy", lambda v: v[:2])),
    ("the ages of a window shifted", "force: the newest sample of row 9 is",
     npy("000001_000009.force.age_ms.npy", at(slice(0, 5), 2.0))),
    ("images of two samples exchanged", "color: in",
     members(exchanged(f"{SAMPLE}.color.jpg", "000001_000008.color.jpg"))),
    ("a sample is missing", "its key is 000001_000004",
     members(lambda found: {name: data for name, data in found.items() if not name.startswith(SAMPLE)})),
    ("a damaged depth array", "000003.depth.npz",
     member(f"{SAMPLE}.depth.npz", lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:])),
    ("the samples of a shard", "120 samples; dataset.json says 119", index("shards", 0, "samples", 119)),
    ("the episodes of a shard", "episodes of train-000000.tar is 2", index("shards", 0, "episodes", 2)),
    ("the task of an episode", "episode 1: task is fold", index("episodes", 1, "task", "fold")),
    ("names of columns exchanged", "columns.action.npy: name 0 is arm.1",
     index("columns", "action.npy", ["arm.1", "arm.0"])),
    ("dataset.json is missing", "dataset.json: is missing", remove("dataset.json")),
    ("the provenance is missing", "robocache.json: is missing", remove("robocache.json")),
]  # fmt: skip

# Recordings

EPISODE = "episode_000001"
SIZES = {"state": 3, "arm": 2, "force": 6 + 12}  # of the messages of vectors
mcap_own = setter("robocache.json")


@planter
def rewrite(
    dataset: Path, change: Callable[[RawMessage], Iterable[RawMessage]] = lambda m: [m], *, checksums: bool = True
) -> None:
    """Write the recording of the second episode again, with changed messages and right checksums, or without."""
    folder = dataset / EPISODE
    streams = sensor_spec(outcomes=True).streams
    definitions = {f"robocache/msg/{stream.name.capitalize()}": definition(stream) for stream in streams}
    with Bag(folder) as bag:
        messages = [changed for message in bag.messages() for changed in change(message)]
        known = {name: topic.type for name, topic in bag.topics.items()}
        types = {message.topic: known.get(message.topic, "std_msgs/msg/Float32") for message in messages}
    shutil.rmtree(folder)
    write_bag(folder, types, messages, definitions=definitions, compression="storage")
    if checksums:
        add_checksums(folder / f"{EPISODE}.mcap")


def topic(name: str, change: Callable[[RawMessage, int], Iterable[RawMessage]]) -> Plant:
    first = 1_700_000_000 * 10**9

    def apply(message: RawMessage) -> Iterable[RawMessage]:
        on_topic = message.topic == f"/robocache/{name}"
        return change(message, (message.log_ns - first) // TICK_NS) if on_topic else [message]

    return rewrite(apply)


def data_of(name: str, change: Callable[[bytes], bytes], rows: slice = slice(None)) -> Plant:
    def apply(message: RawMessage, row: int) -> list[RawMessage]:
        return [message._replace(data=change(message.data)) if row in range(ROWS)[rows] else message]

    return topic(name, apply)


def later(name: str, by_ns: int, at_row: int) -> Plant:
    return topic(name, lambda message, row: [message._replace(log_ns=message.log_ns + by_ns * (row == at_row))])


def flipped(dataset: Path) -> None:
    path = dataset / EPISODE / f"{EPISODE}.mcap"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def fields(name: str, change: Callable[[Any], Any], rows: slice = slice(None)) -> Plant:
    def apply(data: bytes) -> bytes:
        table = np.frombuffer(data, message_dtype(SIZES[name])).copy()
        change(table)
        return table.tobytes()

    return data_of(name, apply, rows)


def add_to(field: str, value: Any) -> Callable[[Any], None]:
    def apply(table: Any) -> None:
        table[field] += value

    return apply


def change_both(table: Any) -> None:
    table["nanosec"] -= MS if table["nanosec"][0] >= MS else 0
    table["age_ms"] += 1


ROW5 = slice(5, 6)
MCAP = [
    ("values that are NaN", "state: a value is NaN or infinite in 40 rows, the first is row 0",
     fields("state", set_at("values", np.nan))),
    ("missing values that are not NaN", "arm: a value that is missing is not NaN in",
     fields("arm", set_at("values", 0))),
    ("an infinite age", "state: age_ms is NaN or infinite in 40 rows", fields("state", add_to("age_ms", np.inf))),
    ("messages that are too short", "40 messages have not 32 bytes", data_of("state", lambda data: data[:-4])),
    ("rewards that are NaN", "reward: 40 are NaN", data_of("episode/reward", to(number_message(np.nan)))),
    ("a layout that is not JSON", "layout: cannot be read", data_of("episode/layout", to(text_message("{")))),
    ("two layouts", "layout: is not one message at the first tick", topic("episode/layout", lambda m, _: [m, m])),
    ("a message between two ticks", "40 messages for 40 ticks: 1 ticks have none, 1 are at no tick",
     later("state", 1, 5)),
    ("images that are cut off", "message: content up to byte", data_of("color", lambda data: data[:-9])),
    ("images with other stamps", "stamps are not those of the status",
     data_of("color", lambda data: data[:4] + b"\x00\x00\x00\x01" + data[8:])),
    ("a topic of no stream", "other is a topic of no stream",
     topic("color", lambda m, _: [m, m._replace(topic="/robocache/other")])),
    ("the size of a stream in the provenance", "the definition of robocache/msg/State is not that of the stream state",
     mcap_own("layout", "spec", "streams", "state", "dim", 4)),
    ("an altered byte", "chunks are damaged", flipped),
    ("a recording that is cut off", EPISODE, cut_off(f"{EPISODE}/{EPISODE}.mcap")),
    ("no checksums", f"{EPISODE}: not every message has a checksum", rewrite(checksums=False)),
    ("ticks shifted by one", "the first tick is|first_tick_ns is not",
     rewrite(lambda m: [m._replace(log_ns=m.log_ns + TICK_NS)])),
    ("stamps shifted by 1 ms", "age_ms is 0 in row 0; tick - stamp is", fields("state", add_to("nanosec", MS))),
    ("an age changed", "age_ms is 5 in row 5; tick - stamp is 0", fields("state", add_to("age_ms", 5), ROW5)),
    ("an unknown valid", "valid is not 0, 1 or 2", fields("state", add_to("valid", 3), ROW5)),
    ("valid 0 with a value", "valid and the stamp disagree", fields("state", set_at("valid", 0), ROW5)),
    ("a stamp and its age changed together, within max_age_ms", "", fields("state", change_both, ROW5)),
    ("a value of a vector", "", fields("state", add_to("values", 0.1), ROW5)),
    ("an action of a row", "arm: in", fields("arm", add_to("values", 0.1), ROW5)),
    ("the ages of a window shifted", "force: the newest sample of row 5 is",
     fields("force", lambda t: at((0, slice(0, 5)), 2)(t["values"]), ROW5)),
    ("an image is missing", "ticks with a new sample have no message", topic("color", lambda m, row: [m] * (row != 4))),
    ("an image at another tick", "messages are at ticks without a new sample", later("color", TICK_NS, 4)),
    ("the reward of a row", "row 5 is 9, not the value of reward",
     data_of("episode/reward", to(number_message(9.0)), ROW5)),
    ("the task", "task: is not that of robocache.json", data_of("episode/task", to(text_message("fold")))),
    ("the layout", "layout: is not that of robocache.json", data_of("episode/layout", to(text_message("{}")))),
    ("a topic is missing", "has no topic /robocache/state", topic("state", lambda m, row: [])),
    ("the last recording is missing", "episode_000002: is missing", remove("episode_000002")),
    ("a recording of no episode", "is not in robocache.json",
     lambda d: shutil.copytree(d / EPISODE, d / "episode_000003")),
    ("the number of messages in metadata.yaml", "metadata.yaml has",
     replace_text(f"{EPISODE}/metadata.yaml", "message_count: 40", "message_count: 41")),
    ("the length of an episode", "robocache.json says 41|its number of rows", mcap_own("episodes", 1, "frames", 41)),
    ("the provenance is missing", "robocache.json: is missing", remove("robocache.json")),
]  # fmt: skip
MCAP_IMAGE = [
    ("images of no format", "cannot be read", data_of("color", lambda d: d.replace(b"PNG", b"GNP"))),
]  # fmt: skip

# Delta


@planter
def delta_rows(dataset: Path, table: str, **changes: Callable[[Any], Any]) -> None:
    """Change columns of a table, with the name, the size and the statistics that a writer would give."""
    (old,) = (dataset / table).glob("*/*.parquet")
    rows = parquet.read_table(old, partitioning=None)
    for key, change in changes.items():
        rows = change(rows) if key == "rows" else changed_column(rows, key, change)
    parquet.write_table(rows, old)
    path = old.with_name(f"part-{hashlib.sha256(old.read_bytes()).hexdigest()[:32]}.parquet")
    old.rename(path)

    def add(entry: dict[str, Any]) -> None:
        stats = json.loads(entry["stats"])
        stats["numRecords"] = len(rows)
        for name in ("tick_ns", "start_ns", "stop_ns", "length", "task", "robot", "rate_hz"):
            if name in rows.column_names and name in stats["minValues"]:
                values = rows[name].to_pylist()
                stats["minValues"][name], stats["maxValues"][name] = min(values), max(values)
        entry |= {"path": f"episode_range=0/{path.name}", "size": path.stat().st_size, "stats": json.dumps(stats)}

    add_action(add, table)(dataset)


ticks, delta_episodes = partial(delta_rows, "ticks"), partial(delta_rows, "episodes")


def add_action(change: Callable[[dict[str, Any]], Any], table: str = "ticks") -> Plant:
    """Change the actions of the log that add a file."""

    def log(lines: list[Any]) -> None:
        for line in lines:
            if "add" in line:
                change(line["add"])

    return change_lines(f"{table}/_delta_log/00000000000000000000.json", log)


def replaced(key: str, old: str, new: str) -> Plant:
    """Replace what a regular expression finds in a part of the log."""
    return add_action(set_at(key, lambda text: re.sub(old, new, text)))


def of_struct(field: str, change: Callable[[list[Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    def apply(values: list[Any]) -> list[Any]:
        new = changed([value[field] for value in values], change)
        return [{**value, field: one} for value, one in zip(values, new, strict=True)]

    return apply


@planter
def of_appends(dataset: Path, pattern: str, plant: Callable[..., Plant], *given: Any) -> None:
    for path in list(dataset.glob(f"appends/*/{pattern}")):
        plant(path.name, *given)(path.parent)


def field3(name: str, change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """Change a field of a struct in row 3."""
    return of_struct(name, only_row(3, change))


DELTA = [
    ("a value where there is none", "state: is not null exactly where valid is 0", ticks(state=put(3, None))),
    ("an infinite action", "arm: NaN or infinite in 1 rows, the first is row 3",
     ticks(arm=put(3, {"v0": np.inf, "v1": 0.0}))),
    ("images that are missing", "appends/none: is missing", ticks(color=put(3, {"path": "appends/none", "row": 0}))),
    ("images elsewhere", "../file: is outside the dataset", ticks(color=put(3, {"path": "../file", "row": 0}))),
    ("a number of two episodes", "its number is that of another episode",
     delta_episodes(rows=lambda rows: rows.take([0, 1, 1]))),
    ("ticks shifted by one", "no episode of appends|start_ns or stop_ns is wrong", ticks(tick_ns=at(SECOND, TICK_NS))),
    ("a tick off the grid", "not on the grid of 50 Hz", ticks(tick_ns=at(7, 3))),
    ("an unknown valid", "valid.state: not 0, 1 or 2", ticks(valid=field3("state", to(3)))),
    ("valid 0 with a value", "is not null exactly where valid is 0", ticks(valid=field3("state", to(0)))),
    ("valid 2 for 1", "aligned.state is 1", ticks(valid=field3("state", to(2)))),
    ("actions shifted by one row", "another value than in the row before",
     ticks(arm=lambda v: [*v[:40], v[79], *v[40:79], *v[80:]])),
    ("a value of a vector", "", ticks(state=put(3, {"v0": 9.0, "v1": 9.0, "v2": 9.0}))),
    ("a stamp and its age changed together, within max_age_ms", "",
     ticks(stamp_ns=field3("state", lambda v: v - MS), age_ns=field3("state", lambda v: v + MS))),
    ("the ages of a window shifted", "force: the newest sample of row 9 is",
     ticks(sample_age_ms=of_struct("force", only_row(9, lambda v: [x + 2 for x in v])))),
    ("a reward of a row", "next_reward of row 3", ticks(next_reward=at(3, 1.0))),
    ("the success of an episode in its last row", "next_success of the last row", ticks(next_success=put(39, False))),
    ("the frame of a row", "is not the frame after", ticks(color=field3("row", to(9)))),
    ("the image of another episode", "are of no episode, or of two",
     ticks(color=of_struct("row", lambda v: [*v[:40], *v[:40], *v[80:]]))),
    ("the depth image of a row", "depth: in|depth/", ticks(depth=only_row(3, lambda v: {**v, "row": 5}))),
    ("a row is missing", "39 rows of ticks; it has 40",
     ticks(rows=lambda rows: rows.take([k for k in range(120) if k != 39]))),
    ("the number of a row", "its ticks are not 0, 1", ticks(tick=exchanged(3, 4))),
    ("the length of an episode", "40 rows of ticks; it has 39", delta_episodes(length=at(1, -1))),
    ("the task of an episode", "task is fold", delta_episodes(task=put(1, "fold"))),
    ("the success of an episode", "success is True", delta_episodes(success=put(1, True))),
    ("the robot of an episode", "robot is leg", delta_episodes(robot=put(1, "leg"))),
    ("the rate of an episode", "rate_hz is 25", delta_episodes(rate_hz=put(1, 25))),
    ("the recording of an episode", "task is task 0; appends/", delta_episodes(recording_key=exchanged(0, 1))),
    ("numRecords in the log", "the log states 7", replaced("stats", '("numRecords"): ?\\d+', "\\1:7")),
    ("the greatest tick in the log", "max of tick is 39; the log states 38",
     replaced("stats", '("tick"): ?39', "\\1:38")),
    ("the size in the log", "the log states 9", add_action(set_at("size", 9))),
    ("the partition in the log", "the log states 1000",
     add_action(set_at("partitionValues", {"episode_range": "1000"}))),
    ("the path in the log", "is missing", replaced("path", "part-", "port-")),
    ("a changed file", "its contents are not those of its name",
     lambda d: parquet.write_table(parquet.read_table((p := next(d.glob("ticks/*/*.parquet"))), partitioning=None), p)),
    ("the stamp of a depth image", "the stamp of row 2 is",
     of_appends("arrays/depth/*/*.parquet", change_column, "stamp_ns", at(2, MS))),
    ("a depth image is missing", "rows; a tick names number", of_appends("arrays/depth/*/*.parquet", drop_rows, 4)),
    ("a frame is missing", "119 frames; a tick names number 119",
     of_appends("videos/*color/*/*.mp4", remux, but_last(120))),
    ("the length of an episode in the provenance", "length is 40",
     of_appends("robocache.json", change_json, set_at("episodes", 1, "frames", 41))),
    ("the provenance is missing", "its provenance in appends is missing", of_appends("robocache.json", remove)),
]  # fmt: skip

FAULTS = [
    Fault(stored, *fault)
    for stored, faults in {
        "lerobot": LEROBOT,
        "lerobot image": LEROBOT_IMAGE,
        "lerobot21": LEROBOT21,
        "robomimic": ROBOMIMIC,
        "diffusion_policy": DIFFUSION_POLICY,
        "rlds": RLDS,
        "webdataset": WEBDATASET,
        "mcap": MCAP,
        "mcap image": MCAP_IMAGE,
        "delta": DELTA,
    }.items()
    for fault in faults
]
