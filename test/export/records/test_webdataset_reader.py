"""WebDataset shards as webdataset reads them, against the engine's own values."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.spec import StreamSpec
from test.export.readers.engine_rows import Rows
from test.export.readers.environments import needs, probe
from test.export.records.conftest import KINDS, TASK, Exported, Make, close, picture, tables

pytestmark = needs("webdataset")


@pytest.mark.parametrize(("name", "media"), KINDS)
def test_webdataset_reads_what_the_engine_computed(exported: Make, tmp_path: Path, name: str, media: str) -> None:
    made = exported(name, media)
    shards = sorted((made.out / "webdataset").glob("train-*.tar"))
    reported = probe("webdataset", tmp_path, *shards)
    assert len(reported["episodes"]) == len(made.lengths)
    for index, table in enumerate(tables(reported)):
        about = reported["episodes"][index]
        assert about["keys"] == [f"{index:06d}_{tick:06d}" for tick in range(made.lengths[index])]
        expected = made.episodes[index]
        check_meta(made, about["meta"], expected)
        assert np.array_equal(table["state.npy"], made.vectors(expected, "observation"))
        assert np.array_equal(table["action.npy"], made.vectors(expected, "action"))
        for stream in made.spec.vectors:
            if stream.rows:
                assert np.array_equal(table[f"{stream.name}.npy"], expected[stream.name])
                ages = table[f"{stream.name}.age_ms.npy"]
                assert np.array_equal(ages, expected[f"sample_age_ms.{stream.name}"])
        for stream in made.spec.media:
            check_media(stream, media, table, expected, shards[0], index)


def check_meta(made: Exported, meta: list[dict[str, Any]], expected: Rows) -> None:
    names = [stream.name for stream in made.spec.streams]
    assert [reported["tick_ns"] for reported in meta] == expected["tick_ns"].tolist()
    last = len(meta) - 1
    for tick, reported in enumerate(meta):
        assert (reported["tick"], reported["is_first"], reported["is_last"]) == (tick, tick == 0, tick == last)
        assert (reported["task"], reported["task_index"], reported["success"], reported["reward"]) == (
            TASK,
            0,
            None,
            0.0,
        )
        for key in ("valid", "age_ns", "stamp_ns"):
            assert reported[key] == dict(zip(names, expected[key][tick].tolist(), strict=True))


def check_media(stream: StreamSpec, media: str, table: Rows, expected: Rows, shard: Path, episode: int) -> None:
    if stream.voxels:
        assert np.array_equal(table[f"{stream.name}.npz"], expected[stream.name])
    elif expected[stream.name].dtype != np.uint8:  # depth, (C, H, W)
        assert np.array_equal(np.moveaxis(table[f"{stream.name}.npz"], 1, -1), expected[stream.name])
    elif media == "image":
        assert np.array_equal(table[f"{stream.name}.png"], expected[stream.name])
    else:
        images = table[f"{stream.name}.jpg"]
        assert close(images, expected[stream.name])
        with tarfile.open(shard) as tar:
            for tick in (0, len(images) - 1):
                file = tar.extractfile(f"{episode:06d}_{tick:06d}.{stream.name}.jpg")
                assert file is not None
                assert np.array_equal(images[tick], picture(file.read()))
