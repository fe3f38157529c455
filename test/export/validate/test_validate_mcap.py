"""Recordings of the fused stream, damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage.mcap import add_checksums
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.formats.mcap.schema import definition, message_dtype, number_message, text_message
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.sensor_recording import sensor_recording, sensor_spec
from test.export.validate.conftest import found, without_checksums

NAME = "episode_000000"
Change = Callable[[RawMessage], Iterable[RawMessage]]


@pytest.fixture(scope="session")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One episode with gray, color and depth images, a window, and streams that are silent for a while."""
    folder = tmp_path_factory.mktemp("fused")
    options = DatasetOptions(formats=("mcap",), media="image", task="lift")
    return export([sensor_recording(folder / "bag", 1)], sensor_spec(), folder / "out", options).out


@pytest.fixture
def dataset(fused: Path, tmp_path: Path) -> Path:
    return without_checksums(fused, tmp_path / "set")


def rewrite(dataset: Path, change: Change, *, checksums: bool = True) -> None:
    """Write the recording of an episode again, with changed messages."""
    folder = dataset / NAME
    streams = {f"robocache/msg/{s.name.capitalize()}": definition(s) for s in sensor_spec().streams}
    with Bag(folder) as bag:
        messages = [changed for message in bag.messages() for changed in change(message)]
        types = {name: topic.type for name, topic in bag.topics.items()}
    types |= {message.topic: "std_msgs/msg/Float32" for message in messages if message.topic not in types}
    shutil.rmtree(folder)
    write_bag(folder, types, messages, definitions=streams, compression="storage")
    if checksums:
        add_checksums(folder / f"{NAME}.mcap")


def only(topic: str, change: Change) -> Change:
    """Change the messages of one topic."""
    return lambda message: change(message) if message.topic == f"/robocache/{topic}" else [message]


def fields(size: int, **changed: Any) -> Change:
    """Change fields of every message of a stream."""

    def change(message: RawMessage) -> list[RawMessage]:
        table = np.frombuffer(message.data, message_dtype(size)).copy()
        for name, value in changed.items():
            table[name] = value
        return [message._replace(data=table.tobytes())]

    return change


def without_padding(message: RawMessage) -> list[RawMessage]:
    """Set the values of a window to 0 where it has no sample."""
    table = np.frombuffer(message.data, message_dtype(18)).copy()
    np.nan_to_num(table["values"], copy=False)
    return [message._replace(data=table.tobytes())]


def test_nothing_is_found_in_recordings_of_the_fused_stream(
    dataset: Path, bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    assert found(dataset, decode=True) == []
    rewrite(dataset, lambda message: [message])  # which shows that the tests below find their changes alone
    assert found(dataset, decode=True) == []
    out = export(bags, spec, tmp_path / "robot", DatasetOptions(formats=("mcap",))).out
    assert found(out, decode=True) == []


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (only("state", fields(3, values=np.nan)), ["state: a value is NaN or infinite in 50 rows, the first is row 0"]),
        (
            only("arm", fields(2, values=0)),
            ["arm: a value that is missing is not NaN in 12 rows, the first is row 24"],
        ),
        (only("force", without_padding), ["force: a value that is missing is not NaN in 50 rows, the first is row 0"]),
        (only("state", fields(3, age_ms=np.inf)), ["state: age_ms is NaN or infinite in 50 rows"]),
        (only("state", lambda message: [message._replace(data=message.data[:-4])]), ["50 messages have not 32 bytes"]),
        (only("episode/reward", lambda m: [m._replace(data=number_message(np.nan))]), ["reward: 50 are NaN"]),
        (only("episode/layout", lambda m: [m._replace(data=text_message("{"))]), ["layout: cannot be read"]),
        (only("episode/layout", lambda m: [m, m]), ["layout: is not one message at the first tick"]),
    ],
)
def test_values_that_do_not_fit(dataset: Path, change: Change, texts: list[str]) -> None:
    rewrite(dataset, change)
    lines = found(dataset)
    assert len(lines) == len(texts), lines
    for line, text in zip(lines, texts, strict=True):
        assert text in line


def test_messages_that_are_missing_or_at_no_tick(dataset: Path) -> None:
    ticks: list[int] = []

    def change(message: RawMessage) -> list[RawMessage]:
        if message.topic == "/robocache/state":
            ticks.append(message.log_ns)
            return (
                []
                if len(ticks) == 3
                else [message._replace(log_ns=message.log_ns + 1)]
                if len(ticks) == 5
                else [message]
            )
        return [message]

    rewrite(dataset, change)
    assert found(dataset) == [
        f"{NAME}, /robocache/state: 49 messages for 50 ticks: 2 ticks have none, 1 are at no tick"
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda message: [message._replace(data=message.data[:-9])], "message: content up to byte"),
        (lambda message: [message._replace(data=message.data.replace(b"PNG", b"GNP"))], "cannot be read"),
        (
            lambda message: [message._replace(data=message.data[:4] + b"\0\0\0\1" + message.data[8:])],
            "stamps are not those of the status",
        ),
        (lambda message: [message, message._replace(topic="/robocache/other")], "other is a topic of no stream"),
    ],
)
def test_images_that_do_not_fit(dataset: Path, change: Change, text: str) -> None:
    rewrite(dataset, only("color", change))
    lines = found(dataset)
    assert any(text in line for line in lines), lines


def test_a_definition_that_is_not_that_of_the_stream(dataset: Path) -> None:
    index = json.loads((dataset / "robocache.json").read_text())
    index["layout"]["spec"]["streams"]["state"]["dim"] = 4
    (dataset / "robocache.json").write_text(json.dumps(index))
    assert "the definition of robocache/msg/State is not that of the stream state" in "".join(found(dataset))


def test_an_altered_byte_of_a_message(dataset: Path) -> None:
    path = dataset / NAME / f"{NAME}.mcap"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    lines = found(dataset)
    assert any("chunks are damaged" in line for line in lines), lines


def test_messages_without_checksums(dataset: Path) -> None:
    rewrite(dataset, lambda message: [message], checksums=False)
    assert found(dataset) == [f"{NAME}: not every message has a checksum"]


def test_a_truncated_recording(dataset: Path) -> None:
    path = dataset / NAME / f"{NAME}.mcap"
    os.truncate(path, path.stat().st_size // 2)
    assert any(line.startswith(NAME) for line in found(dataset))
