"""Validation of tables: complete ones, appended and compacted ones, and damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from robocache_ros.formats.delta.log import TransactionLog, append_dataset
from robocache_ros.formats.validate import validate
from test.export.delta.conftest import Exports
from test.export.delta.delta_rows import deltalake
from test.export.delta.small_datasets import small_dataset
from test.export.validate.conftest import found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("made")
    return [small_dataset(folder, seed) for seed in range(2)]


@pytest.fixture
def dataset(made: list[Path], tmp_path: Path) -> Path:
    """A copy of a dataset without its checksums, to be damaged."""
    copy = Path(shutil.copytree(made[0], tmp_path / "dataset"))
    (copy / "SHA256SUMS").unlink()
    return copy


def change(dataset: Path, table: str, name: str, values: Any) -> None:
    """Replace a column of a table."""
    found = deltalake.DeltaTable(dataset / table)
    rows = found.to_pyarrow_table()
    index = rows.schema.get_field_index(name)
    rows = rows.set_column(index, rows.schema.field(name), pyarrow.array(values, rows.schema.field(name).type))
    deltalake.write_deltalake(found, rows, mode="overwrite")


@pytest.mark.parametrize(("source", "media"), [("lift", "video"), ("lift", "image"), ("sensors", "image")])
def test_an_export_has_no_findings(source: str, media: str, exports: Exports) -> None:
    (findings,) = validate(exports(source, media) / "delta", decode=True, recordings=True)

    assert findings.found == []
    assert findings.title == "Delta Lake tables of ticks and episodes"
    assert findings.counted["rows"] > 80
    assert findings.counted["files of recordings"] >= 2


def test_appended_and_compacted_tables_have_no_findings(dataset: Path, made: list[Path], tmp_path: Path) -> None:
    append_dataset(Path(shutil.copytree(made[1], tmp_path / "new")), dataset)
    assert found(dataset) == []
    deltalake.DeltaTable(dataset / "ticks").optimize.compact()

    assert found(dataset) == []


def test_an_append_that_was_stopped_is_found(
    dataset: Path, made: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionLog, "append", lambda log, *rest: "ticks" not in log.uri or append(log, *rest))
    append_dataset(Path(shutil.copytree(made[1], tmp_path / "new")), dataset)

    assert found(dataset) == [
        "episodes: 1 episodes of ticks are not in it: an append runs, or was stopped; run it again"
    ]


append = TransactionLog.append


@pytest.mark.parametrize(
    ("table", "column", "value", "text"),
    [
        ("ticks", "state", None, "state: is not null exactly where valid is 0"),
        ("ticks", "arm", {"v0": np.inf, "v1": 0.0}, "arm: NaN or infinite in 15 rows, the first is row 0"),
        ("ticks", "color", {"path": "appends/none", "row": 0}, "appends/none: is missing"),
        ("ticks", "color", {"path": "../file", "row": 0}, "../file: is outside the dataset"),
    ],
)
def test_wrong_values_are_found(table: str, column: str, value: Any, text: str, dataset: Path) -> None:
    count = deltalake.DeltaTable(dataset / table).to_pyarrow_table().num_rows
    change(dataset, table, column, [value] * count)

    assert any(text in line for line in found(dataset))


def test_a_number_of_two_episodes_is_found(dataset: Path) -> None:
    rows = deltalake.DeltaTable(dataset / "episodes").to_pyarrow_table()
    deltalake.write_deltalake(dataset / "episodes", rows, mode="append")

    assert any("its number is that of another episode" in line for line in found(dataset))
