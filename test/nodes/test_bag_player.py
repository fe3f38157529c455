"""The bag player: its pace, its bytes, and what it says where it cannot play."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from robocache_ros.bags.player import CLOCK_PERIOD_NS, play
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import bag_player
from robocache_ros.nodes.bag_player import BagPlayer, Options

PANDA = Path(__file__).parents[1] / "data" / "panda_lift"
MS = 1_000_000


class FakeSteady:
    """A steady clock that sleeping alone moves."""

    def __init__(self, stop_at_ns: int | None = None) -> None:
        self.time_ns = 0
        self._stop_at_ns = stop_at_ns

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, due_ns: int) -> bool:
        self.time_ns = max(self.time_ns, due_ns)
        return self._stop_at_ns is None or self.time_ns < self._stop_at_ns


def raw(*log_ns: int) -> list[RawMessage]:
    return [RawMessage("/a", time_ns, b"") for time_ns in log_ns]


@pytest.mark.parametrize("rate", [0.5, 1.0, 4.0])
def test_message_goes_out_when_its_log_time_says_so(rate: float) -> None:
    steady, sent = FakeSteady(), []

    play(
        raw(10**18, 10**18 + 8 * MS, 10**18 + 10**12),
        lambda m: sent.append(steady.time_ns) or False,
        first_ns=10**18,
        rate=rate,
        steady=steady,
    )

    assert sent == [0, int(8 * MS / rate), int(10**12 / rate)]


def test_clock_is_told_right_before_each_message() -> None:
    steady, events = FakeSteady(), []

    play(
        raw(100, 100, 3 * MS),
        lambda m: events.append(("message", m.log_ns)) or False,
        first_ns=100,
        clock=lambda now: events.append(("clock", now)),
        steady=steady,
    )

    for index, (kind, time_ns) in enumerate(events):
        if kind == "message":
            assert events[index - 1] == ("clock", time_ns)


def test_clock_goes_on_in_silences_and_never_back() -> None:
    steady, told = FakeSteady(), []

    play(raw(0, 1000 * MS), lambda m: False, first_ns=0, rate=2.0, clock=told.append, steady=steady)

    assert told == sorted(told)
    assert max(b - a for a, b in pairwise(told)) <= 2 * CLOCK_PERIOD_NS


def test_recording_stands_still_while_publishing_waits() -> None:
    steady, sent = FakeSteady(), []

    def publish(message: RawMessage) -> bool:
        sent.append(steady.time_ns)
        steady.time_ns += 500 * MS
        return message.log_ns == 0

    play(raw(0, 10 * MS), publish, first_ns=0, steady=steady)

    assert sent == [0, 510 * MS]


def test_replay_that_is_stopped_says_so() -> None:
    sent: list[RawMessage] = []

    whole = play(raw(0, 10 * MS, 20 * MS), lambda m: bool(sent.append(m)), first_ns=0, steady=FakeSteady(15 * MS))

    assert not whole
    assert len(sent) == 2


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e9, float("nan")])
def test_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(RoboCacheError, match="rate"):
        play([], lambda m: False, first_ns=0, rate=rate)


def test_bytes_go_out_as_they_are(rig: Any, wait: Callable[..., Any]) -> None:
    poses = rig.listen(PoseStamped, "/panda/ee_pose")

    played = rig.play(topics=("/panda/ee_pose",), clock=False, duration_s=0.5, rate=4.0)

    wait(lambda: len(poses) == played.messages, "the messages")
    with Bag(PANDA) as bag:
        stop_ns = bag.start_ns + 500 * MS
        assert poses.raw == [m.data for m in bag.messages({"/panda/ee_pose"}, None, stop_ns)]


def test_clock_covers_what_is_played(rig: Any, wait: Callable[..., Any]) -> None:
    clock = rig.listen(Clock, "/clock")
    rig.listen(PoseStamped, "/panda/ee_pose")

    rig.play(topics=("/panda/ee_pose",), start_s=1.0, duration_s=0.5, rate=4.0)

    with Bag(PANDA) as bag:
        first_ns = bag.start_ns + 1000 * MS
    wait(lambda: len(clock) and _ns(clock.messages[-1]) >= first_ns + 490 * MS, "the end")
    times = [_ns(message) for message in clock.messages]
    assert times == sorted(times)
    assert times[0] == first_ns


def test_what_was_latched_reaches_those_who_come_later(rig: Any, wait: Callable[..., Any], tmp_path: Path) -> None:
    text = b"\0\1\0\0" + struct.pack("<I", 4) + b"map\0"
    types = {"/map_name": "std_msgs/msg/String", "/said": "std_msgs/msg/String"}
    messages = [("/map_name", 10**18, text), ("/said", 10**18 + MS, text)]
    path = write_bag(tmp_path / "bag", types, messages, latched=["/map_name"])
    with Bag(path) as bag:
        player = BagPlayer(rig.node, bag, Options())
        player.run()
        kept = rig.listen(String, "/map_name", latched=True)
        wait(lambda: len(kept), "the message that went out before anybody listened")
    assert kept.newest.data == "map"


def test_loops_reset_the_node_and_it_goes_on(rig: Any, wait: Callable[..., Any], panda_spec: dict[str, Any]) -> None:
    rig.process(panda_spec, use_sim_time=True)
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    for _ in range(2):
        rig.play(rate=4.0, duration_s=1.0)

    def told() -> Any:
        values = rig.status(diagnostics, "beat")[1]
        return values.get("clock_jumps") == "1" and int(values["emitted"]) > 60

    wait(told, "the jump and the ticks after it")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere"], "/nowhere: no such recording"),
        ([str(PANDA), "--topics", "/nothing"], "does not hold /nothing"),
        ([str(PANDA), "--rate", "0"], "rate: 0.0 is not between"),
        ([str(PANDA), "--start", "100"], "leave nothing"),
    ],
    ids=["no bag", "no topic", "no rate", "past the end"],
)
def test_what_cannot_be_played_is_one_clear_error(
    rig: Any, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert bag_player.main(arguments) == 1

    errors = capfd.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


def test_type_that_is_not_installed_names_its_package(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bag_player.compat, "load_message_class", lambda name: None)

    with Bag(PANDA) as bag, pytest.raises(RoboCacheError, match="install the package"):
        BagPlayer(rig.node, bag, Options())


def _ns(message: Clock) -> int:
    return int(message.clock.sec) * 1_000_000_000 + int(message.clock.nanosec)
