"""Delta Lake tables of ticks and episodes: columns, data files, the commits that add them, and appends."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.dataset_folder import LISTING, files_of, locked, sha256, sync, sync_files
from robocache_ros.formats.parquet import write_table
from robocache_ros.formats.pieces import ArrayInfo
from robocache_ros.formats.read import BY_STREAM, STATES
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import AnyPath, is_url
from robocache_ros.untrusted_files import file_below

# The columns of the table of ticks: a struct with a field per number for each stream.
#
# A struct is queried as the layout names its values, `joint_position.panda_joint1`, without quotes, in every engine.
# Files store each field as a column of its own: a query of one joint reads nothing of the others.


TICKS, EPISODES, APPENDS = "ticks", "episodes", "appends"  # the tables, and the folder of files that rows name
RANGE = "episode_range"  # the partitions: the first episode of each range
LAYOUT = "robocache.layout"  # metadata of the column tick_ns
ARRAY = "robocache.array"  # metadata of the columns of voxels and depth images: shape and dtype
_MARKS = (*BY_STREAM, "sample_age_ms")
_OWN = (RANGE, "episode", "tick", "tick_ns", *_MARKS, "next_reward", "next_success")


def check_names(spec: FusionSpec) -> None:
    """Refuse streams whose columns cannot be distinguished; names of columns do not depend on upper or lower case."""
    seen = set(_OWN)
    for stream in spec.streams:
        if stream.name.lower() in seen:
            raise RoboCacheError(f"streams.{stream.name}: delta has another column of this name; rename the stream")
        seen.add(stream.name.lower())


def field_names(labels: Sequence[str]) -> list[str]:
    """Return a name that needs no quotes for each label: `position_x` for `position.x`, `v0` for `0`."""
    names: list[str] = []
    for index, label in enumerate(labels):
        name = re.sub(r"\W+", "_", label, flags=re.ASCII) or "v"
        name = f"v{name}" if name[0].isdigit() else name
        names.append(f"{name}_{index}" if name.lower() in [known.lower() for known in names] else name)
    return names


def _by_stream(names: Sequence[str], kind: Any) -> Any:
    return need("pyarrow", "export").struct([(name, kind) for name in names])


def tick_schema(layout: Layout, media: Mapping[str, ArrayInfo | None]) -> Any:
    """Return the pyarrow schema of the rows, given the stored streams of images (None if they are 8-bit) and voxels."""
    pyarrow = need("pyarrow", "export")
    names = layout.names
    windows = [stream.name for stream in layout.spec.vectors if stream.rows]
    described = json.dumps(layout.to_dict(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    fields = [
        pyarrow.field("episode", pyarrow.int64()),
        pyarrow.field("tick", pyarrow.int64()),
        pyarrow.field("tick_ns", pyarrow.int64(), metadata={LAYOUT: described}),
        *(pyarrow.field(stream.name, vector_type(stream)) for stream in layout.spec.vectors),
        *(pyarrow.field(name, place_type(), metadata=_array(info)) for name, info in media.items()),
        pyarrow.field("valid", _by_stream(names, pyarrow.int8())),
        pyarrow.field("age_ns", _by_stream(names, pyarrow.int64())),
        pyarrow.field("stamp_ns", _by_stream(names, pyarrow.int64())),
        *([pyarrow.field("sample_age_ms", _by_stream(windows, pyarrow.list_(pyarrow.float32())))] if windows else []),
        pyarrow.field("next_reward", pyarrow.float32()),
        pyarrow.field("next_success", pyarrow.bool_()),
    ]
    return pyarrow.schema(fields)


def _array(info: ArrayInfo | None) -> dict[str, str]:
    return {ARRAY: json.dumps({"shape": list(info.shape), "dtype": info.dtype})} if info else {}


def vector_type(stream: StreamSpec) -> Any:
    """Return the type of a vector: a struct; of one number without a name, a number; of a window, a list of these."""
    pyarrow = need("pyarrow", "export")
    if is_number(stream.components):
        found = pyarrow.float32()
    else:
        found = _by_stream(field_names(stream.components), pyarrow.float32())
    return pyarrow.list_(found) if stream.rows else found


def is_number(components: Sequence[str]) -> bool:
    """Return whether a vector is one number without a name."""
    return tuple(components) == ("0",)


def place_type() -> Any:
    """Return the type of an image or of voxels: a file of the dataset, and the frame or the row in it."""
    pyarrow = need("pyarrow", "export")
    return pyarrow.struct([("path", pyarrow.string()), ("row", pyarrow.int64())])


def done(append: str) -> str:
    """Return the transaction identifier by which the rows of an append are in the table of episodes."""
    return f"{append}/{EPISODES}"


QUALITY = (*STATES, "complete", "all_aligned")
DELAYS = ("median", "p95", "max")


def episode_schema(names: Sequence[str]) -> Any:
    """Return the pyarrow schema of the rows, given the names of the streams."""
    arrow = need("pyarrow", "export")
    by_stream = arrow.struct([(name, arrow.float64()) for name in names])
    delays = arrow.struct([(name, arrow.float64()) for name in DELAYS])
    count = arrow.struct([("stream", arrow.string()), ("counter", arrow.string()), ("count", arrow.int64())])
    time = arrow.timestamp("us", "UTC")
    return arrow.schema(
        [
            ("episode", arrow.int64()),
            ("length", arrow.int64()),
            ("recording", arrow.string()),
            ("recording_episode", arrow.int64()),
            ("recording_key", arrow.string()),
            ("task", arrow.string()),
            ("robot", arrow.string()),
            ("success", arrow.bool_()),
            ("start_ns", arrow.int64()),
            ("stop_ns", arrow.int64()),
            ("start", time),
            ("stop", time),
            ("rate_hz", arrow.int64()),
            ("quality", arrow.struct([(name, arrow.float64()) for name in QUALITY])),
            *((name, by_stream) for name in STATES),
            ("delay_ms", arrow.struct([(name, delays) for name in names])),
            ("counters", arrow.list_(count)),
            ("append", arrow.string()),
        ]
    )


def recording_key(stated: Mapping[str, Any]) -> str:
    """Return the key of a recording, given what the provenance of a dataset states of it."""
    decides = [stated["files"], stated["start_ns"], stated["stop_ns"]]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


RANGE_EPISODES = 1000  # episodes of a partition
FILE_MB = 100  # from this size on, the next episode begins another file
DRAFT = "draft-{chunk_index}-{file_index}.parquet"


@dataclass(frozen=True)
class DataFile:
    """A file of a table."""

    path: str  # in the folder of the table
    size: int  # in bytes
    first_of_range: int  # its partition
    stats: str  # statistics of its columns, as JSON of the Delta protocol


def write_data_files(table: Path, episodes: Iterable[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    """Write rows of episodes, in the order of their numbers, into the folder of a table.

    The rows are pyarrow tables of bounded size. Files with equal rows have equal bytes and names.
    """
    found: list[DataFile] = []
    for first_of_range, of_range in groupby(episodes, lambda episode: episode[0] // RANGE_EPISODES * RANGE_EPISODES):
        found += _write_range(table, first_of_range, of_range)
    return found


def _write_range(table: Path, first_of_range: int, episodes: Iterator[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    folder = table / f"{RANGE}={first_of_range}"
    places = write_table(folder, DRAFT, (parts for _, parts in episodes), FILE_MB)
    found = []
    for chunk, file in dict.fromkeys(places):
        draft = folder / DRAFT.format(chunk_index=chunk, file_index=file)
        named = draft.rename(folder / f"part-{sha256(draft)[:32]}.parquet")
        path = named.relative_to(table).as_posix()
        found.append(DataFile(path, named.stat().st_size, first_of_range, _statistics(named)))
    return found


def indexed_columns(schema: Any) -> int:
    """Return the number of columns of which the log has statistics: those before the first struct or list.

    deltalake (1.6) takes a column with statistics in which the minimum is missing for one that matches no filter, and
    Polars (2.1) does not read those of some fields of a struct only. So the columns with statistics are stated, and
    each has all of them.
    """
    nested = [index for index, field in enumerate(schema) if field.type.num_fields]
    return nested[0] if nested else len(schema)


def _statistics(path: Path) -> str:
    """Return the statistics of a parquet file, by which queries skip files, from its footer."""
    stated = need("pyarrow.parquet", "export").read_metadata(path)
    found: dict[str, Any] = {"numRecords": stated.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for index in range(indexed_columns(stated.schema.to_arrow_schema())):
        stats = [stated.row_group(group).column(index).statistics for group in range(stated.num_row_groups)]
        name = stated.schema.column(index).name
        found["nullCount"][name] = sum(one.null_count for one in stats)
        if known := [one for one in stats if one.has_min_max]:  # all values may be null
            found["minValues"][name] = _plain(min(one.min for one in known))
            found["maxValues"][name] = _plain(max(one.max for one in known))
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value for JSON; a time in UTC, to the millisecond, as the protocol has it."""
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z" if isinstance(value, datetime) else value


