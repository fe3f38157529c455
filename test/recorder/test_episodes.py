"""Episodes in files: what is in them, and what is left of them after a kill and on a full disk."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.recorder import episodes, mcap
from robocache_ros.recorder.episodes import Message, RecordedTopic, RecordingsFolder, read_episode
from robocache_ros.spec import load_spec
from test import forked
from test.nodes.rig import until
from test.recorder import robot

ROOT = Path(__file__).parents[2]
NUMBERS = RecordedTopic("/numbers", "std_msgs/msg/Int32", "int32 data")
MAP = RecordedTopic("/map", "std_msgs/msg/Int32", "int32 data", latched=True)


def number(topic: RecordedTopic, value: int, padding: int = 0) -> Message:
    data = struct.pack("<4si", b"\0\1\0\0", value) + bytes(padding)
    return Message(topic, 10**18 + value, 10**18 + value - 5, data)


def values_in(bag: Bag) -> list[int]:
    return [struct.unpack_from("<i", message.data, 4)[0] for message in bag.messages()]


def test_bytes_and_times_are_those_that_arrived(tmp_path):
    folder = RecordingsFolder(tmp_path)
    episode = folder.start({"task": "Count"}, [NUMBERS])
    sent = [number(NUMBERS, value) for value in range(5000)]
    assert all(episode.put(message) for message in [*sent, number(MAP, 7)])

    file, outcome = folder.end(episode, "success")

    assert (file.name, outcome) == ("episode_000001.mcap", "success")
    expected = [(m.log_ns, m.data) for m in sent]
    with Bag(file) as bag:
        assert [(m.log_ns, m.data) for m in bag.messages(["/numbers"])] == expected
        assert (bag.topics["/map"].latched, bag.topics["/numbers"].latched) == (True, False)
        assert bag.topics["/map"].definition == "int32 data"
        assert (bag.notes, bag.integrity) == ([], CHECKED)
    with pytest.importorskip("rosbags.rosbag2").Reader(file) as other:
        numbers = [each for each in other.connections if each.topic == "/numbers"]
        assert [(time_ns, bytes(data)) for _, time_ns, data in other.messages(numbers)] == expected


def test_metadata_state_the_session_and_the_outcome(tmp_path):
    spec = load_spec(ROOT / "config" / "panda_lift.yaml")
    folder = RecordingsFolder(tmp_path)
    session = episodes.describe_session(spec, {"rmw": "rmw_fastrtps_cpp"}, ROOT)
    episode = folder.start({**session, "task": "Lift the cube", "operator": "Ada"}, [NUMBERS])
    episode.put(number(NUMBERS, 1))
    found = read_episode(folder.end(episode, "failure")[0])
    assert (found.labels.task, found.labels.operator) == ("Lift the cube", "Ada")
    assert (found.outcome, found.success) == ("failure", False)
    assert load_spec(json.loads(found.session["spec"])) == spec
    assert {"robocache_ros", "python", "rmw"} <= found.session.keys()
    assert found.lost == {}
    (other,) = (ROOT / "test/data/panda_lift").glob("*.mcap")
    assert read_episode(other) is None  # of another recorder


def test_a_discarded_episode_is_in_the_trash_and_its_number_is_not_used_again(tmp_path):
    folder = RecordingsFolder(tmp_path)
    first, outcome = folder.end(folder.start({}, [NUMBERS]), "discarded")
    second, _ = folder.end(folder.start({}, [NUMBERS]), "success")
    assert (first, outcome) == (tmp_path / "trash" / "episode_000001.mcap", "discarded")
    assert second.name == "episode_000002.mcap"
    assert folder.discard(second) == tmp_path / "trash" / "episode_000002.mcap"
    assert not list(tmp_path.glob("*.mcap*"))


def test_messages_that_the_disk_does_not_take_are_counted(tmp_path, monkeypatch):
    episode = episodes.EpisodeWriter(tmp_path / "a.mcap", {}, [NUMBERS], limit_bytes=80)
    monkeypatch.setattr(episode._file, "write", lambda *_: time.sleep(0.05))
    taken = [episode.put(number(NUMBERS, value)) for value in range(50)]
    assert 0 < sum(taken) < 50
    assert episode.lost == {"/numbers": 50 - sum(taken)}
    episode.end("success")
    found = read_episode(tmp_path / "a.mcap")
    assert found.lost == {"/numbers": 50 - sum(taken)}


def test_a_full_disk_ends_the_episode_as_an_error_and_keeps_what_was_written(tmp_path, monkeypatch):
    folder, free = RecordingsFolder(tmp_path), [3_000_000]

    def write(handle: int, data: Any, at: int, real: Any = os.pwrite) -> int:
        free[0] = max(free[0], 0) - len(data)
        if free[0] < 0:
            real(handle, data[: len(data) // 2], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(real(handle, data, at))

    episode = folder.start({"task": "Fill"}, [NUMBERS])
    monkeypatch.setattr(mcap.os, "pwrite", write)
    sent = 0
    while not episode.error:
        sent += episode.put(number(NUMBERS, sent, padding=100_000))
        until(lambda: episode._queue.empty())
    file, outcome = folder.end(episode, "success")

    assert outcome == "error"
    assert "No space left" in episode.error
    with Bag(file) as bag:
        values = values_in(bag)
    assert values == list(range(len(values)))
    assert 20 < len(values) == episode.received.total() - episode.lost.total()


def test_two_recorders_do_not_complete_each_others_files(tmp_path):
    first = RecordingsFolder(tmp_path)
    episode = first.start({}, [NUMBERS])
    second = RecordingsFolder(tmp_path)
    assert second.recovered == []
    assert second.end(second.start({}), "success")[0].name == "episode_000002.mcap"
    assert first.end(episode, "success")[0].name == "episode_000001.mcap"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RoboCacheError, match=r"file: File exists; choose another folder"):
        RecordingsFolder(tmp_path / "file")


def log_times(part: Path, topic: RecordedTopic = robot.JOINTS) -> list[int]:
    """The log times of a topic's messages that are in a file now; none if it has no message yet."""
    file = part.with_name("as_it_is.mcap")
    file.write_bytes(part.read_bytes())
    try:
        with Bag(file) as bag:
            return [m.log_ns for m in bag.messages([topic.name])]
    except RoboCacheError:
        return []


