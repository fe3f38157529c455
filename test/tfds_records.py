"""The values of all features of the records of a TFDS dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.read import TfdsDataset, values_of
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.untrusted_files import file_below


def tfds_records(folder: Path, split: str = "train") -> Iterator[dict[str, Any]]:
    dataset = TfdsDataset(folder)
    for path, length in zip(dataset.splits[split].files, dataset.splits[split].lengths, strict=True):
        records = list(read_records(file_below(folder, path.name)))
        assert len(records) == length
        for number, record in enumerate(records):
            try:
                yield values_of(parse_example(record), dataset.features)
            except RoboCacheError as error:
                raise RoboCacheError(f"{path}: record {number}: {error}") from None
