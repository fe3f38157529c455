"""Validation of RLDS datasets in the files of TFDS."""

from __future__ import annotations

import itertools
import math
import tempfile
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
    TickRows,
    check_finite,
    check_first_and_last,
    check_ticks,
    compare,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.rlds import schema
from robocache_ros.formats.rlds.tfrecord import Values, parse_example, read_records
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.untrusted_files import filled

ARRAY_BYTES = 256 << 20

Features = dict[str, dict[str, Any]]  # key of the record -> the entry in features.json


class RldsCheck:
    """Reads every record of an RLDS dataset."""

    title = "RLDS"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder, or a folder <name>/<version> in it, has dataset_info.json."""
        return bool(self._folders(dataset))

    def _folders(self, dataset: Path) -> list[Path]:
        found = [path.parent for level in ("", "*/", "*/*/") for path in dataset.glob(level + schema.INFO)]
        return [folder for folder in found if (folder / schema.FEATURES).is_file()]

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: one of the JSON files cannot be used.
        """
        for folder in self._folders(findings.dataset):
            inner = "" if folder == findings.dataset else f"{folder.relative_to(findings.dataset).as_posix()}/"
            info = read_json(findings.dataset, inner + schema.INFO)
            features = _features(read_json(findings.dataset, inner + schema.FEATURES))
            listed = set()
            with tempfile.TemporaryDirectory(prefix="robocache-validate-") as values:
                own = None
                with findings.reading(inner + PROVENANCE):
                    own = _OwnEpisodes.of(findings, inner, info, features, Path(values))
                for split in info.get("splits") or []:
                    listed |= self._check_split(findings, inner, info, split, features, own)
                if own is not None:
                    with (
                        findings.reading(inner + schema.STATISTICS, KeyError, TypeError, ValueError),
                        closing(own.columns),
                    ):
                        own.check_dataset()
            for path in sorted(folder.glob("*tfrecord*")):
                findings.check(path.name in listed, inner + path.name, f"no split of {schema.INFO} has this file")

    def _check_split(
        self,
        findings: Findings,
        inner: str,
        info: dict[str, Any],
        split: dict[str, Any],
        features: Features,
        own: _OwnEpisodes | None,
    ) -> set[str]:
        """Check the files of a split; return their names."""
        lengths = [int(length) for length in split.get("shardLengths") or []]
        where = f"{inner}{schema.INFO}, split {printable(split.get('name'), 30)}"
        findings.check(bool(lengths), where, "has no files")
        names = set()
        total: int | None = 0
        for index, length in enumerate(lengths):
            name = filled(
                split.get("filepathTemplate") or schema.TEMPLATE,
                DATASET=info.get("name"),
                SPLIT=split.get("name"),
                FILEFORMAT=info.get("fileFormat", "tfrecord"),
                SHARD_INDEX=f"{index:05d}",
                NUM_SHARDS=f"{len(lengths):05d}",
                SHARD_X_OF_Y=f"{index:05d}-of-{len(lengths):05d}",
            )
            names.add(name)
            size = self._check_shard(findings, inner + name, length, features, own)
            total = None if total is None or size is None else total + size
        told = split.get("numBytes")
        if total is not None:
            findings.check(
                str(told) == str(total), where, f"numBytes is {printable(told, 20)}; the records have {total}"
            )
        return names

    def _check_shard(
        self, findings: Findings, name: str, length: int, features: Features, own: _OwnEpisodes | None
    ) -> int | None:
        """Check a file of records; return the bytes of its records, None if it cannot be read to its end."""
        records = size = 0
        try:
            for record in read_records(file_in(findings.dataset, name)):
                self._check_episode(findings, f"{name}, record {records}", parse_example(record), features, own)
                records += 1
                size += len(record)
        except RoboCacheError as error:
            findings.add(name, str(error).rpartition(f"{Path(name).name}: ")[2])
            return None
        findings.check(records == length, name, f"{records} records; {schema.INFO} says {length}")
        findings.counted["episodes"] += records
        return size

    def _check_episode(
        self,
        findings: Findings,
        where: str,
        record: dict[str, Values],
        features: Features,
        own: _OwnEpisodes | None,
    ) -> None:
        for key in sorted(set(record) - set(features)):
            findings.add(where, f"{printable(key, 60)} is not in {schema.FEATURES}")
        steps: set[int] = set()
        arrays: dict[str, NDArray[Any]] = {}
        for key, feature in features.items():
            if key not in record:
                findings.add(where, f"{printable(key, 60)} is missing")
                continue
            values = record[key]
            with findings.reading(f"{where}, {key}", ValueError, TypeError):
                count = self._check_feature(findings, f"{where}, {key}", feature, values, arrays, key)
                if key.startswith(schema.STEPS):
                    steps.add(count)
        if not findings.check(len(steps) <= 1, where, f"its features have different numbers of steps: {sorted(steps)}"):
            return
        findings.counted["rows"] += sum(steps)
        flags = {
            n: arrays[schema.STEPS + n].reshape(-1) != 0 for n in ("is_first", "is_last") if schema.STEPS + n in arrays
        }
        check_first_and_last(findings, where, flags)
        if own is not None:
            with findings.reading(where, KeyError, ValueError, TypeError, UnicodeDecodeError):
                own.check_episode(where, record, arrays)
        elif schema.TICK in arrays:
            self._check_grid(findings, where, arrays[schema.TICK].reshape(-1))

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
            if (feature.get("tensor") or {}).get("encoding") == "zlib":
                self._check_arrays(findings, where, feature, values)
            findings.counted["byte strings"] += len(values)
            return len(values)
        shape = _shape(feature)
        size = math.prod(shape)
        if size == 0 or len(values) % size:
            raise ValueError(f"{len(values)} numbers are not steps of shape {list(shape)}")
        table = values.reshape(-1, *shape)
        dtype = str((feature.get("tensor") or {}).get("dtype", ""))
        same = not dtype or (table.dtype.kind == "f") == ("float" in dtype)
        findings.check(same, where, f"has {table.dtype.name} numbers; {schema.FEATURES} says {printable(dtype, 20)}")
        check_finite(findings, where, table)
        findings.counted["arrays"] += 1
        arrays[key] = table
        return len(table)

    def _check_arrays(self, findings: Findings, where: str, feature: dict[str, Any], values: list[memoryview]) -> None:
        """Check that each array has the bytes of its shape."""
        size = math.prod(_shape(feature)) * np.dtype(feature["tensor"]["dtype"]).itemsize
        if size > ARRAY_BYTES:
            findings.skip(f"{where}: its arrays have more than {ARRAY_BYTES >> 20} MiB")
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
            if not findings.check(complete, where, f"step {step} is not {size} bytes, compressed with zlib"):
                return

    def _check_images(self, findings: Findings, where: str, image: dict[str, Any], values: list[memoryview]) -> None:
        dimensions = [int(side) for side in (image.get("shape") or {}).get("dimensions", [])]
        last: memoryview | bytes = b""
        for step, data in enumerate(values):
            if data == last:
                continue
            last = data
            found = image_size(bytes(data), decode=findings.decode)
            if len(dimensions) == 3 and min(dimensions) > 0 and found != tuple(dimensions[:2]):
                findings.add(where, f"step {step} is {found[0]}x{found[1]}; {schema.FEATURES} says {dimensions[:2]}")
                return
        findings.counted["images"] += len(values)


