"""Frames between real processes, and their deaths."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros import ipc

Spawn = Callable[..., Any]


Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def values(peer_frames: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    return peer_frames["values"]


@pytest.fixture
def writer(make_writer: Callable[..., ipc.Writer], peer_frames: dict[str, Any]) -> ipc.Writer:
    return make_writer(peer_frames["FIELDS"], slots=3)


def shown(tick_ns: int) -> dict[str, Any]:
    return {"tick_ns": tick_ns, "fused": [tick_ns], "front": [tick_ns % 256], "age_ns": [2**60 + tick_ns] * 2}


def test_another_process_reads_what_was_published(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(300, values(300))

    assert consumer.ask("latest") == shown(300)


def test_another_process_is_woken_by_a_frame(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.process.stdin.write('["publish", 7]\n')
    node.process.stdin.flush()

    assert reader.wait(30.0).tick_ns == 7


def test_slot_leased_by_another_process_is_kept(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(1, values(1))
    consumer.ask("latest")
    for tick in range(2, 40):
        writer.publish(tick, values(tick))

    assert consumer.ask("again") == {**shown(1), "overwritten": False}
    assert writer.overwritten == 0


def test_another_process_learns_that_it_was_overwritten(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(1, values(1))
    consumer.ask("latest")
    second = spawn("reader")
    for tick in (2, 3):
        writer.publish(tick, values(tick))
        second.ask("latest")
    writer.publish(4, values(4))

    assert consumer.ask("again")["overwritten"] is True
    assert writer.overwritten == 1


def test_consumer_killed_while_it_leases_a_slot_gives_it_back(
    writer: ipc.Writer, spawn: Spawn, values: Any, eventually: Eventually
) -> None:
    killed = spawn("reader")
    for tick in (1, 2, 3):
        writer.publish(tick, values(tick))
        killed.ask("latest")
    killed.kill()
    eventually(lambda: writer.readers == 0)
    for tick in range(4, 20):
        writer.publish(tick, values(tick))

    assert writer.overwritten == 0


def test_killed_consumer_leaves_the_others_reading(
    writer: ipc.Writer, spawn: Spawn, values: Any, eventually: Eventually
) -> None:
    killed, living = spawn("reader"), spawn("reader")
    writer.publish(1, values(1))
    killed.ask("latest")
    killed.kill()
    eventually(lambda: writer.readers == 1)
    writer.publish(2, values(2))

    assert living.ask("latest") == shown(2)


def test_stopped_consumer_does_not_stop_the_writer(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    consumer.process.send_signal(signal.SIGSTOP)
    for tick in range(1, 2000):
        writer.publish(tick, values(tick))
    consumer.process.send_signal(signal.SIGCONT)

    assert consumer.ask("latest") == shown(1999)


def test_frame_outlives_the_node_that_wrote_it(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.ask("publish", 9)
    lease = reader.latest()
    node.kill()

    assert reader.latest() is None
    assert not reader.alive
    assert lease.tensors["fused"].unique().tolist() == [9]


def test_node_killed_in_the_middle_of_a_frame_shows_no_half(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.ask("publish", 1)
    lease = reader.latest()
    assert node.ask("half", 2) == "half"
    node.kill()

    assert lease.tensors["fused"].unique().tolist() == [1]
    assert reader.latest() is None


def test_waiting_consumer_is_woken_by_the_nodes_death(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.process.kill()

    assert reader.wait(30.0) is None
    assert not reader.alive


def test_restarted_node_takes_the_socket_of_the_dead_one(spawn: Spawn, path: Path) -> None:
    spawn("writer").kill()
    assert path.exists()
    node = spawn("writer")
    node.ask("publish", 4)

    assert ipc.Reader(path).latest().tick_ns == 4


def test_connection_finds_the_restarted_node(spawn: Spawn, path: Path) -> None:
    connection = ipc.Connection(path, retry_s=0.0)
    first = spawn("writer")
    first.ask("publish", 1)
    reader = connection.connect()
    assert reader.latest().tick_ns == 1
    first.kill()
    assert reader.latest() is None
    assert connection.connect() is None
    second = spawn("writer")
    second.ask("publish", 2)

    reader = connection.connect()
    assert reader.latest().tick_ns == 2
    assert reader.generation == second.hello["generation"] != first.hello["generation"]


def test_connection_without_a_node_tells_why(path: Path) -> None:
    connection = ipc.Connection(path)

    assert connection.connect() is None
    assert "no node answers there" in connection.why


def test_connection_does_not_try_at_every_call(path: Path, spawn: Spawn) -> None:
    connection = ipc.Connection(path, retry_s=3600.0)
    connection.connect()
    spawn("writer")

    assert connection.connect() is None


def test_node_that_stops_sends_its_consumers_away(spawn: Spawn) -> None:
    node = spawn("writer")
    consumer = spawn("reader")
    node.ask("close")

    assert consumer.ask("alive") is False
