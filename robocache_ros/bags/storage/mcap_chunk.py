"""The messages in the records of a chunk, as arrays; found without a loop if the indexes after the chunk list them."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import Data
from robocache_ros.bags.storage import mcap_records as mcap

_HEAD_BYTES = mcap.RECORD.size + mcap.MESSAGE_HEAD.size
_DTYPE = np.dtype({"names": ("op", "size", "channel", "log"), "formats": ("u1", "<u8", "<u2", "<u8"),
                   "offsets": (0, 1, 9, 15), "itemsize": _HEAD_BYTES})  # fmt: skip

_AT_ONCE = 1 << 16  # heads that are read at once, to bound memory

Int64 = NDArray[np.int64]


class Messages(NamedTuple):
    """The messages of a chunk in its order; `starts` and `stops` are those of their data."""

    channels: Int64
    logs_ns: NDArray[np.uint64]
    starts: Int64
    stops: Int64


def indexed_messages(content: Data, indexes: bytes) -> tuple[Messages | None, bool]:
    """Find the messages with the message indexes after a chunk.

    Returns:
        All messages of the chunk; None if the indexes do not list the place of each one. Whether the indexes list
        exactly these messages, with their channels and log times.
    """
    bodies = [indexes[start:stop] for op, start, stop in mcap.records(indexes) if op == mcap.MESSAGE_INDEX]
    bodies = [body for body in bodies if len(body) >= 6 and (len(body) - 6) % 16 == 0]
    listed = [np.frombuffer(body, "<u8", offset=6).reshape(-1, 2) for body in bodies]
    keys = np.repeat([int.from_bytes(body[:2], "little") for body in bodies], [len(pairs) for pairs in listed])
    pairs = np.concatenate(listed) if listed else np.empty((0, 2), np.uint64)
    if len(pairs) * _HEAD_BYTES > len(content) or (len(pairs) and int(pairs[:, 1].max()) > len(content) - _HEAD_BYTES):
        return None, False
    order = np.argsort(pairs[:, 1], kind="stable")
    places = pairs[order, 1].astype(np.int64)
    heads = _heads(content, places)
    sizes = heads["size"]
    if not ((heads["op"] == mcap.MESSAGE) & (sizes >= mcap.MESSAGE_HEAD.size) & (sizes <= len(content))).all():
        return None, False
    stops = places + mcap.RECORD.size + sizes.astype(np.int64)
    if not _holds_no_other_messages(content, places, stops):
        return None, False
    found = Messages(heads["channel"].astype(np.int64), heads["log"], places + _HEAD_BYTES, stops)
    return found, bool((heads["channel"] == keys[order]).all() and (heads["log"] == pairs[order, 0]).all())


def _heads(content: Data, places: Int64) -> NDArray[np.void]:
    """Return the heads of the records at some places, as a structured array."""
    data, within = np.frombuffer(content, np.uint8), np.arange(_HEAD_BYTES)
    parts = [data[places[at : at + _AT_ONCE, None] + within] for at in range(0, len(places), _AT_ONCE)]
    rows = np.concatenate(parts) if parts else np.empty((0, _HEAD_BYTES), np.uint8)
    heads: NDArray[np.void] = rows.view(_DTYPE).reshape(-1)
    return heads


def _holds_no_other_messages(content: Data, places: Int64, stops: Int64) -> bool:
    """Whether the records [place, stop) and complete records of other kinds fill the content."""
    ends = np.concatenate([[0], stops])
    starts = np.concatenate([places, [len(content)]])
    for end, start in zip(ends[ends != starts].tolist(), starts[ends != starts].tolist(), strict=True):
        at = end
        for op, _, stop in mcap.records(content[end:start]):
            if op == mcap.MESSAGE:
                return False
            at = end + stop
        if at != start:
            return False
    return True


def walked_messages(content: Data) -> tuple[Messages, bool]:
    """Find the messages record by record; the second value tells whether the last record is complete."""
    found: list[tuple[int, int, int, int]] = []
    at, end = 0, len(content)
    record, head = mcap.RECORD.unpack_from, mcap.MESSAGE_HEAD.unpack_from
    try:
        while at < end:
            op, size = record(content, at)
            start = at + mcap.RECORD.size
            if start + size > end:
                break
            if op == mcap.MESSAGE:
                channel, _, log_ns, _ = head(content, start)
                found.append((channel, log_ns, start + mcap.MESSAGE_HEAD.size, start + size))
            at = start + size
    except struct.error:
        pass
    columns = list(zip(*found, strict=True)) or [()] * 4
    channels, starts, stops = (np.array(columns[k], np.int64) for k in (0, 2, 3))
    return Messages(channels, np.array(columns[1], np.uint64), starts, stops), at == end