class _OwnEpisodes:
    """Checks the episodes of a dataset that this package wrote.

    Args:
        findings: collects what is wrong.
        inner: the folder of the dataset, with a slash.
        info: the contents of dataset_info.json.
        features: of a record.
        exported: what the provenance states.
        values: an empty folder, for the values whose statistics are stored.
    """

    def __init__(
        self,
        findings: Findings,
        inner: str,
        info: dict[str, Any],
        features: Features,
        exported: ExportedRows,
        values: Path,
    ) -> None:
        self._findings, self._inner, self._exported = findings, inner, exported
        self.columns = ColumnFiles(values)
        self._episodes = self._rows = 0
        for key, role in schema.ROLES.items():
            if labels := exported.labels(role):
                told = str(features.get(key, {}).get("description")).split(", ")
                exported.check_names(key, told, labels, where=inner + schema.FEATURES)
        for key in (schema.STAMP, schema.VALID, schema.AGE):
            names = str(features.get(key, {}).get("description")).rpartition(": ")[2].rstrip(".").split(", ")
            exported.check_names(key, names, exported.layout.names, where=inner + schema.FEATURES)
        described = f"Robot {exported.robot}: {'; '.join(exported.tasks[:20])}"
        exported.check_value(inner + schema.INFO, "description", info.get("description"), described)

    @classmethod
    def of(
        cls, findings: Findings, inner: str, info: dict[str, Any], features: Features, values: Path
    ) -> _OwnEpisodes | None:
        """Return the checks; None for a dataset of another tool."""
        if not (findings.dataset / inner / PROVENANCE).is_file():
            own = any(key.startswith(schema.OWN) for key in features)
            text = "is missing; without it readers do not know the streams"
            findings.check(not own, inner + PROVENANCE, text)
            return None
        exported = ExportedRows(findings, inner + PROVENANCE, read_json(findings.dataset, inner + PROVENANCE))
        return cls(findings, inner, info, features, exported, values)

    def check_episode(self, where: str, record: dict[str, Values], arrays: dict[str, NDArray[Any]]) -> None:
        """Check the next episode."""
        exported, number = self._exported, self._episodes
        self._episodes += 1
        ticks, stamps, valid, ages = (arrays[key] for key in (schema.TICK, schema.STAMP, schema.VALID, schema.AGE))
        tables = {key: arrays.get(key) for key in schema.ROLES}
        values = {
            name: part for key, role in schema.ROLES.items() for name, part in exported.parts(role, tables[key]).items()
        }
        rows = TickRows(ticks.reshape(-1), stamps, valid, ages, values)
        exported.check_episode(where, number, rows)
        if rows.valid.shape != (len(ticks), len(exported.layout.names)):
            return
        for key, role in schema.ROLES.items():
            if (table := tables[key]) is not None and table.shape == (filled := exported.filled(rows, role)).shape:
                self.columns.append({key: np.where(filled, table, np.float32(np.nan))})
        self._rows += len(ticks)
        for stream in exported.spec.vectors:
            if stream.rows:
                of_samples = arrays[schema.SAMPLE_AGES + stream.name]
                exported.check_window(where, rows, stream, of_samples)
        for stream in exported.spec.media:
            images = record.get(schema.OBSERVATION + stream.name)
            if isinstance(images, list) and len(images) == len(ticks):
                same = [False, *(one == other for one, other in itertools.pairwise(images))]
                exported.check_media(where, rows, stream, np.array(same))
        self._check_outcome(where, number, rows, record, arrays)

    def _check_outcome(
        self, where: str, number: int, rows: TickRows, record: dict[str, Values], arrays: dict[str, NDArray[Any]]
    ) -> None:
        exported = self._exported
        exported.check_rewards(where, number, rows, arrays[schema.REWARD])
        self._findings.check(
            bool((arrays[schema.STEPS + "discount"] == 1).all()), where, "discount is not 1 in each step"
        )
        told = int(arrays[schema.EPISODE_INDEX].reshape(-1)[0])
        exported.check_value(where, schema.EPISODE_INDEX, told, number)
        if number < len(exported.episodes):
            task, success = exported.episodes[number].task, exported.episodes[number].success
            texts = {bytes(text).decode() for text in record[schema.LANGUAGE]}
            wrong = min(texts - {task}, default=task)
            exported.check_value(where, "language_instruction", wrong, task)
            code = int(arrays[schema.SUCCESS].reshape(-1)[0])
            exported.check_value(where, schema.SUCCESS, code, -1 if success is None else int(success))
            ends = arrays[schema.STEPS + "is_terminal"].reshape(-1) != 0
            wanted = (np.arange(len(ends)) == len(ends) - 1) & bool(success)
            off = ends != wanted
            text = f"is_terminal is {ends[off.argmax()]} in step {off.argmax()}; it marks the last one of a success"
            self._findings.check(not off.any(), where, text)

    def check_dataset(self) -> None:
        """Compare the number of episodes and the statistics."""
        where, exported = self._inner + schema.STATISTICS, self._exported
        exported.check_count(self._episodes, self._inner + schema.INFO)
        stored = read_json(self._findings.dataset, where)
        exported.check_value(where, "num_transitions", stored["num_transitions"], self._rows)
        exported.check_value(where, "num_trajectories", stored["num_trajectories"], self._episodes)
        for name, key, role in (("action", schema.ACTION, "action"), ("proprio", schema.STATE, "observation")):
            if exported.labels(role) and self._rows:
                values = self.columns.stats(key)
                values |= {"p01": values["q01"], "p99": values["q99"]}
                compare(self._findings, f"{where}: {name}", stored.get(name), values, exact=True)


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
        raise RoboCacheError(f"{schema.FEATURES}: not the features of TFDS ({printable(error, 40)})") from None


def _shape(feature: dict[str, Any]) -> tuple[int, ...]:
    shape = (feature.get("tensor") or {}).get("shape") or {}
    return tuple(int(side) for side in shape.get("dimensions", []))


RLDS_CHECK = RldsCheck()
