"""Finds the contents of an MCAP file from its summary, or from its records if the summary is missing or damaged.

The summary is used if its checksum and its entries match the file. Data outside of the listed chunks is read record
by record, so that messages that the summary does not list are found too.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from robocache_ros.bags.storage import mcap_records as mcap
from robocache_ros.bags.storage.mcap_scan import Contents, Part, Scan, file_records
from robocache_ros.errors import RoboCacheError
from robocache_ros.remote.held_files import StoredFile

MAX_SAMPLED = 8 << 20  # bytes of a sample of chunks; chunks with topics that no other one has may exceed it
SPREAD = 8  # chunks of a sample, evenly spaced
MAX_SUMMARY = 64 << 20  # bytes; enough for the indexes of 400,000 chunks


class _Summary(NamedTuple):
    start: int
    indexes: list[mcap.ChunkIndex]
    messages: int | None  # None: no statistics
    counts: dict[int, int]
    declarations: list[tuple[int, bytes]]


def read_contents(file: StoredFile) -> Contents:
    """Return the contents of a file; RoboCacheError if it has no readable message."""
    summary, wrong = _read_summary(file)
    found = _from_summary(file, summary) if summary else None
    return found or _from_records(file, summary, wrong)


def sampled_parts(parts: Sequence[Part], channels: Collection[int]) -> list[Part]:
    """Return chunks in which each channel has a message, and others evenly spaced, in the order of the file.

    Args:
        parts: of the file.
        channels: that have messages.
    """
    chosen: dict[int, Part] = {}
    missing = set(channels)
    nbytes = 0

    def take(part: Part) -> None:
        nonlocal nbytes
        if part.start not in chosen:
            chosen[part.start] = part
            nbytes += _size(part)
            missing.difference_update(part.channels)

    for number in range(SPREAD):
        part = parts[number * (len(parts) - 1) // max(SPREAD - 1, 1)]
        if nbytes + _size(part) <= MAX_SAMPLED:
            take(part)
    while missing and (part := max(parts, key=lambda each: (len(missing & each.channels), -_size(each)))):
        if not missing & part.channels:
            break
        take(part)
    return sorted(chosen.values(), key=lambda each: each.start)


def _read_summary(file: StoredFile) -> tuple[_Summary | None, str]:
    """Return the summary, and the reason if a summary exists but cannot be used."""
    at = file.size - mcap.FOOTER_SIZE
    end = file.read(max(at, 0), file.size)
    if at < len(mcap.MAGIC) or not end.endswith(mcap.MAGIC):
        return None, ""
    damaged = "its summary is damaged, so its records were read one by one"
    try:
        if mcap.RECORD.unpack_from(end) != (mcap.FOOTER, mcap.FOOTER_SIZE - mcap.RECORD.size - len(mcap.MAGIC)):
            return None, damaged
        start, checksum = mcap.read_footer(end)
        if not start:
            known = zlib.crc32(end[: mcap.RECORD.size + 16]) if checksum else 0
            return None, damaged if checksum != known else ""
        fits = len(mcap.MAGIC) <= start < at <= start + MAX_SUMMARY
        data = file.read(start, file.size - len(mcap.MAGIC) - 4) if fits else b""
        if not data or (checksum and zlib.crc32(data) != checksum):
            return None, damaged
        found = _Summary(start, [], None, {}, [])
        reached = start
        for op, begin, stop in file_records(file, start, at):
            body, reached = data[begin - start : stop - start], stop
            if op == mcap.CHUNK_INDEX:
                found.indexes.append(mcap.read_chunk_index(body))
            elif op == mcap.STATISTICS:
                messages, _, counts = mcap.read_statistics(body)
                found = found._replace(messages=messages, counts=counts)
            elif op in (mcap.SCHEMA, mcap.CHANNEL):
                found.declarations.append((op, body))
        return (found, "") if reached == at else (None, damaged)
    except (struct.error, UnicodeDecodeError):
        return None, damaged


def _from_summary(file: StoredFile, summary: _Summary) -> Contents | None:
    """Return the contents according to the summary; None if it is incomplete or does not match the file."""
    indexes = sorted(summary.indexes, key=lambda index: index.start)
    ends = [len(mcap.MAGIC), *(index.index_stop for index in indexes)]
    starts = [*(index.start for index in indexes), summary.start]
    if summary.messages is None or sum(summary.counts.values()) != summary.messages or not indexes:
        return None
    if any(end > start for end, start in zip(ends, starts, strict=True)):
        return None
    if any(index.stop > index.index_stop or index.first_ns > index.last_ns for index in indexes):
        return None
    found = Contents(chunks=len(indexes))
    try:
        for op, body in summary.declarations:
            found.declare(op, body)
    except (struct.error, UnicodeDecodeError):
        return None
    for index in indexes:
        where = (index.start + mcap.RECORD.size, index.stop, index.index_stop)
        found.parts.append(Part(index.first_ns, index.last_ns, *where, True, index.channels))
    scan = Scan(file, found)
    for at, end in zip(ends, starts, strict=True):
        reached = scan.walk(at, end)
        if reached < end:
            found.notes.append(f"{end - reached:,} bytes between its chunks are damaged and were not read")
    scan.check_data()
    if not found.channels.keys() >= summary.counts.keys() | scan.counts.keys():
        return None
    if not found.schemas.keys() >= {channel.schema for channel in found.channels.values() if channel.schema}:
        return None
    found.counts = Counter(summary.counts)
    found.total = summary.messages
    return found


def _from_records(file: StoredFile, summary: _Summary | None, wrong: str) -> Contents:
    """Return the contents from a scan of all records, and compare them with the statistics of the summary."""
    file.fetch_all()
    found = Contents()
    scan = Scan(file, found)
    end = summary.start if summary else file.size
    reached = scan.walk(len(mcap.MAGIC), end)
    count = sum(scan.counts.values())
    found.counts = scan.counts
    lost = found.damaged.values()
    found.total = max(count + sum(n or 0 for n in lost), (summary and summary.messages) or 0)
    if wrong:
        found.notes.append(wrong)
    if not scan.ended:
        if not count and not found.damaged:
            raise RoboCacheError("truncated before its first complete message; nothing can be recovered")
        has_end = file.read(file.size - len(mcap.MAGIC), file.size) == mcap.MAGIC
        why = f"is damaged at byte {reached:,}" if has_end else "has no footer, as after a crash of the recorder"
        found.notes.append(f"{why}; {count} messages were recovered, the last {end - reached} bytes were not")
    elif summary and summary.messages is not None and summary.messages != count and not found.damaged:
        found.notes.append(f"{count:,} of {summary.messages:,} messages were found")
    unknown = sum(n for key, n in scan.counts.items() if key not in found.channels)
    if unknown:
        found.notes.append(f"{unknown:,} messages belong to no declared topic")
    if scan.private and not (summary and summary.messages is not None):
        found.notes.append(f"{scan.private:,} records of unknown kinds were skipped")
    scan.check_data()
    return found


def _size(part: Part) -> int:
    return part.index_stop - part.start
