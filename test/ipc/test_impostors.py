"""What a reader does with a node that is not what it should be."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading

import pytest

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import ring, shared_memory, slots
from test.nodes.rig import until

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


def refusal(path):
    """The one line with which a ring is refused."""
    with pytest.raises(ipc.IpcUnavailableError) as refused:
        ipc.Reader(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    return str(refused.value)


def described(**changes):
    return json.dumps({**json.loads(LAYOUT.to_json()), **changes})


def of_field(shape=(1,), name="x", dtype="uint8"):
    return described(fields=[{"name": name, "dtype": dtype, "shape": shape}])


@pytest.mark.parametrize(
    ("layout", "ring_bytes", "message"),
    [
        (described(protocol=2), 512, "protocol: 2, this side speaks 1"),
        (LAYOUT.to_json(), 511, "511 bytes where the description gives 512"),
        (described(slots=1000), 512, "where the description gives"),
        ("no JSON", 512, "ring description: cannot be read"),
        (" " * (ring.MAX_DESCRIPTION_BYTES + 1), 512, "at most 16777216 are read"),
    ],
    ids=["another version", "a smaller ring", "a smaller table", "garbage", "more than is read"],
)
def test_ring_that_does_not_fit_its_description_is_refused(serve, path, layout, ring_bytes, message):
    serve(HELLO, fds(layout, ring_bytes))
    assert message in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        "9" * 5000,
        "",
        "{}",
        '{"protocol": 1}',
        "[]",
        "null",
        *(described(slots=slots) for slots in (1, 10**6, 2.5, True)),
        described(device="disk"),
        described(meta=7),
        described(fields=[]),
        described(fields=7),
        *(of_field(shape) for shape in ([2**61], [2**40] * 40, [-1], [10**400])),
        of_field(name=[]),
        of_field(dtype="object"),
        described(fields=[{"name": str(n), "dtype": "uint8", "shape": [1]} for n in range(5000)]),
    ],
    ids=range(22),
)
def test_description_out_of_bounds_is_refused_in_one_line(serve, path, text):
    serve(HELLO, fds(text))
    refusal(path)


def test_description_that_is_not_text_is_refused():
    with pytest.raises(RoboCacheError, match="ring description"):
        ipc.RingLayout.from_json(b"\xff")


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        *((hello, "") for hello in (b"{}", b"\xff\xfe", b"[]", HELLO)),
        (json.dumps({"refused": "\x1b[31mno\n" + "x" * 3000}).encode(), "x1b"),
    ],
)
def test_greeting_without_descriptors_is_refused_in_one_line(serve, path, hello, words):
    serve(hello, [])
    assert words in refusal(path)


def test_refused_reader_leaves_no_descriptors(serve, path):
    serve(HELLO, fds("no JSON"))
    there = set(os.listdir("/proc/self/fd"))
    refusal(path)
    until(lambda: set(os.listdir("/proc/self/fd")) <= there)  # the serving thread has some until it ends


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
def test_reader_cannot_change_what_the_writer_gives_to_all(writer, path, numbers, change):
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
    assert "its size is not sealed" in refusal(path)


def test_node_that_does_not_answer_is_given_up(path, monkeypatch):
    monkeypatch.setattr(shared_memory, "CONNECT_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        assert "no node answers there" in refusal(path)
