"""Frames between real processes, and their deaths."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros import ipc

Spawn = Callable[..., Any]
Eventually = Callable[[Callable[[], bool]], None]
OTHER_USER = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


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

    assert consumer.ask("frame", 300) == shown(300)


def test_another_process_is_woken_by_a_frame(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.process.stdin.write('["publish", 7]\n')
    node.process.stdin.flush()

    assert reader.wait(30.0).tick_ns == 7


def test_slot_held_by_another_process_is_kept(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(1, values(1))
    consumer.ask("frame", 1)
    for tick in range(2, 40):
        writer.publish(tick, values(tick))

    assert consumer.ask("again") == {**shown(1), "overtaken": False}
    assert writer.overtaken == 0


def test_another_process_is_told_that_it_was_overtaken(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(1, values(1))
    consumer.ask("frame", 1)
    second = spawn("reader")
    for tick in (2, 3):
        writer.publish(tick, values(tick))
        second.ask("frame", tick)
    writer.publish(4, values(4))

    assert consumer.ask("again")["overtaken"] is True
    assert writer.overtaken == 1


def test_consumer_killed_while_it_holds_a_slot_gives_it_back(
    writer: ipc.Writer, spawn: Spawn, values: Any, eventually: Eventually
) -> None:
    killed = spawn("reader")
    for tick in (1, 2, 3):
        writer.publish(tick, values(tick))
        killed.ask("frame", tick)
    killed.kill()
    eventually(lambda: writer.readers == 0)
    for tick in range(4, 20):
        writer.publish(tick, values(tick))

    assert writer.overtaken == 0


def test_killed_consumer_leaves_the_others_reading(
    writer: ipc.Writer, spawn: Spawn, values: Any, eventually: Eventually
) -> None:
    killed, living = spawn("reader"), spawn("reader")
    writer.publish(1, values(1))
    killed.ask("frame", 1)
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
    held = reader.frame(9)
    node.kill()

    assert reader.latest() is None
    assert not reader.alive
    assert held.tensors["fused"].unique().tolist() == [9]


def test_node_killed_in_the_middle_of_a_frame_shows_no_half(spawn: Spawn, path: Path) -> None:
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.ask("publish", 1)
    held = reader.latest()
    node.ask("half", 2)
    node.kill()

    assert held.tensors["fused"].unique().tolist() == [1]
    assert reader.frame(2) is None


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


def test_link_finds_the_restarted_node(spawn: Spawn, path: Path) -> None:
    link = ipc.Link(path, retry_s=0.0)
    first = spawn("writer")
    first.ask("publish", 1)
    assert link.latest().tick_ns == 1
    first.kill()
    assert link.latest() is None
    second = spawn("writer")
    second.ask("publish", 2)

    assert link.frame(2).tick_ns == 2
    assert link.reader.generation == second.hello["generation"] != first.hello["generation"]


def test_link_without_a_node_says_why(path: Path) -> None:
    link = ipc.Link(path)

    assert link.latest() is None
    assert "no node answers there" in link.why


def test_link_does_not_try_at_every_call(path: Path, spawn: Spawn) -> None:
    link = ipc.Link(path, retry_s=3600.0)
    link.latest()
    spawn("writer")

    assert link.connect() is None


def test_node_that_stops_sends_its_consumers_away(spawn: Spawn) -> None:
    node = spawn("writer")
    consumer = spawn("reader")
    node.ask("close")

    assert consumer.ask("alive") is False


def test_socket_is_the_users_alone(writer: ipc.Writer, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@as_root
def test_another_user_cannot_open_the_socket(writer: ipc.Writer, spawn: Spawn, path: Path) -> None:
    path.parent.chmod(0o755)

    assert "Permission denied" in spawn("reader", user=OTHER_USER).hello["refused"]


@as_root
def test_another_user_is_refused_even_where_the_socket_lets_him_in(
    writer: ipc.Writer, spawn: Spawn, path: Path
) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o666)

    assert f"user {OTHER_USER} is not the node's user 0" in raw_hello(path, OTHER_USER)
    assert writer.refused == 1
    assert writer.readers == 0


@as_root
def test_node_of_another_user_is_not_trusted(spawn: Spawn, path: Path) -> None:
    path.parent.chmod(0o777)
    spawn("writer", user=OTHER_USER)

    with pytest.raises(ipc.IpcUnavailableError, match=f"user {OTHER_USER} serves it"):
        ipc.Reader(path)


def raw_hello(path: Path, user: int) -> str:
    """What the node says to a process of another user that skips our own client's checks."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(user)
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.fspath(path))
            data, fds, _, _ = socket.recv_fds(connection, 4096, 8)
        os.write(send, json.dumps([data.decode(), len(fds)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(send)
    with open(receive, "rb") as answer:
        text, fds = json.loads(answer.read())
    assert fds == 0
    return text


def test_consumers_beyond_the_limit_are_refused(
    writer: ipc.Writer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robocache_ros.ipc.server.MAX_READERS", 1)
    first = ipc.Reader(path)

    with pytest.raises(ipc.IpcUnavailableError, match="1 consumers are connected already"):
        ipc.Reader(path)
    assert first.alive


def test_descriptors_do_not_pile_up(writer: ipc.Writer, path: Path, eventually: Eventually) -> None:
    def come_and_go() -> int:
        for _ in range(20):
            ipc.Reader(path).close()
        eventually(lambda: writer.readers == 0)
        return len(os.listdir("/proc/self/fd"))

    assert come_and_go() == come_and_go()
