"""The tables in deltalake, DuckDB and Polars: their filters find what is in the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import dataset

from robocache_ros.formats.delta import log
from test.export.delta.conftest import Exports
from test.export.delta.delta_rows import deltalake, table
from test.export.delta.small_datasets import OPTIONS, export
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
TABLES = ("ticks", "episodes")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tables with a file for each of some episodes, of which some succeed and others have no depth."""
    folder = tmp_path_factory.mktemp("several")
    recordings = [sensor_recording(folder / f"recording_{seed}", seed, 0.2 + 0.3 * seed) for seed in range(3)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "FILE_MB", 0)
        yield export(recordings, sensor_spec(outcomes=True), folder / "out", OPTIONS).out


def values(rows: Any) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The path and the values of every column and every field of a struct."""
    waiting = [((field.name,), rows[field.name].combine_chunks()) for field in rows.schema]
    while waiting:
        path, column = waiting.pop()
        if pyarrow.types.is_struct(column.type):
            waiting += [
                ((*path, field.name), inner) for field, inner in zip(column.type, column.flatten(), strict=True)
            ]
        elif not pyarrow.types.is_list(column.type):
            yield path, column.to_pylist()


def some(found: list[Any]) -> list[Any]:
    """Some of the distinct values."""
    distinct = sorted({value for value in found if value is not None})
    return distinct[:: max(1, len(distinct) // 3)]


@pytest.mark.parametrize("name", TABLES)
def test_every_filter_finds_the_rows_with_the_value(name: str, several: Path) -> None:
    files = deltalake.DeltaTable(several / name).to_pyarrow_dataset()
    lazy = polars.scan_delta(str(several / name))
    rows = table(several, name)
    wanted, filters = [], []
    for path, found in values(rows):
        of_polars = polars.col(path[0])
        for part in path[1:]:
            of_polars = of_polars.struct.field(part)
        for value in (*some(found), None):
            field = dataset.field(*path)
            filters.append((field.is_null() if value is None else field == value, of_polars.eq_missing(value)))
            wanted.append(sum(other == value for other in found))

    counted = [files.count_rows(filter=one) for one, _ in filters]
    counts = [lazy.filter(one).select(polars.len().alias(str(k))) for k, (_, one) in enumerate(filters)]

    assert counted == wanted
    assert [frame.item() for frame in polars.collect_all(counts)] == wanted


@pytest.mark.parametrize("name", TABLES)
def test_duckdb_and_polars_read_the_rows_of_deltalake(name: str, several: Path) -> None:
    rows = table(several, name)
    files = deltalake.DeltaTable(several / name).to_pyarrow_dataset()

    order = "episode, tick" if name == "ticks" else "episode"
    of_duckdb = duckdb.from_arrow(files).order(order).to_arrow_table()
    of_polars = polars.scan_delta(str(several / name)).sort(order.split(", ")).collect()

    for column in rows.column_names:
        assert of_duckdb[column].to_pylist() == rows[column].to_pylist()
        assert of_polars[column].to_list() == rows[column].to_pylist()


def test_a_query_of_one_episode_opens_its_file_only(several: Path) -> None:
    files = deltalake.DeltaTable(several / "ticks").to_pyarrow_dataset()

    assert len(list(files.get_fragments())) == 3
    assert len(list(files.get_fragments(filter=dataset.field("episode") == 1))) == 1


def test_a_time_between_two_milliseconds_is_found(exports: Exports) -> None:
    episodes = deltalake.DeltaTable(exports("lift", "none") / "delta" / "episodes").to_pyarrow_dataset()

    stops = episodes.to_table()["stop"].to_pylist()
    for stop in stops:
        assert episodes.count_rows(filter=dataset.field("stop") == pyarrow.scalar(stop)) == stops.count(stop)
