"""Which files make a recording, in which order they are read, and what is refused with the reason."""

from __future__ import annotations

import os
import sqlite3

import lz4.frame
import numpy as np
import pytest
import yaml
from backports import zstd

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import codecs
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import read
from test.fuzz import recordings
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers
from test.fuzz.recordings import ARRAY, MS, START_NS

TYPES = dict.fromkeys(("/a", "/b"), (ARRAY, ""))


def messages(start, stop, topic="/a"):
    return [(topic, START_NS + 10 * k * MS, numbers(k)) for k in range(start, stop)]


def listed(folder, *names):
    counts = [{"topic_metadata": {"name": "/a", "type": ARRAY}, "message_count": 100}]
    info = {"relative_file_paths": list(names), "topics_with_message_count": counts}
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": info}))
    return folder


@pytest.mark.parametrize("names", [("z.mcap", "a.mcap"), ("a.mcap", "z.mcap")])
@pytest.mark.parametrize("metadata", [True, False])
def test_files_are_read_in_the_order_of_their_times(tmp_path, names, metadata):
    for name, part in zip(names, (messages(0, 50), messages(50, 100)), strict=True):
        (tmp_path / name).write_bytes(write_mcap(TYPES, part))
    if metadata:
        listed(tmp_path, *names)
    assert read(tmp_path)[0] == messages(0, 100)


def test_topics_in_files_of_their_own_are_merged_by_time_and_of_one_time_in_the_order_of_files(tmp_path):
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / "b.mcap").write_bytes(write_mcap(TYPES, messages(30, 130, "/b")))
    assert read(tmp_path)[0] == sorted(messages(0, 100) + messages(30, 130, "/b"), key=lambda message: message[1])


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
    assert read(tmp_path)[0] == messages(0, 100)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    for kind in ("pipe", "device", "device.db3", "folder"):
        (tmp_path / kind).mkdir()
    os.mkfifo(tmp_path / "pipe" / "a.mcap")
    (tmp_path / "device" / "a.mcap").symlink_to("/dev/zero")
    (tmp_path / "device.db3" / "a.db3").symlink_to("/dev/zero")
    (tmp_path / "folder" / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    for path in ("pipe/a.mcap", "pipe", "device", "device.db3"):
        with pytest.raises(RoboCacheError, match="not a regular file"):
            Bag(tmp_path / path)
    for name in ("..", ".", "a.mcap/.."):
        with pytest.raises(RoboCacheError, match="not a regular file"):
            Bag(listed(tmp_path / "folder", name))


NO_DEFINITIONS = {topic: (kind, "") for topic, kind in recordings.TYPES.items()}


@pytest.mark.parametrize("name", ["x.mcap", "x.db3", "x.bag"])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_file_is_read_by_its_first_bytes_whatever_its_name(make_bag, tmp_path, name, storage):
    (file,) = (file for file in make_bag(storage=storage).iterdir() if file.suffix != ".yaml")
    file.rename(tmp_path / name)
    assert read(tmp_path / name)[0] == recordings.messages()


@pytest.mark.parametrize("encoding", ["json", "protobuf", ""])
def test_messages_that_are_not_of_ros_are_refused_by_name(tmp_path, encoding):
    data = write_mcap(NO_DEFINITIONS, recordings.messages(), McapLayout(encoding=encoding))
    why = rf"140 messages are not ROS messages \(cdr, ros1\) but '{encoding}', and were not read; give one with ROS "
    with pytest.raises(RoboCacheError, match=why):
        read(tmp_path / "x.mcap", data)


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


COUNT = 60  # more messages than there are blocks to read them into
TYPE = "sensor_msgs/msg/Image"


def large(number):
    return bytes([0, 1, 0, 0]) + bytes([number]) * 200_000


@pytest.fixture(params=["none", "storage"])
def recording(request, tmp_path):
    messages = [("/image", START_NS + k * MS, large(k)) for k in range(COUNT)]
    return write_bag(tmp_path / "bag", {"/image": TYPE}, messages, compression=request.param)


def test_views_have_the_bytes_of_the_messages_and_keep_them_while_they_are_held(recording):
    with Bag(recording) as bag:
        messages = [message.data for message in bag.messages()]
        held = [message.data for message in bag.messages(views=True)]
        assert sum(1 for _ in bag.messages(views=True)) == COUNT
    assert messages == [bytes(data) for data in held] == [large(k) for k in range(COUNT)]
    assert ({type(data) for data in messages}, {type(data) for data in held}) == ({bytes}, {memoryview})


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("arrow", [True, False])
def test_data_of_the_declared_size_only_is_decompressed(codec, arrow, monkeypatch):
    monkeypatch.setattr(codecs, "_arrow", codecs._arrow if arrow else lambda: None)
    data = np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes()
    packed = {"lz4": lz4.frame.compress, "zstd": zstd.compress}[codec](data)
    assert codecs.decompress(codec, packed, len(data)) == data
    size = len(data)
    for wrong, declared in ((packed, size - 1), (packed, size + 1), (packed[:-9], size), (packed[9:], size)):
        with pytest.raises(RoboCacheError):
            codecs.decompress(codec, wrong, declared)


DAMAGE = {
    "its last byte is missing": lambda frame: frame[:-1],
    "it ends with a byte of another frame": lambda frame: frame + b"\x28",
    "its magic number is another": lambda frame: b"\x00" + frame[1:],
    "a block has a reserved type": lambda frame: frame[:6] + bytes([frame[6] | 0x06]) + frame[7:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_message_among_small_ones_is_the_only_one_that_is_lost(make_bag, damage):
    intact, _ = read(make_bag("intact"))
    folder = make_bag("packed", storage="sqlite3", compression="message")
    assert read(folder) == (intact, [])
    with sqlite3.connect(next(folder.glob("*.db3"))) as database:
        ((frame,),) = database.execute("SELECT data FROM messages WHERE id = 71").fetchall()
        database.execute("UPDATE messages SET data = ? WHERE id = 71", (damage(frame),))
    database.close()
    found, notes = read(folder)
    assert found == intact[:70] + intact[71:]
    assert notes[0].endswith(": 1 messages cannot be decompressed and were not read")


def test_small_messages_share_calls_of_the_decompressor(make_bag, monkeypatch):
    pytest.importorskip("pyarrow", minversion=str(codecs._ARROW))
    monkeypatch.setattr(codecs, "decompress", lambda *_: pytest.fail("one by one"))
    assert len(read(make_bag(storage="sqlite3", compression="message"))[0]) == 140