def check_after_kill(folder: Path, messages: int) -> None:
    """Kill a recording process once so many messages can be read, and compare its file with what it had put."""
    folder.mkdir(exist_ok=True)
    notes, recordings = folder / "notes", folder / "recordings"
    command = [sys.executable, "-m", "test.recorder.robot", recordings, notes]

    def log_times_put() -> NDArray[np.int64]:
        times = np.fromfile(notes, "<i8") if notes.exists() else np.zeros(0, "<i8")
        return times[times > 0]

    with forked.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:

        def readable() -> Any:
            assert process.poll() is None, process.communicate()[1]
            if not len(log_times_put()):
                return None
            (part,) = recordings.glob("*.part")
            return part if len(log_times(part)) >= messages else None

        part = until(readable, "messages in the file")
        before = log_times(part)
        process.send_signal(signal.SIGKILL)
        process.wait()
    put = log_times_put()
    left = log_times(part)
    (file,) = RecordingsFolder(recordings).recovered
    if before:
        with Bag(file) as bag:
            found = [m.log_ns for m in bag.messages([robot.JOINTS.name])]
            images = list(bag.messages([robot.CAMERAS[0].name]))
        for times in (left, found):
            assert times[: len(put)] == put[: len(times)].tolist()
            assert len(times) >= len(before)
        assert len(images) >= len(before) // 17
    found_episode = read_episode(file)
    assert (found_episode.labels.task, found_episode.outcome) == ("Lift the cube", "unknown")


def test_a_message_is_readable_soon_while_the_episode_goes_on(tmp_path):
    folder = RecordingsFolder(tmp_path)
    episode = folder.start({}, [NUMBERS])
    episode.put(number(NUMBERS, 1))
    until(lambda: log_times(episode.path, NUMBERS), "the message")
    folder.end(episode, "success")


@pytest.mark.parametrize(
    "messages",
    [[0], [600], pytest.param([random.randrange(700) for _ in range(50)], marks=pytest.mark.slow, id="50 kills")],
)
def test_what_was_readable_before_a_kill_is_readable_after_it(tmp_path, messages):
    for number, count in enumerate(messages):
        check_after_kill(tmp_path / str(number), count)


def test_an_episode_whose_recorder_was_killed_before_a_message_goes_to_the_trash(tmp_path):
    episode = RecordingsFolder(tmp_path).start({"task": "Count"}, [NUMBERS])
    left = episode.path.read_bytes()
    episode.end("success")
    episode.path.write_bytes(left)
    folder = RecordingsFolder(tmp_path)
    assert folder.recovered == [tmp_path / "trash" / "episode_000001.mcap"]
    assert read_episode(folder.recovered[0]).outcome == "unknown"
    assert folder.start({}).path.name == "episode_000002.mcap.part"


@pytest.mark.parametrize("cut", [1, 20, 300, 5000])
def test_a_file_that_is_cut_anywhere_is_completed_for_every_reader(tmp_path, cut):
    reader = pytest.importorskip("rosbags.rosbag2").Reader
    folder = RecordingsFolder(tmp_path / "a")
    episode = folder.start({"task": "Count"}, [NUMBERS])
    for value in range(30_000):
        episode.put(number(NUMBERS, value, padding=80))
    data = folder.end(episode, "success")[0].read_bytes()
    other = tmp_path / "b"
    other.mkdir()
    (other / "episode_000001.mcap.part").write_bytes(data[: len(data) // 2 + cut])

    (file,) = RecordingsFolder(other).recovered

    with Bag(file) as bag:
        values = values_in(bag)
        assert bag.notes == []
    with reader(file) as bag:
        assert [struct.unpack_from("<i", data, 4)[0] for _, _, data in bag.messages()] == values
    assert values == list(range(len(values)))
    assert values
