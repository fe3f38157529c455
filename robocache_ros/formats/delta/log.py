"""Data files of a Delta Lake table, and the commits that add them."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.checksums import sha256
from robocache_ros.formats.delta.schema import RANGE
from robocache_ros.formats.parquet import Table
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import file_below

RANGE_EPISODES = 1000  # episodes of a partition
FILE_MB = 100  # from this size on, the next episode begins another file
DRAFT = "draft-{chunk_index}-{file_index}.parquet"


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Attributes:
        path: in the folder of the table.
        size: in bytes.
        first_of_range: its partition.
        stats: statistics of its columns, as JSON of the Delta protocol.
    """

    path: str
    size: int
    first_of_range: int
    stats: str


def write_data_files(table: Path, episodes: Iterable[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    """Write rows into the folder of a table. Files with equal rows have equal bytes and names.

    Args:
        table: the folder.
        episodes: the number of each episode, in rising order, and its rows as pyarrow tables of bounded size.
    """
    found: list[DataFile] = []
    for first_of_range, of_range in groupby(episodes, lambda episode: episode[0] // RANGE_EPISODES * RANGE_EPISODES):
        found += _write_range(table, first_of_range, of_range)
    return found


def _write_range(table: Path, first_of_range: int, episodes: Iterator[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    folder = table / f"{RANGE}={first_of_range}"
    drafts: dict[Path, None] = {}
    with closing(Table(folder, DRAFT, FILE_MB)) as files:
        for _, parts in episodes:
            for part in parts:
                files.append(part)
            chunk, file = files.end_episode()
            drafts[folder / DRAFT.format(chunk_index=chunk, file_index=file)] = None
    found = []
    for draft in drafts:
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
    """The log of a table in a folder or a bucket.

    Args:
        uri: a local folder, or a URL of deltalake.
        schema: pyarrow schema of the rows, without the column of the partitions.
        storage: options of deltalake for the URL, such as credentials.
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

    def transaction(self, name: str) -> int | None:
        """Return the version of a transaction identifier; None if no commit has it."""
        version: int | None = self.table().transaction_version(name)
        return version

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
    """Refuse the log of a table of a local dataset, which deltalake will read, if a file of it cannot be used.

    Errors:
        DatasetError: a file of it leads out of the dataset, or is not a regular file.
    """
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
