"""Finds the contents of a ROS 1 bag by a scan of its records. Chunks that are followed by an index are skipped.

The index at the end of a bag lists the connections, and positions from which to continue after damage. It is compared
with the data found. After a crash of the recorder, a bag has no index, and its last chunk is incomplete.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np

from robocache_ros.bags.storage.ros1 import bag_records as ros1
from robocache_ros.bags.storage.ros1.bag_chunks import (
    CODECS,
    ENTRY,
    KEY,
    PLACE,
    BagContents,
    Chunk,
    chunk_content,
    chunk_entries,
    record_data,
)
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.held_files import StoredFile


def read_contents(file: StoredFile) -> BagContents:
    """Return the contents of a file; RoboCacheError if it is not a bag of format 2.0."""
    magic = file.read(0, len(ros1.MAGIC))
    if not magic.startswith(ros1.ANY_VERSION):
        raise RoboCacheError("not a ROS 1 bag (wrong first bytes); give a recording")
    if magic != ros1.MAGIC:
        version = printable(magic[len(ros1.ANY_VERSION) :].decode(errors="replace").strip(), 10)
        raise RoboCacheError(f"a ROS 1 bag of format {version}, not 2.0; migrate it with 'rosbag reindex' of ROS 1")
    found = BagContents()
    index_at, promised = _read_header(file, found)
    indexed = _read_index(file, found, index_at)
    _walk(file, found, index_at if indexed else file.size)
    for chunk in found.chunks:
        if not chunk.index:
            _list_by_reading(file, found, chunk)
        elif not found.connections.keys() >= chunk.connections:
            _find_connections(file, found, chunk)
        for part in chunk.index:
            keys, counts = np.unique(part[:, KEY], return_counts=True)
            found.counts.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
    _compare(found, *promised, indexed)
    return found


def _compare(found: BagContents, connections: int, chunks: int, indexed: bool) -> None:
    """Note lost data, and differences between the file and its header and index."""
    if found.unread:
        found.notes.append(f"{found.unread:,} chunks without an index are damaged and could not be read")
    if found.cut:
        found.notes.append(f"{len(found.cut):,} chunks are incomplete; {sum(found.cut):,} messages were recovered")
    if found.skipped:
        places = f"{len(found.skipped):,} place{'s' if len(found.skipped) > 1 else ''}"
        found.notes.append(f"{sum(found.skipped):,} bytes in {places} are damaged and were not read")
    if indexed and (chunks != len(found.chunks) or connections != len(found.connections)):
        found.notes.append(
            f"{len(found.chunks):,} of {chunks:,} chunks and {len(found.connections):,} of {connections:,} "
            "connections were found"
        )
    if indexed and found.promised != found.counts:
        promised_count = sum(found.promised.values())
        found.notes.append(f"{sum(found.counts.values()):,} of {promised_count:,} messages were found")
    unknown = sum(count for key, count in found.counts.items() if key not in found.connections)
    if unknown:
        found.notes.append(f"{unknown:,} messages belong to no declared topic")


def _read_header(file: StoredFile, found: BagContents) -> tuple[int, tuple[int, int]]:
    """Return the position of the index (0: none), and the numbers of connections and chunks."""
    try:
        record = ros1.read_record(file.read, len(ros1.MAGIC), file.size)
        if record.op != ros1.BAG_HEADER:
            raise struct.error("another record")
        if record.fields.get(b"encryptor"):
            raise RoboCacheError("an encrypted ROS 1 bag; decrypt it with 'rosbag decrypt' of ROS 1")
        fields = record.fields
        return ros1.u64(fields, b"index_pos"), (ros1.u32(fields, b"conn_count"), ros1.u32(fields, b"chunk_count"))
    except struct.error:
        found.notes.append("its header is damaged, so its records were read one by one")
        return 0, (0, 0)


def _read_index(file: StoredFile, found: BagContents, at: int) -> bool:
    """Read the index at the end of a bag; return whether it is complete."""
    if not at:
        if not found.notes:
            found.notes.append("has no index, as after a crash of the recorder; its records were read one by one")
        return False
    try:
        if not len(ros1.MAGIC) < at <= file.size:
            raise struct.error("an index outside of the file")
        while at < file.size:
            record = ros1.read_record(file.read, at, file.size)
            data = record_data(file, record)
            if record.op == ros1.CONNECTION:
                found.connections.setdefault(*ros1.read_connection(record.fields, data))
            elif record.op == ros1.CHUNK_INFO:
                if ros1.u32(record.fields, b"ver") != ros1.INDEX_VERSION or len(data) % 8:
                    raise struct.error("chunk information that does not fit")
                for key, count in struct.iter_unpack("<II", data):
                    found.promised[key] += count
                found.starts.append(ros1.u64(record.fields, b"chunk_pos"))
            else:
                raise struct.error("a record that has no place in an index")
            at = record.stop
    except (struct.error, UnicodeDecodeError):
        why = "is truncated" if at >= file.size else "is damaged"
        found.notes.append(f"its index {why}, so its records were read one by one")
        return False
    return True


def _walk(file: StoredFile, found: BagContents, end: int) -> None:
    """Find the chunks between the header and `end`. After damage, continue at the next chunk listed in the index."""
    at, starts = len(ros1.MAGIC), sorted(found.starts)
    while at < end:
        try:
            at = _take(file, found, ros1.read_record(file.read, at, end))
            continue
        except (struct.error, UnicodeDecodeError):
            after = next((start for start in starts if at < start < end), None)
        if after is None:
            found.notes.append(f"its last {end - at:,} bytes are damaged or incomplete and were not read")
            return
        found.skipped.append(after - at)
        at = after


def _take(file: StoredFile, found: BagContents, record: ros1.Record) -> int:
    """Add one record; return the position of the next. struct.error or UnicodeDecodeError if it is damaged."""
    if record.op == ros1.CHUNK:
        codec = record.fields.get(b"compression", b"").decode()
        if codec not in CODECS:
            raise struct.error("another compression")
        size, stop = ros1.u32(record.fields, b"size"), record.stop
        if record.data_at == stop and not size and codec == "none":  # the recorder crashed before it wrote the length
            stop = file.size
        found.chunks.append(Chunk(record.data_at, stop, CODECS[codec], size))
        return stop
    if record.op == ros1.INDEX:
        count = ros1.u32(record.fields, b"count")
        if not found.chunks or ros1.u32(record.fields, b"ver") != ros1.INDEX_VERSION:
            raise struct.error("an index without its chunk")
        if record.stop - record.data_at != count * ENTRY.itemsize:
            raise struct.error("an index that does not fit")
        data = record_data(file, record)
        found.chunks[-1].list_messages(ros1.u32(record.fields, b"conn"), data)
    elif record.op == ros1.CONNECTION:
        found.connections.setdefault(*ros1.read_connection(record.fields, record_data(file, record)))
    elif record.op not in (ros1.BAG_HEADER, ros1.CHUNK_INFO):
        raise struct.error("a record that has no place outside of a chunk")
    return record.stop


def _list_by_reading(file: StoredFile, found: BagContents, chunk: Chunk) -> None:
    """List the messages of a chunk without an index by reading it."""
    try:
        entries, good = chunk_entries(chunk_content(file, chunk), chunk, found)
    except RoboCacheError:
        found.unread += 1
        return
    if not good:
        chunk.is_cut = True
        found.cut.append(len(entries))
    if len(entries):
        chunk.index.append(entries[:, : PLACE + 1])


def _find_connections(file: StoredFile, found: BagContents, chunk: Chunk) -> None:
    """Read the connections declared in a chunk, if there is no index."""
    with suppress(RoboCacheError):
        chunk_entries(chunk_content(file, chunk), chunk, found)
