"""tensorflow-datasets, webdataset and mcap read what the engine computed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.formats.mcap import field_names
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.spec import StreamSpec
from test.export.conftest import KINDS, TASK, Exported, close, picture, tables
from test.export.readers.environments import probe, reads
from test.export.sensor_recording import Rows

# RLDS as tensorflow-datasets reads it without TensorFlow, against the engine's own values.


@reads("tfds")
@pytest.mark.parametrize(("name", "media"), KINDS)
def test_tfds_reads_what_the_engine_computed(exported, tmp_path, name, media):
    made = exported(name, media)
    folder = made.out / "rlds" / "robocache" / "1.0.0"
    reported = probe("tfds", tmp_path, folder)
    assert (reported["name"], reported["tensorflow"]) == ("robocache/1.0.0", False)
    assert reported["lengths"] == [len(made.lengths)]
    (shard,) = folder.glob("*.tfrecord-00000-of-00001")
    records = list(read_records(shard))
    assert reported["bytes"] == sum(map(len, records))
    for index, (table, record) in enumerate(zip(tables(reported), records, strict=True)):
        expected = made.episodes[index]
        check_steps(made, table, expected)
        for stream in made.spec.media:
            check_media(stream, media, table[f"observation/{stream.name}"], expected, parse_example(record))
        assert reported["episodes"][index]["tasks"] == [TASK]
        assert reported["episodes"][index]["success"] == -1
        assert reported["episodes"][index]["file_path"] == str(made.recordings[index])


def check_steps(made: Exported, table: Rows, expected: Rows) -> None:
    rest = [False] * (len(table["reward"]) - 1)
    assert table["is_first"].tolist() == [True, *rest]
    assert table["is_last"].tolist() == [*rest, True]
    assert not table["is_terminal"].any()
    assert not table["reward"].any()
    assert (table["discount"] == 1).all()
    assert np.array_equal(table["observation/state"], made.vectors(expected, "observation"))
    assert np.array_equal(table["action"], made.vectors(expected, "action"))
    for key in ("tick_ns", "valid", "age_ns", "stamp_ns"):
        assert np.array_equal(table[f"robocache/{key}"], expected[key])
    for stream in made.spec.vectors:
        if stream.rows:
            ages = table[f"robocache/sample_age_ms/{stream.name}"]
            assert np.array_equal(table[f"observation/{stream.name}"], expected[stream.name])
            assert np.array_equal(ages, expected[f"sample_age_ms.{stream.name}"])


def check_media(stream: StreamSpec, media: str, values: np.ndarray, expected: Rows, stored: dict[str, Any]) -> None:
    if stream.voxels:
        assert np.array_equal(values, expected[stream.name])
    elif expected[stream.name].dtype != np.uint8:  # depth, (C, H, W)
        assert np.array_equal(np.moveaxis(values, 1, -1), expected[stream.name])
    elif media == "image":
        assert np.array_equal(values, expected[stream.name])
    else:
        files = stored[f"steps/observation/{stream.name}"]
        assert all(np.array_equal(image, picture(bytes(file))) for image, file in zip(values, files, strict=True))
        assert close(values, expected[stream.name])


# WebDataset shards as webdataset reads them, against the engine's own values.


@reads("webdataset")
@pytest.mark.parametrize(("name", "media"), KINDS)
def test_webdataset_reads_what_the_engine_computed(exported, tmp_path, name, media):
    made = exported(name, media)
    shards = sorted((made.out / "webdataset").glob("train-*.tar"))
    reported = probe("webdataset", tmp_path, *shards)
    assert len(reported["episodes"]) == len(made.lengths)
    for index, table in enumerate(tables(reported)):
        about = reported["episodes"][index]
        assert about["keys"] == [f"{index:06d}_{tick:06d}" for tick in range(made.lengths[index])]
        expected = made.episodes[index]
        check_meta(made, about["meta"], expected)
        assert np.array_equal(table["state.npy"], made.vectors(expected, "observation"))
        assert np.array_equal(table["action.npy"], made.vectors(expected, "action"))
        for stream in made.spec.vectors:
            if stream.rows:
                assert np.array_equal(table[f"{stream.name}.npy"], expected[stream.name])
                ages = table[f"{stream.name}.age_ms.npy"]
                assert np.array_equal(ages, expected[f"sample_age_ms.{stream.name}"])
        for stream in made.spec.media:
            check_fields(stream, media, table, expected, shards[0], index)


def check_meta(made: Exported, meta: list[dict[str, Any]], expected: Rows) -> None:
    names = [stream.name for stream in made.spec.streams]
    assert [reported["tick_ns"] for reported in meta] == expected["tick_ns"].tolist()
    last = len(meta) - 1
    for tick, reported in enumerate(meta):
        assert (reported["tick"], reported["is_first"], reported["is_last"]) == (tick, tick == 0, tick == last)
        wanted = {"task": TASK, "task_index": 0, "success": None, "reward": 0.0}
        assert {key: reported[key] for key in wanted} == wanted
        for key in ("valid", "age_ns", "stamp_ns"):
            assert reported[key] == dict(zip(names, expected[key][tick].tolist(), strict=True))


def check_fields(stream: StreamSpec, media: str, table: Rows, expected: Rows, shard: Path, episode: int) -> None:
    if stream.voxels:
        assert np.array_equal(table[f"{stream.name}.npz"], expected[stream.name])
    elif expected[stream.name].dtype != np.uint8:  # depth, (C, H, W)
        assert np.array_equal(np.moveaxis(table[f"{stream.name}.npz"], 1, -1), expected[stream.name])
    elif media == "image":
        assert np.array_equal(table[f"{stream.name}.png"], expected[stream.name])
    else:
        images = table[f"{stream.name}.jpg"]
        assert close(images, expected[stream.name])
        with tarfile.open(shard) as tar:
            for tick in (0, len(images) - 1):
                file = tar.extractfile(f"{episode:06d}_{tick:06d}.{stream.name}.jpg")
                assert file is not None
                assert np.array_equal(images[tick], picture(file.read()))


# Recordings of the fused stream as the mcap library reads them, against the engine's own values.

Topics = dict[str, Any]


@reads("mcap")
@pytest.mark.parametrize(("name", "media"), KINDS)
def test_the_mcap_library_reads_what_the_engine_computed(exported, tmp_path, name, media):
    made = exported(name, media)
    files = sorted((made.out / "mcap").glob("episode_*/episode_*.mcap"))
    reported = probe("mcap", tmp_path, *files)
    assert len(reported["episodes"]) == len(made.lengths)
    for index, about in enumerate(reported["episodes"]):
        topics = json.loads(Path(about["file"]).read_text())
        assert sum(len(topic["messages"]) for topic in topics.values()) == about["count"]
        rewards = topics["/robocache/episode/reward"]["messages"]
        expected = made.episodes[index]
        assert [tick for tick, _ in rewards] == expected["tick_ns"].tolist()
        check_episode(topics, rewards)
        for stream in made.spec.vectors:
            check_vector(topics[f"/robocache/{stream.name}"], made, stream, expected)
        for stream in made.spec.media:
            check_status(topics[f"/robocache/{stream.name}/status"], made, stream, expected)
            check_messages(topics[f"/robocache/{stream.name}"], made, stream, media, expected)


def check_episode(topics: Topics, rewards: list[Any]) -> None:
    first = rewards[0][0]
    assert topics["/robocache/episode/task"]["messages"] == [[first, {"data": TASK}]]
    assert [message for _, message in rewards] == [{"data": 0.0}] * len(rewards)
    ((tick, layout),) = topics["/robocache/episode/layout"]["messages"]
    assert tick == first
    assert json.loads(layout["data"])["robocache"] == 1


def check_status(topic: Topics, made: Exported, stream: StreamSpec, expected: Rows) -> None:
    row = made.spec.streams.index(stream)
    assert topic["encoding"] == "ros2msg"
    assert [tick for tick, _ in topic["messages"]] == expected["tick_ns"].tolist()
    messages = [message for _, message in topic["messages"]]
    assert [message["valid"] for message in messages] == expected["valid"][:, row].tolist()
    stamps = [message["stamp"]["sec"] * 10**9 + message["stamp"]["nanosec"] for message in messages]
    assert stamps == expected["stamp_ns"][:, row].tolist()
    ages = np.array([message["age_ms"] for message in messages], np.float32)
    assert np.array_equal(ages, (expected["age_ns"][:, row] / 1e6).astype(np.float32))


def check_vector(topic: Topics, made: Exported, stream: StreamSpec, expected: Rows) -> None:
    check_status(topic, made, stream, expected)
    messages = [message for _, message in topic["messages"]]
    columns = [[message[name] for message in messages] for name in field_names(stream.components)]
    values = np.array(columns, np.float32)  # (K, T), or (K, T, n) for a window
    values = np.moveaxis(values, 0, -1)
    present = (expected["valid"][:, made.spec.streams.index(stream)] > 0)[:, None]
    if stream.rows:
        ages = np.array([message["sample_age_ms"] for message in messages], np.float32)
        assert np.array_equal(ages, expected[f"sample_age_ms.{stream.name}"])
        present = expected[f"mask.{stream.name}"][:, :, None]
    assert np.array_equal(values, np.where(present, expected[stream.name], np.nan), equal_nan=True)


def check_messages(topic: Topics, made: Exported, stream: StreamSpec, media: str, expected: Rows) -> None:
    row = made.spec.streams.index(stream)
    stamps, ticks = expected["stamp_ns"][:, row].tolist(), expected["tick_ns"].tolist()
    found = dict(topic["messages"])
    used = [stamp for tick, stamp in enumerate(stamps) if stamp and (tick == 0 or stamp != stamps[tick - 1])]
    heads = [message["header"]["stamp"] for message in found.values()]
    assert [head["sec"] * 10**9 + head["nanosec"] for head in heads] == used
    for tick_ns, message in found.items():
        wanted = expected[stream.name][ticks.index(tick_ns)]
        if stream.voxels:
            assert np.array_equal(grid_of(message, stream), wanted)
        elif "encoding" in message:
            assert message["encoding"] == "32FC1"
            depth = np.array(message["data"], np.uint8).view(np.float32)
            assert np.array_equal(depth.reshape(message["height"], message["width"], 1), wanted)
        else:
            assert message["format"] == {"image": "png", "video": "jpeg"}[media]
            image = picture(bytes(message["data"]))
            assert np.array_equal(image, wanted) if media == "image" else close(image, wanted)


def grid_of(message: Topics, stream: StreamSpec) -> np.ndarray:
    grid = stream.voxels
    assert grid is not None
    assert [field["name"] for field in message["fields"]] == ["x", "y", "z"]
    points = np.array(message["data"], np.uint8).view(np.float32).reshape(message["width"], 3)
    cells = np.floor((points - np.array(grid.origin_m)) / np.array(grid.size_m)).astype(int)
    dense = np.zeros(grid.shape, np.uint8)
    dense[tuple(cells.T)] = 1
    return dense


# A real shard of Open X-Embodiment as the package reads it, against tensorflow-datasets.


@reads("tfds")
def test_a_real_dataset_has_the_values_that_tfds_reads(real, tmp_path):
    bridge = real / "rlds_bridge" / "bridge_dataset" / "1.0.0"
    reported = probe("tfds", tmp_path, bridge, "val")
    episodes = list(TfdsDataset(bridge).episodes("val"))
    assert len(episodes) == len(reported["episodes"]) == 25
    for episode, about, table in zip(episodes, reported["episodes"], tables(reported), strict=True):
        steps = {name.removeprefix("steps/"): values for name, values in episode.items() if name.startswith("steps/")}
        assert sorted(set(steps.pop("language_instruction"))) == about["tasks"]
        assert steps.keys() == table.keys()
        for name, values in steps.items():
            check(values, table[name])
        metadata = {name: value for name, value in episode.items() if not name.startswith("steps/")}
        assert {name: about[name.partition("/")[2]] for name in metadata} == metadata


def check(values: Any, expected: np.ndarray) -> None:
    if isinstance(values, list):
        values = np.stack([picture(image) for image in values])
    assert values.dtype == expected.dtype
    assert np.array_equal(values, expected)
