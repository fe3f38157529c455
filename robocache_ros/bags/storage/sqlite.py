"""Reads SQLite files of rosbag2.

SQLite has no checksums. Damage to the file structure is detected, an altered byte inside a message is not.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from robocache_ros.bags.source import PAUSE_NS, Group, RawMessage, Topic, groups_of, is_latched
from robocache_ros.decode.definitions import msg_of_idl
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.storage.paths import AnyPath

CHECK_BYTES = 1 << 30  # maximum file size for a comparison with the index, which reads all pages a second time
HEADER = b"SQLite format 3\0"


class SqliteFile:
    """An open SQLite storage file.

    Args:
        path: of the file.
        packed: the compressed file from which it was unpacked, which errors name; None: it is not compressed.

    Attributes:
        topics: topics with CDR messages.
        start_ns: lower bound of the log times of all messages.
        notes: lost or damaged data; complete after all messages have been read.

    Errors:
        RoboCacheError: not a recording, damaged, or truncated.
    """

    has_checksums = False

    def __init__(self, path: AnyPath, packed: AnyPath | None = None) -> None:
        self._path = packed or path
        self._copy = "copy it again"
        if packed is None:
            self._copy += f", or recover what is left: sqlite3 {path.name} .recover | sqlite3 recovered.db3"
        self.notes: list[str] = []
        size = self._check_length(path)
        self._wal(path)
        where = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
        try:
            self._database = sqlite3.connect(where, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        try:
            self._open(size)
        except (sqlite3.Error, TypeError, ValueError) as error:
            self.close()
            raise error if isinstance(error, RoboCacheError) else self._damaged(error) from None

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses."""
        if not self._total:
            return []
        try:
            first, last = self._rows("SELECT min(timestamp), max(timestamp) FROM messages").fetchone()
            if last - first <= PAUSE_NS:
                return [Group(first, last, self._total)]
            times = (time for (time,) in self._rows("SELECT timestamp FROM messages"))
            return groups_of(np.fromiter(times, np.int64))
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            raise self._damaged(error) from None

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages in log order."""
        names = {key: name for key, name in self._names.items() if name in topics}
        marks = ",".join("?" * len(names))
        query = (
            f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) "
            "AND timestamp >= ? AND timestamp < ? ORDER BY timestamp"
        )
        wrong = 0
        try:
            for key, log_ns, data in self._rows(query, (*names, start_ns, stop_ns)):
                if isinstance(data, bytes) and isinstance(log_ns, int):
                    yield RawMessage(names[key], log_ns, data)
                else:
                    wrong += 1
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        note = f"{wrong:,} rows are not messages and were not read"
        if wrong and note not in self.notes:
            self.notes.append(note)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _rows(self, query: str, values: Collection[Any] = ()) -> sqlite3.Cursor:
        return self._database.execute(query, tuple(values))

    def _open(self, size: int) -> None:
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
            self._rows(f"PRAGMA {pragma}")
        tables = dict(self._rows("SELECT name, type || rootpage FROM sqlite_master").fetchall())
        for name in ("messages", "topics"):  # a view or a virtual table would execute code from the file
            if not str(tables.get(name, "")).startswith("table") or tables[name] == "table0":
                raise RoboCacheError(f"{self._path}: not a rosbag2 recording, it has no table {name}; give one")
            if any(hidden for *_, hidden in self._rows(f"PRAGMA table_xinfo({name})")):
                raise RoboCacheError(
                    f"{self._path}: not a rosbag2 recording, its table {name} has computed columns; give one"
                )
        check = "integrity_check" if size <= CHECK_BYTES else "quick_check"
        (found,) = self._rows(f"PRAGMA {check}(1)").fetchone()
        if found != "ok":
            self.notes.append(f"SQLite finds damage in it ({printable(' '.join(str(found).split()), 80)})")
        columns = {name for _, name, *_ in self._rows("PRAGMA table_info(topics)")}
        profiles = "offered_qos_profiles" if "offered_qos_profiles" in columns else "''"
        topics = self._rows(f"SELECT id, name, type, serialization_format, {profiles} FROM topics").fetchall()
        counted = self._rows("SELECT topic_id, count(*) FROM messages NOT INDEXED GROUP BY topic_id").fetchall()
        counts = Counter(dict(counted))
        definitions = self._definitions() if "message_definitions" in tables else {}
        cdr = [t for t in topics if t[3] == "cdr" and isinstance(t[1], str) and isinstance(t[2], str)]
        self._names = {key: name for key, name, *_ in cdr}
        self.topics = tuple(
            Topic(name, kind, counts[key], definitions.get(kind, ""), is_latched(str(qos)))
            for key, name, kind, _, qos in cdr
        )
        self._total = sum(counts.values())
        orphans = sum(count for key, count in counts.items() if key not in {t[0] for t in topics})
        if orphans:
            self.notes.append(f"{orphans:,} of {self._total:,} messages belong to no declared topic")
        (self.start_ns,) = self._rows("SELECT ifnull(min(timestamp), 0) FROM messages").fetchone()
        if not isinstance(self.start_ns, int):
            raise TypeError("its log times are not numbers")

    def _definitions(self) -> dict[str, str]:
        rows = self._rows("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
        return {
            kind: msg_of_idl(kind, text) if encoding == "ros2idl" else text
            for kind, encoding, text in rows
            if encoding in ("ros2msg", "ros2idl") and isinstance(kind, str) and isinstance(text, str)
        }

    def _wal(self, path: AnyPath) -> None:
        log = path.with_name(f"{path.name}-wal")
        if log.is_file() and log.stat().st_size:
            self.notes.append(
                f"messages in {printable(log.name)} were not read; move them into the database with: "
                f"sqlite3 {printable(path.name)} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )

    def _damaged(self, error: Exception) -> RoboCacheError:
        reason = printable(" ".join(str(error).split()) or type(error).__name__, 50)
        return RoboCacheError(f"{self._path}: cannot be read, it is damaged or truncated: {reason}; {self._copy}")

    def _check_length(self, path: AnyPath) -> int:
        """Refuse a file with fewer pages than its header declares. SQLite reads some of these files as empty tables."""
        file = StoredFile(path)
        try:
            head, size = file.read(0, 100), file.size
        finally:
            file.close()
        page = int.from_bytes(head[16:18], "big")  # https://www.sqlite.org/fileformat2.html, the database header
        length = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
        current = head[24:28] == head[92:96]  # false after an old SQLite, which does not update the count
        if head.startswith(HEADER) and current and size < length:
            raise RoboCacheError(f"{self._path}: truncated to {size:,} of {length:,} bytes; {self._copy}")
        return size
