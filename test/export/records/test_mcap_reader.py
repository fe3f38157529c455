"""Recordings of the fused stream as the mcap library reads them, against the engine's own values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.formats.mcap import field_names
from robocache_ros.spec import StreamSpec
from test.export.readers.engine_rows import Rows
from test.export.readers.environments import needs, probe
from test.export.records.conftest import KINDS, TASK, Exported, Make, close, picture

pytestmark = needs("mcap")
Topics = dict[str, Any]


@pytest.mark.parametrize(("name", "media"), KINDS)
def test_the_mcap_library_reads_what_the_engine_computed(exported: Make, tmp_path: Path, name: str, media: str) -> None:
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
            check_media(topics[f"/robocache/{stream.name}"], made, stream, media, expected)


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


def check_media(topic: Topics, made: Exported, stream: StreamSpec, media: str, expected: Rows) -> None:
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
