"""Validation of RLDS datasets in the files of TFDS."""

from __future__ import annotations

import glob
import itertools
import math
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import (
    ColumnFiles,
    ExportedRows,
    Findings,
    FormatCheck,
    check_finite,
    check_first_and_last,
    check_ticks,
    compare,
    exported_rows,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.read import PROVENANCE
from robocache_ros.formats.rlds import read as rlds
from robocache_ros.formats.rlds.tfrecord import Values, parse_example, read_records

ARRAY_BYTES = 256 << 20

Features = dict[str, dict[str, Any]]  # key of the record -> the entry in features.json


def _folders(dataset: Path) -> list[Path]:
    """Return the folder, and the folders <name>/<version> in it, that have dataset_info.json."""
    found = [path.parent for level in ("", "*/", "*/*/") for path in dataset.glob(level + rlds.INFO)]
    return [folder for folder in found if (folder / rlds.FEATURES).is_file()]


def _check(findings: Findings) -> None:
    for folder in _folders(findings.dataset):
        inner = "" if folder == findings.dataset else f"{folder.relative_to(findings.dataset).as_posix()}/"
        with closing(ColumnFiles()) as columns:
            _Records(findings, inner, columns).check()


class _Records:
    """Checks the records of a dataset, and of one that this package wrote its own features."""

    def __init__(self, findings: Findings, inner: str, columns: ColumnFiles) -> None:
        self.findings, self._inner, self._columns = findings, inner, columns
        self._info: dict[str, Any] = read_json(findings.dataset, inner + rlds.INFO)
        self._features = _features(read_json(findings.dataset, inner + rlds.FEATURES))
        self._exported: ExportedRows | None = None
        self._episodes = self._rows = 0  # of those that this package wrote

    def check(self) -> None:
        """Report everything that is wrong."""
        findings, inner = self.findings, self._inner
        is_own = any(key.startswith(rlds.OWN) for key in self._features)
        self._exported = exported_rows(findings, inner + PROVENANCE, is_own=is_own)
        if self._exported is not None:
            with findings.reading(inner + PROVENANCE):
                self._check_described(self._exported)
        listed = [inner + name for split in self._info.get("splits") or [] for name in self._check_split(split)]
        if self._exported is not None:
            with findings.reading(inner + rlds.STATISTICS):
                self._check_dataset(self._exported)
        findings.check_listed(f"{glob.escape(inner)}*tfrecord*", listed, f"no split of {rlds.INFO} has this file")

    def _check_split(self, split: dict[str, Any]) -> list[str]:
        """Check the files of a split; return their names."""
        lengths = [int(length) for length in split.get("shardLengths") or []]
        where = f"{self._inner}{rlds.INFO}, split {printable(split.get('name'), 30)}"
        self.findings.check(bool(lengths), where, "has no files")
        template, kind = split.get("filepathTemplate"), self._info.get("fileFormat", "tfrecord")
        names = [
            rlds.file_name(template, self._info.get("name"), split.get("name"), kind, index, len(lengths))
            for index in range(len(lengths))
        ]
        sizes = [self._check_shard(self._inner + name, of_name) for name, of_name in zip(names, lengths, strict=True)]
        if None not in sizes:
            stated, total = split.get("numBytes"), sum(filter(None, sizes))
            text = f"numBytes is {printable(stated, 20)}; the records have {total}"
            self.findings.check(str(stated) == str(total), where, text)
        return names

    def _check_shard(self, name: str, length: int) -> int | None:
        """Check a file of records; return the bytes of its records, None if it cannot be read to its end."""
        records = size = 0
        try:
            for record in read_records(file_in(self.findings.dataset, name)):
                self._check_episode(f"{name}, record {records}", parse_example(record))
                records += 1
                size += len(record)
        except RoboCacheError as error:
            self.findings.add(name, str(error).rpartition(f"{Path(name).name}: ")[2])
            return None
        self.findings.check(records == length, name, f"{records} records; {rlds.INFO} says {length}")
        self.findings.counted["episodes"] += records
        return size

    def _check_episode(self, where: str, record: dict[str, Values]) -> None:
        findings = self.findings
        for key in sorted(set(record) - set(self._features)):
            findings.add(where, f"{printable(key, 60)} is not in {rlds.FEATURES}")
        steps: set[int] = set()
        arrays: dict[str, NDArray[Any]] = {}
        for key, feature in self._features.items():
            if key not in record:
                findings.add(where, f"{printable(key, 60)} is missing")
                continue
            with findings.reading(f"{where}, {key}"):
                count = self._check_feature(f"{where}, {key}", feature, record[key], arrays, key)
                if key.startswith(rlds.STEPS):
                    steps.add(count)
        if not findings.check(len(steps) <= 1, where, f"its features have different numbers of steps: {sorted(steps)}"):
            return
        findings.counted["rows"] += sum(steps)
        flags = {name: rlds.STEPS + name for name in ("is_first", "is_last")}
        found = {name: arrays[key].reshape(-1) != 0 for name, key in flags.items() if key in arrays}
        check_first_and_last(findings, where, found)
        if self._exported is not None:
            with findings.reading(where):
                self._check_own(self._exported, where, record, arrays)
        elif len(ticks := arrays.get(rlds.TICK, np.zeros(0)).reshape(-1)) > 1:
            rate_hz = round((len(ticks) - 1) * 1e9 / max(int(ticks[-1] - ticks[0]), 1))
            check_ticks(findings, f"{where}, tick_ns", ticks, max(rate_hz, 1))

    def _check_feature(
        self,
        where: str,
        feature: dict[str, Any],
        values: Values,
        arrays: dict[str, NDArray[Any]],
        key: str,
    ) -> int:
        """Check the values of a feature; return their number of steps."""
        if isinstance(values, list):
            if "image" in feature:
                self._check_images(where, feature["image"], values)
            if (feature.get("tensor") or {}).get("encoding") == "zlib":
                self._check_arrays(where, feature, values)
            self.findings.counted["byte strings"] += len(values)
            return len(values)
        shape = _shape(feature)
        size = math.prod(shape)
        if size == 0 or len(values) % size:
            raise ValueError(f"{len(values)} numbers are not steps of shape {list(shape)}")
        table = values.reshape(-1, *shape)
        dtype = str((feature.get("tensor") or {}).get("dtype", ""))
        same = not dtype or (table.dtype.kind == "f") == ("float" in dtype)
        self.findings.check(same, where, f"has {table.dtype.name} numbers; {rlds.FEATURES} says {printable(dtype, 20)}")
        check_finite(self.findings, where, table)
        self.findings.counted["arrays"] += 1
        arrays[key] = table
        return len(table)

    def _check_arrays(self, where: str, feature: dict[str, Any], values: list[memoryview]) -> None:
        """Check that each array has the bytes of its shape."""
        size = math.prod(_shape(feature)) * np.dtype(feature["tensor"]["dtype"]).itemsize
        if size > ARRAY_BYTES:
            self.findings.skip(f"{where}: its arrays have more than {ARRAY_BYTES >> 20} MiB")
            return
        last: memoryview | bytes = b""
        for step, data in enumerate(values):
            if data == last:
                continue
            last, unpacker = data, zlib.decompressobj()
            try:
                complete = len(unpacker.decompress(data, size + 1)) == size and unpacker.eof
            except zlib.error:
                complete = False
            if not self.findings.check(complete, where, f"step {step} is not {size} bytes, compressed with zlib"):
                return

    def _check_images(self, where: str, image: dict[str, Any], values: list[memoryview]) -> None:
        dimensions = [int(side) for side in (image.get("shape") or {}).get("dimensions", [])]
        last: memoryview | bytes = b""
        for step, data in enumerate(values):
            if data == last:
                continue
            last = data
            found = image_size(bytes(data), decode=self.findings.decode)
            if len(dimensions) == 3 and min(dimensions) > 0 and found != tuple(dimensions[:2]):
                self.findings.add(where, f"step {step} is {found[0]}x{found[1]}; {rlds.FEATURES} says {dimensions[:2]}")
                return
        self.findings.counted["images"] += len(values)

    def _check_described(self, exported: ExportedRows) -> None:
        """Compare what the metadata state of the dataset with the provenance."""
        for key, role in rlds.ROLES.items():
            if labels := exported.labels(role):
                stated = str(self._features.get(key, {}).get("description")).split(", ")
                exported.check_names(key, stated, labels, where=self._inner + rlds.FEATURES)
        for key in (rlds.STAMP, rlds.VALID, rlds.AGE):
            names = str(self._features.get(key, {}).get("description")).rpartition(": ")[2].rstrip(".").split(", ")
            exported.check_names(key, names, exported.layout.names, where=self._inner + rlds.FEATURES)
        described = f"Robot {exported.robot}: {'; '.join(exported.tasks[:20])}"
        exported.check_value(self._inner + rlds.INFO, "description", self._info.get("description"), described)

    def _check_own(
        self, exported: ExportedRows, where: str, record: dict[str, Values], arrays: dict[str, NDArray[Any]]
    ) -> None:
        """Check an episode that this package wrote."""
        number = self._episodes
        self._episodes += 1
        names = [name for name in exported.columns if not name.startswith("mask.")]
        columns = {name: arrays[rlds.OWN + name.replace(".", "/", 1)] for name in names}
        tables = {role: arrays.get(key) for key, role in rlds.ROLES.items()}
        images = {stream.name: record.get(rlds.OBSERVATION + stream.name) for stream in exported.spec.media}
        repeated = {
            name: np.array([False, *(one == other for one, other in itertools.pairwise(of_stream))])
            for name, of_stream in images.items()
            if isinstance(of_stream, list) and len(of_stream) == len(columns["tick_ns"])
        }
        rows = exported.tick_rows(columns, exported.split(tables), repeated=repeated, rewards=arrays[rlds.REWARD])
        if not exported.check_episode(where, number, rows):
            return
        self._columns.append(exported.with_nan(rows, tables))
        self._rows += len(rows.ticks_ns)
        discount = bool((arrays[rlds.STEPS + "discount"] == 1).all())
        self.findings.check(discount, where, "discount is not 1 in each step")
        stated = int(arrays[rlds.EPISODE_INDEX].reshape(-1)[0])
        exported.check_value(where, rlds.EPISODE_INDEX, stated, number)
        if number < len(exported.episodes):
            task, success = exported.episodes[number].task, exported.episodes[number].success
            texts = {bytes(text).decode() for text in record[rlds.LANGUAGE]}
            exported.check_value(where, "language_instruction", min(texts - {task}, default=task), task)
            code = int(arrays[rlds.SUCCESS].reshape(-1)[0])
            exported.check_value(where, rlds.SUCCESS, code, -1 if success is None else int(success))
            ends = arrays[rlds.STEPS + "is_terminal"].reshape(-1) != 0
            off = ends != ((np.arange(len(ends)) == len(ends) - 1) & bool(success))
            text = f"is_terminal is {ends[off.argmax()]} in step {off.argmax()}; it marks the last one of a success"
            self.findings.check(not off.any(), where, text)

    def _check_dataset(self, exported: ExportedRows) -> None:
        """Compare the number of episodes and the statistics."""
        where = self._inner + rlds.STATISTICS
        exported.check_count(self._episodes, self._inner + rlds.INFO)
        stored = read_json(self.findings.dataset, where)
        exported.check_value(where, "num_transitions", stored["num_transitions"], self._rows)
        exported.check_value(where, "num_trajectories", stored["num_trajectories"], self._episodes)
        for name, role in (("action", "action"), ("proprio", "observation")):
            if exported.labels(role) and self._rows:
                values = self._columns.stats(role)
                values |= {"p01": values["q01"], "p99": values["q99"]}
                compare(self.findings, f"{where}: {name}", stored.get(name), values, exact=True)


def _features(raw: dict[str, Any], prefix: str = "") -> Features:
    """Return the features of a record by its keys, nested dictionaries and steps with slashes."""
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
        raise RoboCacheError(f"{rlds.FEATURES}: not the features of TFDS ({printable(error, 40)})") from None


def _shape(feature: dict[str, Any]) -> tuple[int, ...]:
    shape = (feature.get("tensor") or {}).get("shape") or {}
    return tuple(int(side) for side in shape.get("dimensions", []))


RLDS_CHECK = FormatCheck("RLDS", lambda dataset: bool(_folders(dataset)), _check)
