"""Run logs without ROS: a replay gives the same bits, and names the tick of what was altered."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from robocache_ros.bags.reader import Bag
from robocache_ros.cli.commands import app
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.replay import cut, verify
from robocache_ros.recorder.run_log import EVENTS, LoggedEngine, RunLog, RunReader
from robocache_ros.spec import FusionSpec, load_spec
from test.fuzz.messages import serialize

ROOT = Path(__file__).parents[2]
PANDA = ROOT / "test" / "data" / "panda_lift"
JOINTS = "sensor_msgs/msg/JointState"


def run(path: Path, spec: FusionSpec, messages: list[tuple[str, bytes, int]], reset_at: int = -1) -> None:
    """Run the engine of a node over messages (topic, data, arrival), in order, and log it."""
    engine = LoggedEngine(spec)
    ingest = Ingest(spec, engine)
    engine.run_log = log = RunLog(path, spec, {}, {"normalized": False, "jpeg": "cpu"})
    for number, (topic, data, arrival_ns) in enumerate(messages):
        if number == reset_at:
            log.reset()
            engine.reset("deactivated")
        while len(engine.advance(arrival_ns - 1, limit=1)):
            pass
        log.message(topic, data, arrival_ns)
        for feed in spec.feeds:
            if feed.topic == topic:
                ingest.serialized(feed.name, data, arrival_ns)
    log.close()


def joint_messages(seed: int, count: int = 400) -> list[tuple[str, bytes, int]]:
    """Joints with late, lost, duplicate and damaged messages."""
    random_ = random.Random(seed)
    found: list[tuple[str, bytes, int]] = []
    for number in range(count):
        stamp_ns = 10**18 + number * 4_000_000
        seconds, nanoseconds = divmod(stamp_ns, 10**9)
        header = {"stamp": {"sec": seconds, "nanosec": nanoseconds}}
        data = serialize(JOINTS, {"header": header, "name": ["a"], "position": [random_.uniform(-1, 1)]})
        arrival_ns = stamp_ns + random_.choice((1, 2, 3, 90)) * 1_000_000
        sizes = [random_.choice((len(data), len(data), 30)) for _ in range(random_.choice((0, 1, 1, 1, 1, 2)))]
        found += [("/joints", data[:size], arrival_ns) for size in sizes]
    return sorted(found, key=lambda one: one[2])


@pytest.fixture(scope="module")
def spec():
    streams = {"joints": {"topic": "/joints", "type": JOINTS, "names": ["a"]}}
    return load_spec({"robocache": 1, "delay_ms": 20, "actions": "none", "streams": streams})


@pytest.fixture(scope="module")
def log(spec, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.mcap"
    run(path, spec, joint_messages(1))
    return path


def test_an_event_has_the_time_of_the_runner_whatever_the_engine_has_logged(spec, tmp_path):
    log, engine = RunLog(tmp_path / "run.mcap", spec, {}), FusionEngine(spec)
    log.event("begin", {})
    log.advanced(100, None, engine.advance(100))
    log.event("frame", {})
    log.event("advance", {}, now_ns=80)
    log.advanced(120, None, engine.advance(120))
    log.event("step", {})
    log.message("/joints", b"", 130)
    log.reset()
    log.close()
    found = [(record.topic, record.log_ns) for record in RunReader(tmp_path / "run.mcap").records()]
    assert [at for topic, at in found if topic == EVENTS.name] == [0, 100, 80, 80]
    assert [at for topic, at in found if topic != EVENTS.name] == [100, 120, 130, 130]


def test_a_run_with_late_lost_and_duplicate_messages_is_recomputed_to_the_bit(log):
    found = verify(log)
    assert (found.first, found.different, found.notes) == (None, {}, [])
    assert found.ticks > 60
    assert found.messages > 300


def test_a_reset_and_a_jump_of_the_clock_are_replayed(spec, tmp_path):
    messages = joint_messages(2)
    back = [(topic, data, arrival_ns - 10**12) for topic, data, arrival_ns in joint_messages(3)]
    run(tmp_path / "run.mcap", spec, messages + back, reset_at=100)
    found = verify(tmp_path / "run.mcap")
    assert (found.first, found.notes) == (None, [])
    assert found.ticks > 100


def test_images_are_compared_by_their_digests(tmp_path):
    spec = load_spec(ROOT / "config" / "panda_lift.yaml")
    with Bag(PANDA) as bag:
        topics = {feed.topic for feed in spec.feeds}
        stop_ns = bag.start_ns + 10**9
        messages = [(m.topic, bytes(m.data), m.log_ns) for m in bag.messages(topics, None, stop_ns)]
    run(tmp_path / "run.mcap", spec, messages)

    found = verify(tmp_path / "run.mcap")
    assert (found.first, found.different) == (None, {})
    assert found.ticks > 20

    camera = spec.media[0]
    image = next(data for topic, data, _ in messages[len(messages) // 2 :] if topic == camera.topic)
    content = bytearray((tmp_path / "run.mcap").read_bytes())
    content[content.index(image) + len(image) * 3 // 4] ^= 0x10
    (tmp_path / "altered.mcap").write_bytes(content)
    first = verify(tmp_path / "altered.mcap").first
    assert first.stream == camera.name


def test_one_flipped_byte_names_the_tick_the_stream_and_the_column(log, spec, tmp_path):
    period_ns = 20_000_000
    stamped = [
        (data, arrival_ns, seconds * 10**9 + nanoseconds)
        for _, data, arrival_ns in joint_messages(1)
        for seconds, nanoseconds in [struct.unpack_from("<iI", data, 4)]
    ]
    on_ticks = [
        (data, stamp_ns)
        for data, arrival_ns, stamp_ns in stamped
        if stamp_ns % period_ns == 0 and arrival_ns < stamp_ns + period_ns and len(data) > 30
    ]
    data, stamp_ns = on_ticks[len(on_ticks) // 2]
    assert sum(other_ns == stamp_ns for _, _, other_ns in stamped) == 1
    name_end = data.index(b"\x02\0\0\0a\0") + 6 - 4
    position = 4 + -(-(-(-name_end // 4) * 4 + 4) // 8) * 8
    content = bytearray(log.read_bytes())
    content[content.index(data) + position + 6] ^= 1
    altered = tmp_path / "altered.mcap"
    altered.write_bytes(content)

    found = verify(altered)

    assert (found.first.stream, found.first.column) == ("joints", "joints.a")
    assert found.first.tick_ns == stamp_ns
    assert found.different == {"ticks": 1}
    assert "the checksum of the chunk" in found.notes[0]


def test_a_part_of_a_run_recomputes_its_ticks(log, tmp_path):
    whole = verify(log)
    first = whole.first_tick + 60
    part = cut(log, tmp_path / "part.mcap", first, first + 4)
    assert (part.first, part.ticks, part.first_tick, part.last_tick) == (None, 5, first, first + 4)
    assert part.messages < whole.messages
    with pytest.raises(RoboCacheError, match="the run has 0 of them"):
        cut(log, tmp_path / "other.mcap", 1, 2)


def test_a_file_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "a.mcap").write_bytes(b"\x89MCAP0\r\n")
    with pytest.raises(RoboCacheError, match="not a run log"):
        verify(tmp_path / "a.mcap")


def test_damage_anywhere_is_at_most_a_users_error(log, tmp_path):
    complete, path = log.read_bytes(), tmp_path / "run.mcap"
    for seed in range(30):
        random_, content = random.Random(seed), bytearray(complete)
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        path.write_bytes(content[: random_.choice((len(content), random_.randrange(len(content))))])
        with suppress(RoboCacheError):
            verify(path)


def test_the_command_prints_the_difference_and_cuts_a_part(log, tmp_path):
    def call(*words: Any) -> Any:
        return CliRunner().invoke(app, ["replay", *map(str, words)])

    good = call(log, "--verify")
    assert (good.exit_code, " ticks equal" in good.output) == (0, True)
    first = verify(log).first_tick
    assert call(log, "--from", first + 9, "--to", first + 9, "--export", tmp_path / "part.mcap").exit_code == 0
    assert "1 tick equal" in call(tmp_path / "part.mcap", "--verify").output
