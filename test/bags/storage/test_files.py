"""Which files make a recording, in which order they are read, and what is refused with the reason."""

import os
import shutil
import sqlite3

import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.fuzz import recordings
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers
from test.fuzz.recordings import MS, START_NS

TYPES = {"/a": ("std_msgs/msg/Float64MultiArray", ""), "/b": ("std_msgs/msg/Float64MultiArray", "")}
SPEC = {"robocache": 1, "streams": {"a": {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 1}}}


def messages(start, stop, topic="/a"):
    return [(topic, START_NS + 10 * k * MS, numbers(k)) for k in range(start, stop)]


def listed(folder, *names):
    counts = [{"topic_metadata": {"name": "/a", "type": TYPES["/a"][0]}, "message_count": 100}]
    info = {"relative_file_paths": list(names), "topics_with_message_count": counts}
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": info}))
    return folder


@pytest.mark.parametrize("names", [("z.mcap", "a.mcap"), ("a.mcap", "z.mcap")])
@pytest.mark.parametrize("metadata", [True, False])
def test_files_are_read_in_the_order_of_their_times(tmp_path, names, metadata):
    (tmp_path / names[0]).write_bytes(write_mcap(TYPES, messages(0, 50)))
    (tmp_path / names[1]).write_bytes(write_mcap(TYPES, messages(50, 100)))
    if metadata:
        listed(tmp_path, *names)
    with Bag(tmp_path) as bag:
        assert list(bag.messages()) == messages(0, 100)


def test_topics_in_files_of_their_own_are_merged_by_time(tmp_path):
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / "b.mcap").write_bytes(write_mcap(TYPES, messages(30, 130, "/b")))
    with Bag(tmp_path) as bag:
        found = list(bag.messages())
    assert [m.log_ns for m in found] == sorted(m.log_ns for m in found)
    assert sorted(found) == sorted(messages(0, 100) + messages(30, 130, "/b"))


@pytest.mark.parametrize("metadata", [True, False])
def test_files_next_to_a_recording_do_not_matter(tmp_path, metadata):
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    for stray in ("a.mcap.sha256", "a.mcap.bak", "._a.mcap", ".a.mcap.swp", "a.db3-journal", "a.mcap.txt", "old.db3~"):
        (tmp_path / stray).write_bytes(b"something else")
    if metadata:
        listed(tmp_path, "a.mcap")
    with Bag(tmp_path) as bag:
        assert bag.files == (tmp_path / "a.mcap",)
        assert list(bag.messages()) == messages(0, 100)


@pytest.mark.parametrize("name", ["../secret/a.mcap", "/etc/a.mcap", "sub/a.mcap"])
def test_metadata_does_not_lead_out_of_the_folder(tmp_path, name):
    for folder in ("bag", "secret", "bag/sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100 if folder == "bag" else 5)))
    with Bag(listed(tmp_path / "bag", name)) as bag:
        assert bag.files == (tmp_path / "bag" / "a.mcap",)
        assert len(list(bag.messages())) == 100


LEVELS = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 12))
ENDLESS = f"x0: &x0 [a]\n{LEVELS}\nrosbag2_bagfile_information:\n  relative_file_paths: *x11\n"


@pytest.mark.parametrize("text", [ENDLESS, "[" * 100_000, "rosbag2_bagfile_information: ["])
def test_metadata_that_is_broken_nested_deeply_or_multiplies_itself_does_not_hide_the_messages(tmp_path, text):
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / "metadata.yaml").write_text(text)
    with Bag(tmp_path) as bag:
        assert list(bag.messages()) == messages(0, 100)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    def refused(path):
        with pytest.raises(RoboCacheError, match="not a regular file"):
            Bag(path)

    for kind in ("pipe", "device", "device.db3", "folder"):
        (tmp_path / kind).mkdir()
    os.mkfifo(tmp_path / "pipe" / "a.mcap")
    refused(tmp_path / "pipe" / "a.mcap")
    (tmp_path / "device" / "a.mcap").symlink_to("/dev/zero")
    (tmp_path / "device.db3" / "a.db3").symlink_to("/dev/zero")
    for kind in ("pipe", "device", "device.db3"):
        refused(tmp_path / kind)
    (tmp_path / "folder" / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    for name in ("..", ".", "a.mcap/.."):
        refused(listed(tmp_path / "folder", name))


def test_all_recordings_are_looked_at_before_the_first_one_is_used(tmp_path, make_bag):
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    spec = load_spec(SPEC)
    check_recordings([tmp_path / "good"], spec)
    other = make_bag()
    with pytest.raises(RoboCacheError, match="has no topic /a"):
        check_recordings([tmp_path / "good", other], spec)
    shutil.rmtree(other)
    with pytest.raises(RoboCacheError, match="no such recording"):
        check_recordings([tmp_path / "good", other], spec)


NO_DEFINITIONS = {topic: (kind, "") for topic, kind in recordings.TYPES.items()}


@pytest.mark.parametrize("name", ["x.mcap", "x.db3", "x.bag"])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_file_is_read_by_its_first_bytes_whatever_its_name(make_bag, tmp_path, name, storage):
    (file,) = (file for file in make_bag(storage=storage).iterdir() if file.suffix != ".yaml")
    file.rename(tmp_path / name)
    with Bag(tmp_path / name) as bag:
        assert list(bag.messages()) == recordings.messages()


def test_rows_that_are_not_messages_are_counted_and_not_read(make_bag):
    folder = make_bag(storage="sqlite3")
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
        assert len(list(bag.messages())) == len(recordings.messages()) - 3
        assert bag.notes == [f"{file.name}: 3 rows are not messages and were not read"]


@pytest.mark.parametrize("encoding", ["json", "protobuf", ""])
def test_messages_that_are_not_of_ros_are_refused_by_name(tmp_path, encoding):
    file = tmp_path / "x.mcap"
    file.write_bytes(write_mcap(NO_DEFINITIONS, recordings.messages(), McapLayout(encoding=encoding)))
    why = rf"140 messages are not ROS messages \(cdr, ros1\) but '{encoding}', and were not read; give one with ROS "
    with pytest.raises(RoboCacheError, match=why):
        Bag(file)


def test_a_folder_of_recordings_is_refused_with_one_of_them(make_bag, tmp_path):
    for name in ("lift_2", "lift_1"):
        make_bag(name)
    with pytest.raises(RoboCacheError, match=r"not a recording.*; give a folder in it, such as lift_1"):
        Bag(tmp_path)


@pytest.mark.parametrize("definitions", ["", "ros2msg", "ros2idl", "jsonschema", "unknown"])
def test_known_types_are_read_whatever_their_definitions_are_and_idl_is_read(tmp_path, definitions):
    file, layout = tmp_path / "x.mcap", McapLayout(definitions=definitions)
    file.write_bytes(write_mcap(NO_DEFINITIONS, recordings.messages(), layout))
    assert "topic: /arm/pose" in first_spec(describe(file)).text
    if definitions == "ros2idl":
        idl = "module my_msgs { module msg { struct Thing { double speed; float angle[2]; }; }; };"
        given = [("/thing", START_NS + 20 * k * MS, b"\0\1\0\0" + bytes(16)) for k in range(20)]
        file.write_bytes(write_mcap({"/thing": ("my_msgs/msg/Thing", idl)}, given, layout))
        text = first_spec(describe(file)).text
        assert "field: speed" in text
        assert "field: angle" in text
