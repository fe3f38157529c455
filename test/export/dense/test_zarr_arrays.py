"""Zarr format 2 arrays, read back by its rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray

from robocache_ros.formats import diffusion_policy as zarr
from robocache_ros.formats.diffusion_policy import ZarrArray, write_group


def read(folder: Path) -> NDArray:
    """The array, from its metadata and chunks."""
    meta = json.loads((folder / ".zarray").read_text())
    rows, *shape = meta["shape"]
    length, size = meta["chunks"][0], int(np.prod(meta["chunks"])) * np.dtype(meta["dtype"]).itemsize
    parts = []
    for index in range(-(-rows // length)):
        file = folder / ".".join(map(str, [index, *[0] * len(shape)]))
        data = pyarrow.decompress(file.read_bytes(), size, "zstd") if file.exists() else bytes(size)
        parts.append(np.frombuffer(data, meta["dtype"]).reshape(length, *shape))
    return np.concatenate(parts)[:rows]


@pytest.mark.parametrize("parts", [[7], [3, 4], [1] * 7, [2, 0, 5]])
def test_rows_are_the_same_in_any_parts(tmp_path: Path, parts: list[int]) -> None:
    values = np.arange(21, dtype=np.float32).reshape(7, 3)
    with ZarrArray(tmp_path / "a", 7, (3,), "float32", chunk_rows=4) as array:
        for part in np.split(values, np.cumsum(parts)[:-1]):
            array.append(part)
    assert np.array_equal(read(tmp_path / "a"), values)


def test_the_last_chunk_is_filled_up_with_zeros(tmp_path: Path) -> None:
    with ZarrArray(tmp_path / "a", 3, (), "int64", chunk_rows=2) as array:
        array.append(np.array([5, 6, 7]))
    assert pyarrow.decompress((tmp_path / "a" / "1").read_bytes(), 16, "zstd") == np.array([7, 0], "<i8").tobytes()


def test_chunks_of_numbers_have_two_megabytes_at_most(tmp_path: Path) -> None:
    ZarrArray(tmp_path / "a", 10_000_000, (100,), "float32")
    rows, width = json.loads((tmp_path / "a" / ".zarray").read_text())["chunks"]
    assert (width, rows) == (100, zarr.CHUNK_BYTES // 400)


def test_repeated_rows_are_links_to_one_chunk_and_missing_ones_are_zero(tmp_path: Path) -> None:
    image = np.full((2, 2, 3), 7, np.uint8)
    with ZarrArray(tmp_path / "a", 5, image.shape, "uint8", chunk_rows=1) as array:
        array.repeat(image, 3)
        array.repeat(None, 1)
        array.repeat(image + 1, 1)
    assert read(tmp_path / "a")[:, 0, 0, 0].tolist() == [7, 7, 7, 0, 8]
    assert (tmp_path / "a" / "0.0.0.0").stat().st_nlink == 3
    assert not (tmp_path / "a" / "3.0.0.0").exists()


def test_without_hard_links_repeated_rows_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(zarr.os, "link", refused)
    with ZarrArray(tmp_path / "a", 2, (1,), "uint8", chunk_rows=1) as array:
        array.repeat(np.array([9], np.uint8), 2)
    assert read(tmp_path / "a").tolist() == [[9], [9]]


def test_a_group_has_its_format_and_attributes(tmp_path: Path) -> None:
    write_group(tmp_path / "g", {"tasks": ["lift"]})
    assert json.loads((tmp_path / "g" / ".zgroup").read_text()) == {"zarr_format": 2}
    assert json.loads((tmp_path / "g" / ".zattrs").read_text()) == {"tasks": ["lift"]}
