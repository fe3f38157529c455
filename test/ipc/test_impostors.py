"""What a reader does with a node that is not what it should be."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading

import pytest

from robocache_ros import ipc
from robocache_ros.ipc import ring, shared_memory, slots

LAYOUT = ipc.RingLayout((ipc.Field("fused", "float32", (4,)),), 2, "cpu")


@pytest.fixture
def serve(path):
    """Answers one reader with given bytes and descriptors."""
    threads = []

    def start(data, fds):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.fspath(path))
        listener.listen()

        def answer():
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


def fds(layout, ring_bytes=LAYOUT.ring_bytes, page_bytes=4096):
    sizes = (slots.table_bytes(LAYOUT), ring_bytes, page_bytes)
    rest = [shared_memory.create("test", size) for size in sizes]
    return [shared_memory.text_fd("test", layout), shared_memory.text_fd("test", "{}"), *rest]


HELLO = b'{"generation": 1}'


def test_honest_node_is_mapped(serve, path):
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
def test_ring_that_does_not_fit_its_description_is_refused(serve, path, layout, ring_bytes, message):
    serve(HELLO, fds(layout, ring_bytes))
    with pytest.raises(ipc.IpcUnavailableError, match=message):
        ipc.Reader(path)


@pytest.mark.parametrize("hello", [b"", b"\xff\xfe", b"[]", b'{"generation": 1}'])
def test_greeting_without_descriptors_is_refused(serve, path, hello):
    serve(hello or b"{}", [])
    with pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)


def test_refused_reader_leaves_no_descriptors(serve, path, eventually):
    serve(HELLO, fds("no JSON"))
    there = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= there)  # the serving thread has some until it ends


@pytest.mark.parametrize(
    ("numbers", "change"),
    [
        ((2,), lambda fd: shared_memory.map_fd(fd, 64, writable=True)),
        ((2, 3, 4), lambda fd: os.ftruncate(fd, 0)),
        ((0, 1), lambda fd: os.pwrite(fd, b"{}", 0)),
        (range(5), lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, shared_memory.SEAL_READERS)),
    ],
    ids=["write the table", "shrink the memory", "change the descriptions", "seal the ring against others"],
)
def test_reader_cannot_change_what_the_writer_gives_to_all(make_writer, path, numbers, change):
    make_writer(LAYOUT.fields)
    # The descriptors of the description, the place of the ring, the slots, the ring and a page.
    connection, received, _ = shared_memory.connect(os.fspath(path))
    connection.close()
    for number in numbers:
        with pytest.raises(PermissionError):
            change(received[number])
    shared_memory.close_all(received)


def unsealed():
    fd = os.memfd_create("test")
    os.truncate(fd, 1 << 16)
    return fd


@pytest.mark.parametrize(
    ("number", "open_other"),
    [
        *((number, unsealed) for number in range(5)),  # memory that may shrink
        (1, lambda: os.open(__file__, os.O_RDONLY)),
        (2, lambda: os.open("/", os.O_RDONLY)),
        (3, lambda: os.eventfd(0)),
    ],
)
def test_descriptor_of_something_else_is_refused(serve, path, number, open_other):
    sent = fds(LAYOUT.to_json())
    os.close(sent[number])
    sent[number] = open_other()
    serve(HELLO, sent)
    with pytest.raises(ipc.IpcUnavailableError, match="its size is not sealed"):
        ipc.Reader(path)


def described(**changes):
    return json.dumps({**json.loads(LAYOUT.to_json()), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        "9" * 5000,
        "",
        "{}",
        '{"protocol": 1}',
        described(slots=1),
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
    ids=range(22),
)
def test_description_out_of_bounds_is_refused_in_one_line(serve, path, text):
    serve(HELLO, fds(text))
    with pytest.raises(ipc.IpcUnavailableError) as refused:
        ipc.Reader(path)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_node_that_does_not_answer_is_given_up(path, monkeypatch):
    monkeypatch.setattr(shared_memory, "CONNECT_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with pytest.raises(ipc.IpcUnavailableError, match="no node answers there"):
            ipc.Reader(path)


def test_refusal_of_a_node_is_shown_in_one_line(serve, path):
    serve(json.dumps({"refused": "\x1b[31mno\n" + "x" * 3000}).encode(), [])
    with pytest.raises(ipc.IpcUnavailableError, match="x1b") as refused:
        ipc.Reader(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
