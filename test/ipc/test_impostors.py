"""What a reader does with a node that is not what it should be."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robocache_ros import ipc
from robocache_ros.ipc import memory, table

LAYOUT = ipc.RingLayout((ipc.Field("fused", "float32", (4,)),), 2, "cpu")


@pytest.fixture
def serve(path: Path) -> Iterator[Callable[..., None]]:
    """Answers one reader with given bytes and descriptors."""
    threads = []

    def start(data: bytes, fds: list[int]) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.fspath(path))
        listener.listen()

        def answer() -> None:
            with listener, listener.accept()[0] as connection:
                socket.send_fds(connection, [data], fds)
                connection.recv(1)  # until the reader leaves
            for fd in fds:
                os.close(fd)

        threads.append(threading.Thread(target=answer, daemon=True))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(30)


def fds(layout: str, ring_bytes: int = LAYOUT.ring_bytes, holds_bytes: int = 4096) -> list[int]:
    sizes = (table.table_bytes(LAYOUT), ring_bytes, holds_bytes)
    rest = [memory.create("test", size) for size in sizes]
    return [memory.text_fd("test", layout), memory.text_fd("test", "{}"), *rest]


HELLO = b'{"generation": 1}'


def test_honest_node_is_mapped(serve: Callable[..., None], path: Path) -> None:
    serve(HELLO, fds(LAYOUT.to_json()))

    reader = ipc.Reader(path)
    assert reader.layout == LAYOUT
    reader.close()


def test_node_of_another_version_is_refused(serve: Callable[..., None], path: Path) -> None:
    serve(HELLO, fds(json.dumps({**json.loads(LAYOUT.to_json()), "protocol": 2})))

    with pytest.raises(ipc.IpcUnavailableError, match="protocol: 2, this side speaks 1"):
        ipc.Reader(path)


def test_ring_smaller_than_described_is_refused(serve: Callable[..., None], path: Path) -> None:
    serve(HELLO, fds(LAYOUT.to_json(), ring_bytes=LAYOUT.ring_bytes - 1))

    with pytest.raises(ipc.IpcUnavailableError, match="511 bytes where the description says 512"):
        ipc.Reader(path)


def test_layout_that_does_not_fit_the_table_is_refused(serve: Callable[..., None], path: Path) -> None:
    larger = ipc.RingLayout(LAYOUT.fields, 1000, "cpu")
    serve(HELLO, fds(larger.to_json()))

    with pytest.raises(ipc.IpcUnavailableError, match="where the description says"):
        ipc.Reader(path)


def test_garbage_for_a_layout_is_refused(serve: Callable[..., None], path: Path) -> None:
    serve(HELLO, fds("no JSON"))

    with pytest.raises(ipc.IpcUnavailableError, match="ring description: cannot be read"):
        ipc.Reader(path)


@pytest.mark.parametrize("hello", [b"", b"\xff\xfe", b"[]", b'{"generation": 1}'])
def test_greeting_without_descriptors_is_refused(serve: Callable[..., None], path: Path, hello: bytes) -> None:
    serve(hello or b"{}", [])

    with pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)


def test_refused_reader_leaves_no_descriptors(
    serve: Callable[..., None], path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    serve(HELLO, fds("no JSON"))
    there = set(os.listdir("/proc/self/fd"))

    with pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)
    eventually(
        lambda: set(os.listdir("/proc/self/fd")) <= there
    )  # the serving thread has some of its own until it ends


def test_writers_table_cannot_be_written_by_a_reader(make_writer: Callable[..., ipc.Writer], path: Path) -> None:
    make_writer(LAYOUT.fields)
    connection, received, _ = ipc.reader._connect(os.fspath(path))
    connection.close()

    with pytest.raises(PermissionError):
        memory.map_fd(received[2], 64, writable=True)
    for fd in received:
        os.close(fd)


def test_memory_cannot_be_shrunk_under_the_writers_feet(make_writer: Callable[..., ipc.Writer], path: Path) -> None:
    make_writer(LAYOUT.fields)
    connection, received, _ = ipc.reader._connect(os.fspath(path))
    connection.close()

    for fd in received[2:]:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    for fd in received:
        os.close(fd)
