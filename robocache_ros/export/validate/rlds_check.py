"""Validation of RLDS datasets in the files of TFDS."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.validate.array_values import check_finite, check_first_and_last, check_ticks, image_size
from robocache_ros.export.validate.findings import Findings, file_in, read_json
from robocache_ros.tfrecord.example import Values, parse_example
from robocache_ros.tfrecord.framing import read_records
from robocache_ros.untrusted_files import filled

INFO, FEATURES = "dataset_info.json", "features.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
STEPS = "steps/"

Features = dict[str, dict[str, Any]]  # key of the record -> the entry in features.json


class RldsCheck:
    """Reads every record of an RLDS dataset."""

    title = "RLDS"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder, or a folder <name>/<version> in it, has dataset_info.json."""
        return bool(self._folders(dataset))

    def _folders(self, dataset: Path) -> list[Path]:
        found = [path.parent for level in ("", "*/", "*/*/") for path in dataset.glob(level + INFO)]
        return [folder for folder in found if (folder / FEATURES).is_file()]

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: one of the JSON files cannot be used.
        """
        for folder in self._folders(findings.dataset):
            inner = "" if folder == findings.dataset else f"{folder.relative_to(findings.dataset).as_posix()}/"
            info = read_json(findings.dataset, inner + INFO)
            features = _features(read_json(findings.dataset, inner + FEATURES))
            listed = set()
            for split in info.get("splits") or []:
                listed |= self._check_split(findings, inner, info, split, features)
            for path in sorted(folder.glob("*tfrecord*")):
                findings.check(path.name in listed, inner + path.name, f"no split of {INFO} has this file")

    def _check_split(
        self, findings: Findings, inner: str, info: dict[str, Any], split: dict[str, Any], features: Features
    ) -> set[str]:
        """Check the files of a split; return their names."""
        lengths = [int(length) for length in split.get("shardLengths") or []]
        where = f"{inner}{INFO}, split {printable(split.get('name'), 30)}"
        findings.check(bool(lengths), where, "has no files")
        names = set()
        total: int | None = 0
        for index, length in enumerate(lengths):
            name = filled(
                split.get("filepathTemplate") or TEMPLATE,
                DATASET=info.get("name"),
                SPLIT=split.get("name"),
                FILEFORMAT=info.get("fileFormat", "tfrecord"),
                SHARD_INDEX=f"{index:05d}",
                NUM_SHARDS=f"{len(lengths):05d}",
                SHARD_X_OF_Y=f"{index:05d}-of-{len(lengths):05d}",
            )
            names.add(name)
            size = self._check_shard(findings, inner + name, length, features, info)
            total = None if total is None or size is None else total + size
        told = split.get("numBytes")
        if total is not None:
            findings.check(
                str(told) == str(total), where, f"numBytes is {printable(told, 20)}; the records have {total}"
            )
        return names

    def _check_shard(
        self, findings: Findings, name: str, length: int, features: Features, info: dict[str, Any]
    ) -> int | None:
        """Check a file of records; return the bytes of its records, None if it cannot be read to its end."""
        records = size = 0
        try:
            for record in read_records(file_in(findings.dataset, name)):
                self._check_episode(findings, f"{name}, record {records}", parse_example(record), features)
                records += 1
                size += len(record)
        except RoboCacheError as error:
            findings.add(name, str(error).rpartition(f"{Path(name).name}: ")[2])
            return None
        findings.check(records == length, name, f"{records} records; {INFO} says {length}")
        findings.counted["episodes"] += records
        return size

    def _check_episode(self, findings: Findings, where: str, record: dict[str, Values], features: Features) -> None:
        for key in sorted(set(record) - set(features)):
            findings.add(where, f"{printable(key, 60)} is not in {FEATURES}")
        steps: set[int] = set()
        arrays: dict[str, NDArray[Any]] = {}
        for key, feature in features.items():
            if key not in record:
                findings.add(where, f"{printable(key, 60)} is missing")
                continue
            values = record[key]
            with findings.reading(f"{where}, {key}", ValueError, TypeError):
                count = self._check_feature(findings, f"{where}, {key}", feature, values, arrays, key)
                if key.startswith(STEPS):
                    steps.add(count)
        if not findings.check(len(steps) <= 1, where, f"its features have different numbers of steps: {sorted(steps)}"):
            return
        findings.counted["rows"] += sum(steps)
        flags = {n: arrays[STEPS + n].reshape(-1) != 0 for n in ("is_first", "is_last") if STEPS + n in arrays}
        check_first_and_last(findings, where, flags)
        if STEPS + "robocache/tick_ns" in arrays:
            self._check_grid(findings, where, arrays[STEPS + "robocache/tick_ns"].reshape(-1))

    def _check_grid(self, findings: Findings, where: str, ticks: NDArray[np.int64]) -> None:
        if len(ticks) > 1:
            rate_hz = round((len(ticks) - 1) * 1e9 / max(int(ticks[-1] - ticks[0]), 1))
            check_ticks(findings, f"{where}, tick_ns", ticks, max(rate_hz, 1))

    def _check_feature(
        self,
        findings: Findings,
        where: str,
        feature: dict[str, Any],
        values: Values,
        arrays: dict[str, NDArray[Any]],
        key: str,
    ) -> int:
        """Check the values of a feature; return their number of steps."""
        if isinstance(values, list):
            if "image" in feature:
                self._check_images(findings, where, feature["image"], values)
            findings.counted["byte strings"] += len(values)
            return len(values)
        shape = _shape(feature)
        size = math.prod(shape)
        if size == 0 or len(values) % size:
            raise ValueError(f"{len(values)} numbers are not steps of shape {list(shape)}")
        table = values.reshape(-1, *shape)
        check_finite(findings, where, table)
        findings.counted["arrays"] += 1
        arrays[key] = table
        return len(table)

    def _check_images(self, findings: Findings, where: str, image: dict[str, Any], values: list[memoryview]) -> None:
        dimensions = [int(side) for side in (image.get("shape") or {}).get("dimensions", [])]
        last: memoryview | bytes = b""
        for step, data in enumerate(values):
            if data == last:
                continue
            last = data
            found = image_size(bytes(data), decode=findings.decode)
            if len(dimensions) == 3 and min(dimensions) > 0 and found != tuple(dimensions[:2]):
                findings.add(where, f"step {step} is {found[0]}x{found[1]}; {FEATURES} says {dimensions[:2]}")
                return
        findings.counted["images"] += len(values)


def _features(raw: dict[str, Any], prefix: str = "") -> Features:
    """Return the features of a record by its keys, nested dictionaries and steps with slashes.

    Errors:
        RoboCacheError: features.json has another structure.
    """
    try:
        found: Features = {}
        for name, feature in raw["featuresDict"]["features"].items():
            inner = feature["sequence"]["feature"] if "sequence" in feature and not prefix else feature
            if "featuresDict" in inner:
                found.update(_features(inner, f"{prefix}{name}/"))
            else:
                found[prefix + name] = feature
        return found
    except (KeyError, TypeError, AttributeError) as error:
        raise RoboCacheError(f"{FEATURES}: not the features of TFDS ({printable(error, 40)})") from None


def _shape(feature: dict[str, Any]) -> tuple[int, ...]:
    shape = (feature.get("tensor") or {}).get("shape") or {}
    return tuple(int(side) for side in shape.get("dimensions", []))


RLDS_CHECK = RldsCheck()
