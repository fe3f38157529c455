"""Hostile messages for a live node: garbage bytes, images that are expensive to decode, and invalid clocks."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from itertools import count

from test.fuzz.messages import header, serialize

BOMB_PIXELS = 8192  # width and height of an image bomb
SCANS = 1000  # of a jpeg bomb
_LITTLE = b"\0\1\0\0"  # encapsulation of little-endian CDR


def joint_state(stamp_ns: int, names: tuple[str, ...], value: float = 0.0) -> bytes:
    """A sensor_msgs/JointState with positions."""
    values = {"header": header(stamp_ns, "f"), "name": names, "position": [value] * len(names)}
    return serialize("sensor_msgs/msg/JointState", values)


def compressed_image(stamp_ns: int, form: str, data: bytes) -> bytes:
    """A sensor_msgs/CompressedImage."""
    return serialize("sensor_msgs/msg/CompressedImage", {"header": header(stamp_ns, "f"), "format": form, "data": data})


def raw_image(stamp_ns: int, height: int, width: int, encoding: str, step: int, data: bytes, frame: str = "f") -> bytes:
    """A sensor_msgs/Image, whose fields may contradict each other."""
    values = {"header": header(stamp_ns, frame), "height": height, "width": width, "encoding": encoding, "step": step}
    return serialize("sensor_msgs/msg/Image", {**values, "data": data})


def clock(seconds: int, nanoseconds: int) -> bytes:
    """A rosgraph_msgs/Clock."""
    return _LITTLE + struct.pack("<iI", seconds, nanoseconds)


def invalid_clocks() -> list[bytes]:
    """Messages of /clock that are not a time."""
    times = [(-1, 0), (-(2**31), 0), (5, 1_000_000_000), (-1, 2**32 - 1)]
    return [clock(*time) for time in times] + [b"", b"\0", _LITTLE, _LITTLE + b"\1\2\3"]


def garbage(seed: int = 0) -> Iterator[bytes]:
    """Endless messages for any topic: random, truncated, with impossible lengths, and with ever new joint names."""
    rng = random.Random(seed)
    valid = joint_state(1_700_000_000_000_000_000, ("a", "b", "c"))
    pool = [rng.randbytes(rng.randrange(2000)) for _ in range(200)]
    pool += [_LITTLE + rng.randbytes(rng.randrange(500)) for _ in range(200)]
    pool += [valid[: rng.randrange(len(valid))] for _ in range(100)]
    pool += [_LITTLE + b"\xff" * size for size in (0, 4, 12, 60, 1000)]
    pool += [_LITTLE + bytes(8) + struct.pack("<I", length) + bytes(40) for length in (2**31, 2**32 - 1, 41, 10**6)]
    pool.append(joint_state(0, ("x\n[FATAL] [0] [fusion_node]: forged \x1b[31m",)))
    pool.append(joint_state(2_147_483_647 * 1_000_000_000, ("a", "b")))
    for number in count():
        if number % 8 == 0:
            yield joint_state(1_700_000_000_000_000_000 + number, (f"joint_{number}", "a" * (number % 300)))
        else:
            yield rng.choice(pool)


def png_bomb(pixels: int = BOMB_PIXELS) -> bytes:
    """A png of black RGB pixels: small, and large when decompressed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, row = zlib.compressobj(9), bytes(1 + 3 * pixels)
    packed = b"".join([packer.compress(row) for _ in range(pixels)]) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def jpeg_bomb(pixels: int = BOMB_PIXELS, scans: int = SCANS) -> bytes:
    """A progressive jpeg whose last scan is repeated; needs Pillow."""
    from PIL import Image

    target = io.BytesIO()
    Image.new("L", (pixels, pixels)).save(target, "jpeg", progressive=True)
    data = target.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + b"\xff\xd9"
