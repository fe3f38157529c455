"""TFDS datasets of TFRecord files, such as those of Open X-Embodiment (RLDS), read without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.tfrecord.framing import RECORD_BYTES, read_records
from robocache_ros.tfrecord.tfds_features import TfdsFeature, features_of, read_example
from robocache_ros.untrusted_files import file_below, filled, path_below, read_bytes

JSON_BYTES = 64 << 20  # limit of dataset_info.json and of features.json
MAX_SHARDS = 100_000


@dataclass(frozen=True)
class TfdsSplit:
    """A split: its files, and the number of records of each."""

    name: str
    files: tuple[Path, ...]
    lengths: tuple[int, ...]


class TfdsDataset:
    """A dataset in a folder with dataset_info.json and features.json, usually `<name>/<version>`.

    Attributes:
        name, version: of the dataset.
        features: the features of a record.
        splits: the splits by name. Their files are not opened before they are read, and may be missing.

    Errors:
        RoboCacheError: the folder has no such dataset, or its files are malformed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) if isinstance(folder, str) else folder
        info = _json(self.folder, "dataset_info.json")
        self.features: tuple[TfdsFeature, ...] = features_of(_json(self.folder, "features.json"))
        try:
            self.name, self.version = str(info["name"]), str(info["version"])
            kind = str(info.get("fileFormat", "tfrecord"))
            if kind != "tfrecord":
                raise RoboCacheError(f"{printable(self.folder)}: its files are {kind}; only tfrecord is read")
            self.splits = {split["name"]: self._split(split) for split in info["splits"]}
        except RoboCacheError:
            raise
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RoboCacheError(
                f"{printable(self.folder)}: dataset_info.json is malformed ({printable(error, 60)}); check the file"
            ) from None

    def episodes(self, split: str, *, limit: int = RECORD_BYTES) -> Iterator[dict[str, Any]]:
        """Yield the values of each record of a split, in order; see `tfds_features.read_example`.

        Args:
            split: its name.
            limit: maximum size of a record in bytes.

        Errors:
            RoboCacheError: there is no such split; a file is missing, or has another number of records than
                dataset_info.json says; a record is damaged. The message names the file and the record.
        """
        if split not in self.splits:
            raise RoboCacheError(f"{printable(split, 40)}: no such split; there are {', '.join(self.splits)}")
        for path, length in zip(self.splits[split].files, self.splits[split].lengths, strict=True):
            if not path.exists():
                raise RoboCacheError(f"{printable(path)}: not there, but a file of split {split}; get the file")
            count = 0
            for index, record in enumerate(read_records(file_below(self.folder, path.name), limit=limit)):
                try:
                    example = read_example(record, self.features)
                except RoboCacheError as error:
                    raise RoboCacheError(f"{printable(path)}: record {index}: {error}") from None
                yield example
                count = index + 1
            if count != length:
                raise RoboCacheError(f"{printable(path)}: {count:,} records, not {length:,}; get the file again")

    def _split(self, told: dict[str, Any]) -> TfdsSplit:
        lengths = tuple(int(length) for length in told.get("shardLengths", ()))
        if min(lengths, default=0) < 0:
            raise ValueError(f"a file of {min(lengths)} records")
        if len(lengths) > MAX_SHARDS:
            raise RoboCacheError(f"{printable(self.folder)}: more than {MAX_SHARDS:,} files; check dataset_info.json")
        template = told.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        names = [_file_name(template, self.name, told["name"], index, len(lengths)) for index in range(len(lengths))]
        if any(Path(name).name != name for name in names):
            raise ValueError("a file is not in the folder of the dataset")
        return TfdsSplit(str(told["name"]), tuple(path_below(self.folder, name) for name in names), lengths)


def _file_name(template: str, dataset: str, split: str, index: int, count: int) -> str:
    values = {"DATASET": dataset, "SPLIT": split, "FILEFORMAT": "tfrecord"}
    values |= {
        "SHARD_INDEX": f"{index:05d}",
        "NUM_SHARDS": f"{count:05d}",
        "SHARD_X_OF_Y": f"{index:05d}-of-{count:05d}",
    }
    return filled(template, **values)


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.exists():
        raise RoboCacheError(f"{printable(path)}: cannot be read; give the folder of a TFDS dataset")
    try:
        if path.stat().st_size > JSON_BYTES:
            raise RoboCacheError(f"{printable(path)}: more than {JSON_BYTES:,} bytes; check the file")
        found = json.loads(read_bytes(file_below(folder, name)))
    except RoboCacheError:
        raise
    except OSError:
        raise RoboCacheError(f"{printable(path)}: cannot be read; give the folder of a TFDS dataset") from None
    except (ValueError, RecursionError) as error:
        raise RoboCacheError(f"{printable(path)}: not JSON ({printable(error, 60)}); check the file") from None
    if not isinstance(found, dict):
        raise RoboCacheError(f"{printable(path)}: not a JSON object; check the file")
    return found