# The log of a table: its commits, through the package deltalake.
#
# Commits of several processes are safe: the name of a commit is taken once, and deltalake tries the next one. The
# numbers of episodes are reserved by a transaction identifier of the Delta protocol: of two commits with one
# identifier, the later fails, and its process reads the table again.


LOG = "_delta_log"
FIRST_COMMIT = f"{LOG}/{0:020d}.json"
EPISODES_NUMBERED = "robocache.episodes"  # transaction identifier; its version is the number of numbers given
_PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}  # keeps old versions readable
_INDEXED = "delta.dataSkippingNumIndexedCols"
MAX_ATTEMPTS = 1000  # each failure is the success of another process


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as botocore reads them


def storage_options(uri: str) -> dict[str, str]:
    """Return the options of deltalake for a folder or a URL; credentials are those of the environment.

    A commit is put if absent (If-None-Match), so that no other is replaced.
    """
    if not uri.startswith(("s3://", "s3a://")):
        return {}
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    options = {"aws_conditional_put": "etag"}
    if endpoint:
        options |= {"aws_endpoint_url": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    return options


class TransactionLog:
    """The log of a table in a local folder, or at a URL with storage options of deltalake.

    The schema is that of the rows, without the column of the partitions.
    """

    def __init__(self, uri: str, schema: Any, storage: dict[str, str] | None = None) -> None:
        arrow = need("pyarrow", "export")
        self.uri, self._storage = uri, storage
        self._properties = {**_PROPERTIES, _INDEXED: str(indexed_columns(schema))}
        self._schema = need("deltalake", "fleet").Schema.from_arrow(
            arrow.schema([*schema, arrow.field(RANGE, arrow.int64())])
        )

    def exists(self) -> bool:
        """Return whether there is a table."""
        with reached(self.uri):
            found: bool = need("deltalake", "fleet").DeltaTable.is_deltatable(self.uri, self._storage)
        return found

    def table(self) -> Any:
        """Return the table at its newest version, a `deltalake.DeltaTable`."""
        with reached(self.uri):
            return need("deltalake", "fleet").DeltaTable(self.uri, storage_options=self._storage)

    def create(self, files: Sequence[DataFile], time_ms: int, transactions: Mapping[str, int]) -> None:
        """Create the table with the files of a first commit, unless there is one."""
        create = need("deltalake.transaction", "fleet").create_table_with_add_actions
        try:
            with reached(self.uri):
                create(
                    self.uri,
                    self._schema,
                    _adds(files, time_ms),
                    partition_by=[RANGE],
                    configuration=self._properties,
                    storage_options=self._storage,
                    commit_properties=_properties(transactions),
                )
        except RoboCacheError:
            if not self.exists():
                raise

    def reserve(self, append: str, episodes: int) -> int:
        """Reserve numbers of episodes for an append; return the first. For the same append it is the same."""
        for _ in range(MAX_ATTEMPTS):
            table = self.table()
            reserved: int | None = table.transaction_version(append)
            if reserved is not None:
                return reserved
            first = int(table.transaction_version(EPISODES_NUMBERED) or 0)
            if self._committed(table, [], 0, {EPISODES_NUMBERED: first + episodes, append: first}):
                return first
        raise self._busy()

    def append(self, files: Sequence[DataFile], time_ms: int, name: str, version: int) -> bool:
        """Commit files under a transaction identifier; return false if there is a commit with it."""
        for _ in range(MAX_ATTEMPTS):
            table = self.table()
            if table.transaction_version(name) is not None:
                return False
            if self._committed(table, files, time_ms, {name: version}):
                return True
        raise self._busy()

    def _committed(self, table: Any, files: Sequence[DataFile], time_ms: int, transactions: Mapping[str, int]) -> bool:
        """Commit; return false if another commit has one of the transaction identifiers."""
        before = table.version()
        failed = need("deltalake", "fleet").exceptions.CommitFailedError
        try:
            with reached(self.uri, but=failed):
                table.create_write_transaction(
                    _adds(files, time_ms),
                    "append",
                    self._schema,
                    partition_by=[RANGE],
                    commit_properties=_properties(transactions),
                )
        except failed:
            if self.table().version() == before:
                with reached(self.uri):
                    raise
            return False
        return True

    def _busy(self) -> RoboCacheError:
        return RoboCacheError(f"{printable(self.uri, 80)}: too many commits of others; run the same command again")


def check_log(root: AnyPath, name: str) -> None:
    """Refuse the log of a table of a local dataset, which deltalake will read, if a file of it cannot be used."""
    folder = root / name / LOG
    for path in folder.iterdir() if isinstance(folder, Path) and folder.is_dir() else ():
        if not path.is_dir():
            file_below(root, f"{name}/{LOG}/{path.name}")


@contextmanager
def reached(uri: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors of deltalake, whose texts have many lines, into errors of one line, except those of a type."""
    try:
        yield
    except but:
        raise
    except (need("deltalake", "fleet").exceptions.DeltaError, OSError) as error:
        text = re.split(r"\n\s*(?:stack backtrace:|\d+: )", str(error))[0]  # the rest is of the library's own code
        reason = printable(" ".join(re.sub(r"\x1b\[\d*m", "", text).split()), 80)
        raise RoboCacheError(f"{printable(uri, 60)}: {reason}; check the table and the access to it") from error


def make_repeatable(table: Path, identity: str, time_ms: int) -> None:
    """Replace what differs between two logs of the same table in its first commit, before others can read it.

    The identifier of the table becomes a function of `identity`, all times become `time_ms`.
    """
    path = table / FIRST_COMMIT
    actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    for action in actions:
        if "commitInfo" in action:
            kept = {name: value for name, value in action["commitInfo"].items() if name != "operationParameters"}
            action["commitInfo"] = {**kept, "timestamp": time_ms, "operationParameters": {}}
        if "metaData" in action:
            action["metaData"]["id"] = str(uuid.uuid5(uuid.NAMESPACE_OID, identity))
            action["metaData"]["createdTime"] = time_ms
    lines = [json.dumps(action, sort_keys=True, ensure_ascii=False) for action in actions]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _adds(files: Sequence[DataFile], time_ms: int) -> list[Any]:
    add = need("deltalake.transaction", "fleet").AddAction
    return [add(file.path, file.size, {RANGE: str(file.first_of_range)}, time_ms, True, file.stats) for file in files]


def _properties(transactions: Mapping[str, int]) -> Any:
    deltalake = need("deltalake", "fleet")
    ids = [deltalake.Transaction(name, version) for name, version in transactions.items()]
    return deltalake.CommitProperties(app_transactions=ids)


# Appends of a complete dataset to another one, to which other processes may append meanwhile.
#
# The numbers of the new episodes are reserved first. Then files are put, and at last committed, the table of episodes
# after that of ticks: all ticks of an episode that is in it can be read. A killed append is completed by another one of
# the same dataset: its transaction identifiers state what is done.


WAIT_S = 10.0  # for the lock of a folder, which an append that ends takes for a moment


class _Place:
    """A dataset of Delta Lake tables, which several processes may append to at the same time: a folder, or a URL."""

    def __init__(self, out: str) -> None:
        self.out, self._store = out, ObjectStore(out) if is_url(out) else None
        if self._store is not None:
            self._store.check()  # commits of others would be lost in a bucket that does not put if absent
        for table in (TICKS, EPISODES) if self._store is None else ():
            (Path(out) / table).mkdir(parents=True, exist_ok=True)

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


ROW_FREE = ("spec", "horizon", "delay_ms")  # of a layout: what does not affect the rows
STREAM_FREE = ("topic", "type", "stamp")
_OF_EPISODE = ("episode", "recording_key", "append", "start_ns", "stop_ns")


@dataclass(frozen=True)
class Appended:
    """What an append did."""

    first: int  # the number of its first episode
    episodes: int  # their number
    known: int  # recordings that were in the table, and are left out
    folder: str = ""  # of its files in the dataset; empty without episodes


def append_dataset(new: Path, out: str | AnyPath) -> Appended:
    """Append a dataset in a local folder to one in a folder or below a URL, which is created if there is none.

    Recordings that are in the table are left out. The files of the new dataset are moved.

    Errors:
        RoboCacheError: the columns of the tables differ, a commit fails, or an export that replaces `out` runs.
    """
    place, storage = _Place(str(out)), storage_options(str(out))
    old = {name: need("deltalake", "fleet").DeltaTable(new / name) for name in (TICKS, EPISODES)}
    logs = {name: TransactionLog(f"{out}/{name}", _schema(table), storage) for name, table in old.items()}
    with nullcontext() if is_url(out) else locked(Path(place.out), shared=True, wait_s=WAIT_S):
        for name, table in old.items():
            logs[name].create((), 0, {})
            _check_columns(place.out, name, logs[name].table(), table)
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


def _check_columns(out: str, name: str, table: Any, new: Any) -> None:
    """Refuse to append rows of other columns, or of streams that are made in another way."""
    ours, theirs = (_columns(each) for each in (new, table))
    different = [column for column in {**theirs, **ours} if ours.get(column) != theirs.get(column)]
    if different:
        column = printable(different[0], 40)
        raise RoboCacheError(
            f"{printable(out, 60)}: its column {column} in {name} is not that of this export; use the spec and "
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
