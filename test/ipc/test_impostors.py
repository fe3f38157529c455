"""What a reader does with a node that is not what it should be."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robocache_ros import ipc
from robocache_ros.ipc import ring, shared_memory, slots

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


def fds(layout: str, ring_bytes: int = LAYOUT.ring_bytes, page_bytes: int = 4096) -> list[int]:
    sizes = (slots.table_bytes(LAYOUT), ring_bytes, page_bytes)
    rest = [shared_memory.create("test", size) for size in sizes]
    return [shared_memory.text_fd("test", layout), shared_memory.text_fd("test", "{}"), *rest]


HELLO = b'{"generation": 1}'


def test_honest_node_is_mapped(serve: Callable[..., None], path: Path) -> None:
    serve(HELLO, fds(LAYOUT.to_json()))

    with ipc.Reader(path) as connected:
        assert connected.layout == LAYOUT


@pytest.mark.parametrize(
    ("layout", "ring_bytes", "message"),
    [
        (json.dumps({**json.loads(LAYOUT.to_json()), "protocol": 2}), 512, "protocol: 2, this side speaks 1"),
        (LAYOUT.to_json(), 511, "511 bytes where the description gives 512"),
        (ipc.RingLayout(LAYOUT.fields, 1000, "cpu").to_json(), 512, "where the description gives"),
        ("no JSON", 512, "ring description: cannot be read"),
        (" " * (ring.MAX_DESCRIPTION_BYTES + 1), 512, "at most 16777216 are read"),
    ],
    ids=["another version", "a smaller ring", "a smaller table", "garbage", "more than is read"],
)
def test_ring_that_does_not_fit_its_description_is_refused(
    serve: Callable[..., None], path: Path, layout: str, ring_bytes: int, message: str
) -> None:
    serve(HELLO, fds(layout, ring_bytes))

    with pytest.raises(ipc.IpcUnavailableError, match=message):
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
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= there)  # the serving thread has some until it ends


@pytest.fixture
def received(make_writer: Callable[..., ipc.Writer], path: Path) -> Iterator[list[int]]:
    """The descriptors that a reader gets: of the description, the place of the ring, the slots, the ring and a page."""
    make_writer(LAYOUT.fields)
    connection, received, _ = shared_memory.connect(os.fspath(path))
    connection.close()
    yield received
    shared_memory.close_all(received)


def test_writers_table_cannot_be_written_by_a_reader(received: list[int]) -> None:
    with pytest.raises(PermissionError):
        shared_memory.map_fd(received[2], 64, writable=True)


def test_memory_cannot_be_shrunk_under_the_writer(received: list[int]) -> None:
    for fd in received[2:]:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)


def test_descriptions_cannot_be_changed_by_a_reader(received: list[int]) -> None:
    for fd in received[:2]:
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"{}", 0)


def test_reader_cannot_seal_the_ring_against_others(received: list[int]) -> None:
    for fd in received:
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, shared_memory.SEAL_READERS)


def unsealed() -> int:
    fd = os.memfd_create("test")
    os.truncate(fd, 1 << 16)
    return fd


@pytest.mark.parametrize(
    "open_other",
    [unsealed, lambda: os.open(__file__, os.O_RDONLY), lambda: os.open("/", os.O_RDONLY), lambda: os.eventfd(0)],
    ids=["memory that may shrink", "file", "folder", "event"],
)
@pytest.mark.parametrize("number", range(5))
def test_descriptor_of_something_else_is_refused(
    serve: Callable[..., None], path: Path, number: int, open_other: Callable[[], int]
) -> None:
    sent = fds(LAYOUT.to_json())
    os.close(sent[number])
    sent[number] = open_other()
    serve(HELLO, sent)

    with pytest.raises(ipc.IpcUnavailableError, match="its size is not sealed"):
        ipc.Reader(path)


NESTED = "[" * 100_000 + "]" * 100_000


def described(**changes: object) -> str:
    return json.dumps({**json.loads(LAYOUT.to_json()), **changes})


@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        "9" * 5000,
        "[]",
        "null",
        described(slots=10**6),
        described(slots=2.5),
        described(slots=True),
        described(device="disk"),
        described(meta=7),
        described(fields=[]),
        described(fields=7),
        described(fields=[{"name": "x", "dtype": "uint8", "shape": [2**61]}]),
        described(fields=[{"name": "x", "dtype": "uint8", "shape": [2**40] * 40}]),
        described(fields=[{"name": "x", "dtype": "uint8", "shape": [-1]}]),
        described(fields=[{"name": "x", "dtype": "uint8", "shape": [10**400]}]),
        described(fields=[{"name": [], "dtype": "uint8", "shape": [1]}]),
        described(fields=[{"name": "x", "dtype": "object", "shape": [1]}]),
        described(fields=[{"name": str(n), "dtype": "uint8", "shape": [1]} for n in range(5000)]),
    ],
    ids=range(18),
)
def test_description_out_of_bounds_is_refused_in_one_line(serve: Callable[..., None], path: Path, text: str) -> None:
    serve(HELLO, fds(text))

    with pytest.raises(ipc.IpcUnavailableError) as refused:
        ipc.Reader(path)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_node_that_does_not_answer_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "CONNECT_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        with pytest.raises(ipc.IpcUnavailableError, match="no node answers there"):
            ipc.Reader(path)


def test_refusal_of_a_node_is_shown_in_one_line(serve: Callable[..., None], path: Path) -> None:
    serve(json.dumps({"refused": "\x1b[31mno\n" + "x" * 3000}).encode(), [])

    with pytest.raises(ipc.IpcUnavailableError, match="x1b") as refused:
        ipc.Reader(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
