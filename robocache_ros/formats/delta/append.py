"""Append a complete dataset of Delta Lake tables to another one, to which other processes may append meanwhile.

The numbers of the new episodes are reserved first. Then files are put, and at last committed, the table of episodes
after that of ticks: all ticks of an episode that is in it can be read. A killed append is completed by another one of
the same dataset: its transaction identifiers state what is done.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.checksums import files_of
from robocache_ros.formats.dataset_folder import LISTING, LOCK, sync, sync_files
from robocache_ros.formats.delta.log import TransactionLog, reached, storage_options, write_data_files
from robocache_ros.formats.delta.schema import APPENDS, EPISODES, LAYOUT, RANGE, TICKS, done
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import AnyPath, is_url

WAIT_S = 10.0  # for the lock of a folder, which an append that ends takes for a moment


class DatasetPlace:
    """A dataset of Delta Lake tables, which several processes may append to at the same time.

    Args:
        out: a local folder or a URL, such as s3://bucket/lift.
    """

    def __init__(self, out: str | AnyPath) -> None:
        self.out = str(out)
        self._store = ObjectStore(self.out) if is_url(self.out) else None

    @property
    def storage(self) -> dict[str, str]:
        """Options of deltalake."""
        return storage_options(self.out)

    def check(self) -> None:
        """Refuse a bucket that does not put if absent, in which commits of others would be lost."""
        if self._store is not None:
            self._store.check()

    def uri(self, table: str) -> str:
        """Return the URI of a table for deltalake."""
        return f"{self.out}/{table}"

    def created(self, table: str) -> str:
        """Return the URI of a table, after creating its folder."""
        if self._store is None:
            (Path(self.out) / table).mkdir(parents=True, exist_ok=True)
        return self.uri(table)

    def put(self, folder: Path, names: Sequence[str], to: str = "") -> None:
        """Put files of a local folder, which may be moved, at their names below `to`.

        Files of one name have equal contents.
        """
        if self._store is not None:
            self._store.put_files(folder, names, to)
            return
        sync_files(folder / name for name in names)
        folders = {}
        for name in names:
            target = Path(self.out) / to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, target)
            folders.update(dict.fromkeys((target.parent, *target.parent.parents)))
        for each in folders:
            if each.is_relative_to(self.out):
                sync(each)

    def list_entries(self) -> None:
        """List what a dataset consists of, so that an export may replace it, if nothing lists it."""
        path, listing = Path(self.out) / LISTING, json.dumps([APPENDS, EPISODES, TICKS])
        if self._store is not None:
            self._store.create(LISTING, listing.encode())
        elif not path.exists():
            draft = path.with_name(f"{LISTING}-{os.getpid()}")
            draft.write_text(listing, encoding="utf-8")
            draft.replace(path)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep an export that replaces the dataset in the folder away; other appends may run.

        Errors:
            RoboCacheError: such an export runs.
        """
        if self._store is not None:
            yield
            return
        path = Path(self.out) / LOCK
        handle = _locked(path)
        try:
            yield
        finally:
            with suppress(OSError):  # another append, which will remove the file, or a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            os.close(handle)


def _locked(path: Path) -> int:
    """Return the handle of a lock that others share."""
    until = time.monotonic() + WAIT_S
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                raise RoboCacheError(
                    f"{printable(path.parent)}: another export is writing to it; wait for it, then run this again"
                ) from None
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return handle
        os.close(handle)


ROW_FREE = ("spec", "horizon", "delay_ms")  # of a layout: what does not affect the rows
STREAM_FREE = ("topic", "type", "stamp")
_OF_EPISODE = ("episode", "recording_key", "append", "start_ns", "stop_ns")


@dataclass(frozen=True)
class Appended:
    """What an append did.

    Attributes:
        first: the number of its first episode.
        episodes: their number.
        known: recordings that were in the table, and are left out.
        folder: of its files in the dataset; empty without episodes.
    """

    first: int
    episodes: int
    known: int
    folder: str = ""


