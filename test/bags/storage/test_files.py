"""Which files make a recording, and in which order they are read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.bags.conftest import MS, START_NS, numbers
from test.fuzz.mcap_writer import write_mcap

TYPES = {"/a": ("std_msgs/msg/Float64MultiArray", ""), "/b": ("std_msgs/msg/Float64MultiArray", "")}
SPEC = {"robocache": 1, "streams": {"a": {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 1}}}


def messages(start: int, stop: int, topic: str = "/a") -> list[tuple[str, int, bytes]]:
    return [(topic, START_NS + 10 * k * MS, numbers(k)) for k in range(start, stop)]


def listed(folder: Path, *names: str) -> Path:
    counts = [{"topic_metadata": {"name": "/a", "type": TYPES["/a"][0]}, "message_count": 100}]
    info = {"relative_file_paths": list(names), "topics_with_message_count": counts}
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": info}))
    return folder


@pytest.mark.parametrize("names", [("z.mcap", "a.mcap"), ("a.mcap", "z.mcap")])
@pytest.mark.parametrize("metadata", [True, False])
def test_files_are_read_in_the_order_of_their_times(tmp_path: Path, names: tuple[str, str], metadata: bool) -> None:
    (tmp_path / names[0]).write_bytes(write_mcap(TYPES, messages(0, 50)))
    (tmp_path / names[1]).write_bytes(write_mcap(TYPES, messages(50, 100)))
    if metadata:
        listed(tmp_path, *names)
    with Bag(tmp_path) as bag:
        assert list(bag.messages()) == messages(0, 100)


def test_topics_in_files_of_their_own_are_merged_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / "b.mcap").write_bytes(write_mcap(TYPES, messages(30, 130, "/b")))
    with Bag(tmp_path) as bag:
        found = list(bag.messages())
    assert [m.log_ns for m in found] == sorted(m.log_ns for m in found)
    assert sorted(found) == sorted(messages(0, 100) + messages(30, 130, "/b"))


@pytest.mark.parametrize(
    "stray", ["a.mcap.sha256", "a.mcap.bak", "._a.mcap", ".a.mcap.swp", "a.db3-journal", "a.mcap.txt", "old.db3~"]
)
@pytest.mark.parametrize("metadata", [True, False])
def test_files_next_to_a_recording_do_not_matter(tmp_path: Path, stray: str, metadata: bool) -> None:
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / stray).write_bytes(b"something else")
    if metadata:
        listed(tmp_path, "a.mcap")
    with Bag(tmp_path) as bag:
        assert bag.files == (tmp_path / "a.mcap",)
        assert list(bag.messages()) == messages(0, 100)


@pytest.mark.parametrize("name", ["../secret/a.mcap", "/etc/a.mcap", "sub/a.mcap"])
def test_metadata_does_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    for folder in ("bag", "secret", "bag/sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100 if folder == "bag" else 5)))
    with Bag(listed(tmp_path / "bag", name)) as bag:
        assert bag.files == (tmp_path / "bag" / "a.mcap",)
        assert len(list(bag.messages())) == 100


@pytest.mark.parametrize("name", ["..", ".", "a.mcap/.."])
def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    with pytest.raises(RoboCacheError, match="not a regular file"):
        Bag(listed(tmp_path, name))


def test_metadata_that_multiplies_itself_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    levels = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 12))
    (tmp_path / "metadata.yaml").write_text(
        f"x0: &x0 [a]\n{levels}\nrosbag2_bagfile_information:\n  relative_file_paths: *x11\n"
    )
    with Bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 100


def test_metadata_that_is_nested_deeply_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, messages(0, 100)))
    (tmp_path / "metadata.yaml").write_text("[" * 100_000)
    with Bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 100


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mcap")
    for path in (tmp_path, tmp_path / "a.mcap"):
        with pytest.raises(RoboCacheError, match="not a regular file"):
            Bag(path)


@pytest.mark.parametrize("suffix", [".mcap", ".db3"])
def test_a_link_to_an_endless_device_is_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").symlink_to("/dev/zero")
    with pytest.raises(RoboCacheError, match="not a regular file"):
        Bag(tmp_path)


def test_all_recordings_are_looked_at_before_the_first_one_is_used(
    tmp_path: Path, make_bag: Callable[..., Path]
) -> None:
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
