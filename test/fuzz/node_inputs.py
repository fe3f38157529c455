"""Hostile messages for a live node: garbage bytes, images that are expensive to decode, and invalid clocks."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from itertools import count

BOMB_PIXELS = 8192  # width and height of an image bomb
SCANS = 1000  # of a jpeg bomb
_LITTLE = b"\0\1\0\0"  # encapsulation of little-endian CDR


class _Cdr:
    """Serializes little-endian CDR."""

    def __init__(self) -> None:
        self._data = bytearray()

    def put(self, code: str, *values: int | float) -> _Cdr:
        """Append numbers, aligned to their size."""
        for value in values:
            self._data += bytes(-len(self._data) % struct.calcsize(code))
            self._data += struct.pack(f"<{code}", value)
        return self

    def text(self, value: str) -> _Cdr:
        """Append a string."""
        encoded = value.encode() + b"\0"
        self.put("I", len(encoded))
        self._data += encoded
        return self

    def blob(self, value: bytes) -> _Cdr:
        """Append a sequence of bytes."""
        self.put("I", len(value))
        self._data += value
        return self

    def header(self, stamp_ns: int, frame: str = "f") -> _Cdr:
        """Append a std_msgs/Header."""
        seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
        return self.put("i", seconds).put("I", nanoseconds).text(frame)

    def done(self) -> bytes:
        """The serialized message."""
        return _LITTLE + bytes(self._data)


def joint_state(stamp_ns: int, names: tuple[str, ...], value: float = 0.0) -> bytes:
    """A sensor_msgs/JointState with positions."""
    cdr = _Cdr().header(stamp_ns).put("I", len(names))
    for name in names:
        cdr.text(name)
    cdr.put("I", len(names))
    cdr.put("d", *[value] * len(names))
    return cdr.put("I", 0, 0).done()


def compressed_image(stamp_ns: int, form: str, data: bytes) -> bytes:
    """A sensor_msgs/CompressedImage."""
    return _Cdr().header(stamp_ns).text(form).blob(data).done()


def raw_image(stamp_ns: int, height: int, width: int, encoding: str, step: int, data: bytes) -> bytes:
    """A sensor_msgs/Image, whose fields may contradict each other."""
    cdr = _Cdr().header(stamp_ns).put("I", height, width).text(encoding).put("B", 0).put("I", step)
    return cdr.blob(data).done()


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
    pool += [
        joint_state(0, ("x\n[FATAL] [0] [fusion_node]: forged \x1b[31m",)),
        joint_state(2_147_483_647 * 1_000_000_000, ("a", "b")),
    ]
    for number in count():
        if number % 8 == 0:
            yield joint_state(1_700_000_000_000_000_000 + number, (f"joint_{number}", "a" * (number % 300)))
        else:
            yield pool[rng.randrange(len(pool))]


def png_bomb(pixels: int = BOMB_PIXELS) -> bytes:
    """A png of black RGB pixels: small, and large when decompressed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * pixels)
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
