"""Varints of protobuf: one by one, and whole arrays at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 10  # of a varint of 64 bits


def varint(value: int) -> bytes:
    """Encode a non-negative number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode the number at an offset; return it and the offset after it. IndexError or ValueError if it is damaged."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for place in range(1, MAX_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number is longer than 10 bytes")


def packed(values: NDArray[np.int64]) -> bytes:
    """Encode (N,) int64 numbers; negative ones take 10 bytes."""
    bits = np.ascontiguousarray(values, np.int64).view(np.uint64)
    lengths = np.ones(len(bits), np.int64)
    for place in range(1, MAX_BYTES):
        lengths += bits >= np.uint64(1 << 7 * place)
    stops = np.cumsum(lengths)
    encoded = np.empty(int(stops[-1]) if len(stops) else 0, np.uint8)
    starts = stops - lengths
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        more = (lengths[here] > place + 1).astype(np.uint8) << 7
        encoded[starts[here] + place] = (bits[here] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F | more
    return encoded.tobytes()


def unpacked(data: memoryview) -> NDArray[np.int64]:
    """Decode (N,) int64 numbers. ValueError if they are damaged."""
    encoded = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(encoded < 0x80) + 1
    if len(encoded) and (not len(stops) or stops[-1] != len(encoded)):
        raise ValueError("a number is cut off")
    if len(stops) == len(encoded):  # the common case: small numbers
        return encoded.astype(np.int64)
    starts = np.concatenate([[0], stops[:-1]])
    lengths = stops - starts
    if lengths.max() > MAX_BYTES:
        raise ValueError("a number is longer than 10 bytes")
    values = np.zeros(len(stops), np.uint64)
    for place in range(int(lengths.max())):
        here = lengths > place
        values[here] |= (encoded[starts[here] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)
