"""Files and folders that are named or filled in unusual ways are read, or refused with the reason."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.recordings import TYPES, messages

NO_DEFINITIONS = {topic: (kind, "") for topic, kind in TYPES.items()}


@pytest.mark.parametrize("name", ["x.mcap", "x.db3", "x.bag"])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_file_is_read_by_its_first_bytes_whatever_its_name(tmp_path: Path, name: str, storage: str) -> None:
    folder = write_bag(tmp_path / "bag", TYPES, messages(), storage=storage)
    (file,) = (file for file in folder.iterdir() if file.suffix != ".yaml")
    file.rename(tmp_path / name)
    with Bag(tmp_path / name) as bag:
        assert list(bag.messages()) == messages()


def test_rows_that_are_not_messages_are_counted_and_not_read(tmp_path: Path) -> None:
    folder = write_bag(tmp_path / "bag", TYPES, messages(), storage="sqlite3")
    (file,) = folder.glob("*.db3")
    with sqlite3.connect(file) as database:  # without the NOT NULL that rosbag2 declares
        database.executescript(
            "CREATE TABLE rows(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);"
            "INSERT INTO rows SELECT * FROM messages; DROP TABLE messages; ALTER TABLE rows RENAME TO messages;"
            "UPDATE messages SET data = NULL WHERE id = 10; UPDATE messages SET data = 5 WHERE id = 20;"
            "UPDATE messages SET data = 'text' WHERE id = 30"
        )
    database.close()
    with Bag(folder) as bag:
        assert len(list(bag.messages())) == len(messages()) - 3
        assert bag.notes == [f"{file.name}: 3 rows are not messages and were not read"]


@pytest.mark.parametrize("encoding", ["json", "protobuf", ""])
def test_messages_that_are_not_of_ros_are_refused_by_name(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "x.mcap"
    file.write_bytes(write_mcap(NO_DEFINITIONS, messages(), McapLayout(encoding=encoding)))
    why = rf"140 messages are not ROS messages \(cdr, ros1\) but '{encoding}', and were not read; give one with ROS "
    with pytest.raises(RoboCacheError, match=why):
        Bag(file)


@pytest.mark.parametrize("definitions", ["", "ros2msg", "ros2idl", "jsonschema", "unknown"])
def test_known_types_are_read_whatever_their_definitions_are(tmp_path: Path, definitions: str) -> None:
    file = tmp_path / "x.mcap"
    file.write_bytes(write_mcap(NO_DEFINITIONS, messages(), McapLayout(definitions=definitions)))
    assert "topic: /arm/pose" in suggest_spec(describe(file))


def test_a_type_defined_in_idl_is_proposed(tmp_path: Path) -> None:
    idl = "module my_msgs { module msg { struct Thing { double speed; float angle[2]; }; }; };"
    data = b"\0\1\0\0" + bytes(8) + bytes(8)
    given = [("/thing", 10**18 + 20_000_000 * k, data) for k in range(20)]
    file = tmp_path / "x.mcap"
    types = {"/thing": ("my_msgs/msg/Thing", idl)}
    file.write_bytes(write_mcap(types, given, McapLayout(definitions="ros2idl")))
    text = suggest_spec(describe(file))
    assert "field: speed" in text
    assert "field: angle" in text


def test_a_folder_of_recordings_is_refused_with_one_of_them(tmp_path: Path) -> None:
    for name in ("lift_2", "lift_1"):
        write_bag(tmp_path / name, TYPES, messages())
    with pytest.raises(RoboCacheError, match=r"not a recording.*; give a folder in it, such as lift_1"):
        Bag(tmp_path)