def append_dataset(new: Path, out: str | AnyPath) -> Appended:
    """Append a dataset in a local folder to one in a folder or below a URL, which is created if there is none.

    Recordings that are in the table are left out. The files of the new dataset are moved.

    Errors:
        RoboCacheError: the columns of the tables differ, a commit fails, or an export that replaces `out` runs.
    """
    place = DatasetPlace(out)
    place.check()
    old = {name: need("deltalake", "fleet").DeltaTable(new / name) for name in (TICKS, EPISODES)}
    logs = {name: TransactionLog(place.created(name), _schema(table), place.storage) for name, table in old.items()}
    with place.shared():
        for name, table in old.items():
            logs[name].create((), 0, {})
            _check_columns(place, name, logs[name].table(), table)
        rows = old[EPISODES].to_pyarrow_table(columns=list(_OF_EPISODE)).to_pylist()
        rows.sort(key=lambda row: int(row["episode"]))
        known = _known(logs[EPISODES].table(), [int(row["start_ns"]) for row in rows])
        chosen = [row for row in rows if row["recording_key"] not in known]
        left_out = len({row["recording_key"] for row in rows if row["recording_key"] in known})
        if not chosen:
            return Appended(-1, 0, left_out)
        folder, append = str(chosen[0]["append"]), _identity(rows, chosen)
        first = logs[EPISODES].reserve(append, len(chosen))
        numbers = {int(row["episode"]): number for number, row in enumerate(chosen, first)}
        time_ms = max(0, *(row["stop_ns"] // 1_000_000 for row in rows))
        place.put(new / APPENDS / folder, files_of(new / APPENDS / folder), f"{APPENDS}/{folder}/")
        reports = [name for name in ("report.html", "report.json") if (new / name).is_file()]
        place.put(new, reports, f"{APPENDS}/{folder}/")
        for name, transaction in ((TICKS, append), (EPISODES, done(append))):
            renumbered = new / f"renumbered-{name}"
            files = write_data_files(renumbered, _renumbered(new / name, old[name], numbers))
            place.put(renumbered, [file.path for file in files], f"{name}/")
            logs[name].append(files, time_ms, transaction, first)
        place.list_entries()
    return Appended(first, len(chosen), left_out, f"{APPENDS}/{folder}")


def _renumbered(folder: Path, table: Any, numbers: dict[int, int]) -> Iterator[tuple[int, Iterable[Any]]]:
    """Yield the new number of each chosen episode and its rows, by the row groups of the files."""
    parquet = need("pyarrow.parquet", "export")
    paths = sorted((file["min.episode"], file["path"]) for file in _actions(table))

    def groups() -> Iterator[Any]:
        for _, path in paths:
            with parquet.ParquetFile(folder / path) as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group)

    for episode, of_episode in groupby(groups(), lambda rows: int(rows["episode"][0].as_py())):
        if episode in numbers:
            yield numbers[episode], (_with_number(rows, numbers[episode]) for rows in of_episode)


def _with_number(rows: Any, number: int) -> Any:
    numbers = need("pyarrow", "export").array(np.full(len(rows), number))
    return rows.set_column(rows.schema.get_field_index("episode"), rows.schema.field("episode"), numbers)


def _actions(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = need("pyarrow", "export").table(table.get_add_actions(flatten=True)).to_pylist()
    return found


def _known(episodes: Any, starts_ns: list[int]) -> set[str]:
    """Return the keys of the recordings in a table whose episodes begin when those do that are appended.

    A query by time opens few of the files of a large table.
    """
    start = need("pyarrow.dataset", "export").field("start_ns")
    chosen = (start >= min(starts_ns)) & (start <= max(starts_ns))
    with reached(EPISODES):
        keys = episodes.to_pyarrow_dataset().to_table(columns=["recording_key"], filter=chosen)["recording_key"]
    return set(keys.unique().to_pylist())


def _identity(rows: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> str:
    """Return the transaction identifier of an append; that of a part of a dataset is another."""
    append = str(rows[0]["append"])
    if len(rows) == len(chosen):
        return append
    decides = [append, [row["episode"] for row in chosen]]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]


def _schema(table: Any) -> Any:
    """Return the pyarrow schema of a table that this package wrote, without the partitions."""
    arrow = need("pyarrow", "export")
    fields = arrow.schema(table.schema().to_arrow())
    return arrow.schema([field for field in fields if field.name != RANGE])


def _check_columns(place: DatasetPlace, name: str, table: Any, new: Any) -> None:
    """Refuse to append rows of other columns, or of streams that are made in another way."""
    ours, theirs = (_columns(each) for each in (new, table))
    different = [column for column in {**theirs, **ours} if ours.get(column) != theirs.get(column)]
    if different:
        column = printable(different[0], 40)
        raise RoboCacheError(
            f"{printable(place.out, 60)}: its column {column} in {name} is not that of this export; use the spec and "
            "the options that it was made with, or another folder"
        )


def _columns(table: Any) -> dict[str, Any]:
    """Return what columns are compared by: types and metadata; of the layout only what affects the rows."""
    found = {}
    for field in json.loads(table.schema().to_json())["fields"]:
        described = dict(field["metadata"])
        if LAYOUT in described:
            layout = json.loads(described.pop(LAYOUT))
            streams = {
                stream: {key: value for key, value in stated.items() if key not in STREAM_FREE}
                for stream, stated in layout["streams"].items()
            }
            described["layout"] = {k: v for k, v in layout.items() if k not in ROW_FREE} | {"streams": streams}
        found[field["name"]] = (field["type"], described)
    return found
