"""RLDS as tensorflow-datasets reads it without TensorFlow, against the engine's own values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.spec import StreamSpec
from test.export.readers.engine_rows import Rows
from test.export.readers.environments import needs, probe
from test.export.records.conftest import KINDS, TASK, Exported, Make, close, picture, tables

pytestmark = needs("tfds")


@pytest.mark.parametrize(("name", "media"), KINDS)
def test_tfds_reads_what_the_engine_computed(exported: Make, tmp_path: Path, name: str, media: str) -> None:
    made = exported(name, media)
    folder = made.out / "rlds" / "robocache" / "1.0.0"
    reported = probe("tfds", tmp_path, folder)
    assert (reported["name"], reported["tensorflow"]) == ("robocache/1.0.0", False)
    assert reported["lengths"] == [len(made.lengths)]
    (shard,) = folder.glob("*.tfrecord-00000-of-00001")
    records = list(read_records(shard))
    assert reported["bytes"] == sum(map(len, records))
    for index, (table, record) in enumerate(zip(tables(reported), records, strict=True)):
        expected = made.episodes[index]
        check_steps(made, table, expected)
        for stream in made.spec.media:
            check_media(stream, media, table[f"observation/{stream.name}"], expected, parse_example(record))
        assert reported["episodes"][index]["tasks"] == [TASK]
        assert reported["episodes"][index]["success"] == -1
        assert reported["episodes"][index]["file_path"] == str(made.recordings[index])


def check_steps(made: Exported, table: Rows, expected: Rows) -> None:
    rest = [False] * (len(table["reward"]) - 1)
    assert table["is_first"].tolist() == [True, *rest]
    assert table["is_last"].tolist() == [*rest, True]
    assert not table["is_terminal"].any()
    assert not table["reward"].any()
    assert (table["discount"] == 1).all()
    assert np.array_equal(table["observation/state"], made.vectors(expected, "observation"))
    assert np.array_equal(table["action"], made.vectors(expected, "action"))
    for key in ("tick_ns", "valid", "age_ns", "stamp_ns"):
        assert np.array_equal(table[f"robocache/{key}"], expected[key])
    for stream in made.spec.vectors:
        if stream.rows:
            ages = table[f"robocache/sample_age_ms/{stream.name}"]
            assert np.array_equal(table[f"observation/{stream.name}"], expected[stream.name])
            assert np.array_equal(ages, expected[f"sample_age_ms.{stream.name}"])


def check_media(stream: StreamSpec, media: str, values: np.ndarray, expected: Rows, stored: dict[str, Any]) -> None:
    if stream.voxels:
        assert np.array_equal(values, expected[stream.name])
    elif expected[stream.name].dtype != np.uint8:  # depth, (C, H, W)
        assert np.array_equal(np.moveaxis(values, 1, -1), expected[stream.name])
    elif media == "image":
        assert np.array_equal(values, expected[stream.name])
    else:
        files = stored[f"steps/observation/{stream.name}"]
        assert all(np.array_equal(image, picture(bytes(file))) for image, file in zip(values, files, strict=True))
        assert close(values, expected[stream.name])
