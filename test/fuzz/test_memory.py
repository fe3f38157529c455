"""What a small hostile file costs in memory, of a process of its own: at most 1 GB above its start."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from rosbags.rosbag2.writer import zstd

from robocache_ros.bags.storage import mcap
from robocache_ros.bags.storage.codecs import MAX_BYTES
from robocache_ros.decode.payloads import IMAGE_LIMITS
from test.fuzz.mcap_writer import McapLayout, write_bomb, write_mcap
from test.fuzz.node_inputs import jpeg_bomb, png_bomb
from test.fuzz.peaks import peaks
from test.fuzz.recordings import ARRAY, MS, START_NS

LIMIT_KIB = 10**9 // 1024
HOLE = 4 << 30  # bytes of zeros in a sparse file
SIDE = int(IMAGE_LIMITS.pixels**0.5)  # of the largest image that is decoded
DECODE = """
import numpy as np
from robocache_ros.decode import ImagePayload, decode_compressed
from robocache_ros.engine.backends.media import warm_up
warm_up(decode_compressed)
def work(path):
    data = np.frombuffer(path.read_bytes(), np.uint8)
    return decode_compressed(ImagePayload(data, path.suffix[1:])).data.nbytes
"""
READ = """
from robocache_ros.bags.reader import Bag
def work(path):
    with Bag(path) as bag:
        return sum(len(message.data) for message in bag.messages())
"""
FUSE = """
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.spec import load_spec
stream = {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 1}
def work(path):
    with Bag(path) as bag:
        run = BagRun(bag, load_spec({"robocache": 1, "streams": {"a": stream}}), trim=False)
        sum(len(part) for part in run.frames())
        return dict(run.counters["a"])
"""


def check(work: str, file: Path, expected: str, content: bytes) -> None:
    """What a process finds in a file with the content, and that it grows by little."""
    file.write_bytes(content)
    ((grown, found),) = peaks(work, file)
    assert expected in str(found)
    assert grown < LIMIT_KIB


@pytest.mark.parametrize(
    ("kind", "pixels", "expected"),
    [
        ("png", 3 * SIDE, "a png of"),
        ("png", SIDE, str(3 * SIDE * SIDE)),
        ("jpeg", 3 * SIDE, "a jpeg of"),
        ("jpeg", SIDE, str(SIDE * SIDE)),
    ],
)
def test_an_image(kind: str, pixels: int, expected: str, tmp_path: Path) -> None:
    bomb = png_bomb(pixels) if kind == "png" else jpeg_bomb(pixels, IMAGE_LIMITS.scans)
    check(DECODE, tmp_path / f"bomb.{kind}", expected, bomb)


def array(nbytes: int) -> bytes:
    """A std_msgs/Float64MultiArray of zeros."""
    return struct.pack("<4sIIII", b"\0\1\0\0", 0, 0, nbytes // 8, 0) + bytes(nbytes)


@pytest.mark.parametrize(("chunks", "expected"), [(1, "18874"), (8, "overlap in time by more than")])
def test_chunks_that_overlap_in_time(chunks: int, expected: str, tmp_path: Path) -> None:
    large, small = array(180 << 20), array(8)
    messages = []
    for number in range(chunks):  # each of zstd, and of the same time
        messages += [("/a", START_NS + number * MS, large), ("/a", START_NS + 10**12 + number, small)]
    content = write_mcap({"/a": (ARRAY, "")}, messages, McapLayout(chunk_messages=2, compression="zstd"))
    assert len(content) < 1 << 20
    check(READ, tmp_path / "bomb.mcap", expected, content)


@pytest.mark.parametrize("declared", [1000, MAX_BYTES, 1 << 40])
def test_a_chunk_that_inflates_without_end(declared: int, tmp_path: Path) -> None:
    content = write_bomb(declared, zstd.compress(bytes(100 << 20)) * 61)
    check(READ, tmp_path / "bomb.mcap", "1 of 1 chunks are damaged", content)


def test_messages_that_are_read_ahead(tmp_path: Path) -> None:
    large = array(180 << 20)
    messages = [("/a", START_NS + number * MS, large) for number in range(12)]
    content = write_mcap({"/a": (ARRAY, "")}, messages, McapLayout(chunk_messages=1, compression="zstd"))
    check(FUSE, tmp_path / "bomb.mcap", "'received': 12", content)


@pytest.mark.parametrize(
    ("place", "record", "expected"),
    [
        ("data", mcap.RECORD.pack(0x09, HOLE), 20),
        ("data", mcap.RECORD.pack(mcap.MESSAGE, HOLE) + mcap.MESSAGE_HEAD.pack(1, 0, START_NS, START_NS), 5),
        ("data", mcap.RECORD.pack(mcap.CHUNK, HOLE) + struct.pack("<QQQIIQ", 1, 1, 999, 0, 0, HOLE - 40), 20),
        ("summary", b"", 20),
    ],
    ids=["attachment", "message", "chunk", "summary"],
)
def test_records_of_many_gigabytes(place: str, record: bytes, expected: int, tmp_path: Path) -> None:
    small = array(8)
    layout = McapLayout(chunk_messages=5, checksums=False)
    data = write_mcap({"/a": (ARRAY, "")}, [("/a", START_NS + n * MS, small) for n in range(20)], layout)
    heads = [(op, start - mcap.RECORD.size) for op, start, _ in mcap.records(data, len(mcap.MCAP_MAGIC))]
    at = [at for op, at in heads if op == (mcap.CHUNK if place == "data" else mcap.STATISTICS)][-3 if record else 0]
    with (tmp_path / "bomb.mcap").open("wb") as out:  # the hole takes no space on disk
        out.write(data[:at] + record)
        out.seek(at + mcap.RECORD.size + HOLE)
        out.write(data[at:])
    ((grown, found),) = peaks(READ, tmp_path / "bomb.mcap")
    assert found == expected * len(small)
    assert grown < LIMIT_KIB


@pytest.mark.parametrize(
    ("count", "chunks", "expected"),
    [(2_100_000, 1, "28"), (1_900_000, 1, "28"), (900_000, 5, "overlap in time by more than")],
)
def test_chunks_of_empty_messages(count: int, chunks: int, expected: str, tmp_path: Path) -> None:
    content = (mcap.RECORD.pack(mcap.MESSAGE, 22) + mcap.MESSAGE_HEAD.pack(1, 0, START_NS, START_NS)) * count
    packed = zstd.compress(content)
    head = struct.pack("<QQQII4sQ", START_NS, START_NS, len(content), zlib.crc32(content), 4, b"zstd", len(packed))
    chunk = mcap.RECORD.pack(mcap.CHUNK, len(head) + len(packed)) + head + packed
    data = write_mcap({"/a": (ARRAY, "")}, [("/a", START_NS, array(8))], McapLayout(chunk_messages=1, summary=False))
    ends = (start for op, start, _ in mcap.records(data, len(mcap.MCAP_MAGIC)) if op == mcap.DATA_END)
    at = next(ends) - mcap.RECORD.size
    check(READ, tmp_path / "bomb.mcap", expected, data[:at] + chunks * chunk + data[at:])
