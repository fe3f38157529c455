"""Validation of WebDataset shards."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections import Counter
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
    check_image_statistics,
    compare,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.columns import npy_array
from robocache_ros.formats.schema import BY_STREAM, PROVENANCE
from robocache_ros.formats.webdataset import schema
from robocache_ros.untrusted_files import DatasetFile, given_file, open_file

IMAGES = ("jpg", "jpeg", "png", "webp")


class WebDatasetCheck:
    """Reads every member of the tar files of a dataset."""

    title = "WebDataset"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether this is a tar file, or a folder of them."""
        if dataset.is_dir():
            return any(dataset.glob("*.tar"))
        return dataset.suffix == ".tar" and dataset.is_file()

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: dataset.json cannot be used.
        """
        folder = findings.dataset
        files = sorted(folder.glob("*.tar")) if folder.is_dir() else [folder]
        index = read_json(folder, schema.INDEX) if folder.is_dir() and (folder / schema.INDEX).is_file() else None
        with closing(ColumnFiles()) as columns:
            own = None
            with findings.reading(PROVENANCE):
                own = _own_samples(findings, index, columns)
            self._check_shards(findings, files, index, own)
            if own is not None:
                with findings.reading(schema.INDEX):
                    own.check_dataset()

    def _check_shards(self, findings: Findings, files: list[Path], index: Any, own: _OwnSamples | None) -> None:
        folder = findings.dataset
        fields: set[str] | None = None
        seen: set[str] = set()
        counts: dict[str, int] = {}
        for path in files:
            shard = _Shard(findings, path.name, fields, seen, own)
            with findings.reading(path.name):
                shard.read(file_in(folder, path.name) if folder.is_dir() else given_file(path))
                counts[path.name] = shard.samples
            fields = shard.fields
        if index is not None:
            stated = {shard["name"]: shard["samples"] for shard in index["shards"]}
            for name, samples in stated.items():
                if (folder / name).is_file():
                    text = f"{counts.get(name, 0)} samples; {schema.INDEX} says {samples}"
                    findings.check(counts.get(name) == samples, name, text)
                else:
                    findings.add(name, f"is missing; it is in {schema.INDEX}")
            total = sum(episode["samples"] for episode in index["episodes"])
            findings.check(
                total == sum(stated.values()), schema.INDEX, f"its episodes have {total} samples, its shards others"
            )
            findings.counted["episodes"] += len(index["episodes"])
        else:
            findings.skip(f"number of samples and of shards: there is no {schema.INDEX}")


class _Shard:
    """Reads one tar file, sample by sample."""

    def __init__(
        self, findings: Findings, name: str, fields: set[str] | None, seen: set[str], own: _OwnSamples | None
    ) -> None:
        self._findings, self._name, self._seen, self._own = findings, name, seen, own
        self._values: dict[str, Any] = {}  # of the sample, by field
        self.fields = fields  # of every sample
        self.samples = 0
        self._key = ""
        self._sample: set[str] = set()

    def read(self, path: DatasetFile) -> None:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if not member.isfile():
                    self._findings.add(self._name, f"{printable(member.name, 60)} is not a file")
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, field = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != self._key:
                    self._end_sample()
                    again = key in self._seen
                    self._findings.check(not again, self._name, f"members of {printable(key, 60)} are not adjacent")
                    self._seen.add(key)
                    self._key = key
                self._sample.add(field)
                self._check_member(archive, member, field)
            self._end_sample()

    def _end_sample(self) -> None:
        if self._sample:
            if self.fields is None:
                self.fields = self._sample
            different = ", ".join(sorted(self.fields ^ self._sample))
            text = f"sample {printable(self._key, 60)} has other fields than the first: {different}"
            self._findings.check(not different, self._name, text)
            self.samples += 1
            if self._own is not None:
                where = f"{self._name}, sample {self._key}"
                with self._findings.reading(where):
                    self._own.add(self._name, self._key, self._values)
            self._findings.counted["rows"] += 1
        self._sample, self._values = set(), {}

    def _check_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, field: str) -> None:
        where = f"{self._name}, {member.name}"
        kind = field.rpartition(".")[2]
        if member.size > schema.MEMBER_BYTES:
            raise RoboCacheError(f"{self._name}: {printable(member.name, 60)} has {member.size:,} bytes")
        file = archive.extractfile(member)
        data = file.read() if file else b""
        if len(data) != member.size:
            raise RoboCacheError(f"{self._name}: ends within {printable(member.name, 60)}")
        with self._findings.reading(where):
            if kind == "npy":
                values = npy_array(data)
                self._values[field] = values
                finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
                self._findings.check(finite, where, "NaN or infinite")
            elif kind == "json":
                self._values[field] = json.loads(data)
            elif kind == "npz":
                self._values[field] = data
                with zipfile.ZipFile(io.BytesIO(data)) as arrays:
                    names = arrays.namelist()
                    usable = (
                        sum(of.file_size for of in arrays.infolist()) <= schema.MEMBER_BYTES and not arrays.testzip()
                    )
                one = names == [schema.ARRAY] or self._own is None
                self._findings.check(one and usable, where, "is not one array, is too large or is damaged")
            elif kind in IMAGES:
                self._values[field] = data
                image_size(data, decode=self._findings.decode)
                self._findings.counted["images"] += 1


class _OwnSamples:
    """Checks the samples of a dataset that this package wrote, episode by episode.

    Args:
        index: the contents of dataset.json.
        exported: what the provenance states.
        columns: for the values whose statistics are stored.
    """

    def __init__(self, findings: Findings, index: dict[str, Any], exported: ExportedRows, columns: ColumnFiles) -> None:
        self._findings, self._index, self._exported, self._columns = findings, index, exported, columns
        self._samples: list[dict[str, Any]] = []  # of the episode
        self._same: dict[str, list[bool]] = {}  # by stream of images, whether each is that of the sample before
        self._last: dict[str, bytes] = {}
        self._episode, self._place = 0, ""
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._ages = [schema.age_field(name) for name in exported.windows]
        self._episodes_of: Counter[str] = Counter()  # by shard

    def add(self, shard: str, key: str, sample: dict[str, Any]) -> None:
        """Take the next sample."""
        where, meta = f"{shard}, sample {key}", sample[schema.META]
        if self._samples and (meta["is_first"] or key[:6] != f"{self._episode:06d}"):
            self._end_episode()
        self._place = self._place or shard
        exported, row = self._exported, len(self._samples)
        self._findings.check(shard == self._place, where, f"its episode begins in {self._place}")
        exported.check_value(where, "its key", key, schema.sample_key(self._episode, row))
        exported.check_value(where, "episode", meta["episode"], self._episode)
        exported.check_value(where, "tick", meta["tick"], row)
        exported.check_value(where, "is_first", meta["is_first"], row == 0)
        if self._episode < len(exported.episodes):
            stated = exported.episodes[self._episode]
            exported.check_value(where, "is_last", meta["is_last"], row == stated.frames - 1)
            exported.check_value(where, "task", meta["task"], stated.task)
            exported.check_value(where, "task_index", meta["task_index"], exported.tasks.index(stated.task))
            exported.check_value(where, "success", meta["success"], stated.success)
        for field, value in sample.items():
            if isinstance(value, np.ndarray):
                kind = self._kinds.setdefault(field, (value.shape, value.dtype.name))
                text = f"{value.dtype.name} {list(value.shape)}; the first sample has {kind[1]} {list(kind[0])}"
                self._findings.check((value.shape, value.dtype.name) == kind, f"{where}, {field}", text)
            elif isinstance(value, bytes):
                stream = field.rpartition(".")[0]
                self._same.setdefault(stream, []).append(self._last.get(stream) == value and row > 0)
                self._last[stream] = value
        for name in BY_STREAM:
            found = list(meta[name])
            exported.check_names(name, found, exported.layout.names, where=where)
        row_times = [meta["tick_ns"], *(value for name in BY_STREAM for value in meta[name].values())]
        kept = {field: sample[field] for field in (*schema.ROLES, *self._ages) if field in sample}
        self._samples.append({**kept, "times": np.array(row_times, np.int64), "reward": float(meta["reward"])})

    def _end_episode(self) -> None:
        exported, samples, number = self._exported, self._samples, self._episode
        where, same = f"{self._place}, episode {number}", self._same
        self._episodes_of[self._place] += 1
        self._episode, self._samples, self._same, self._last, self._place = number + 1, [], {}, {}, ""
        times, streams = _stacked(samples, "times"), len(exported.layout.names)
        if times is None or times.shape[1] != 1 + 3 * streams:
            return  # the samples have other streams, which is reported
        ticks, (stamps, valid, ages) = times[:, 0], np.split(times[:, 1:], 3, axis=1)
        tables = {role: _stacked(samples, field) for field, role in schema.ROLES.items()}
        ages_ms = {name: _stacked(samples, schema.age_field(name)) for name in exported.windows}
        rows = TickRows(
            ticks,
            stamps,
            valid,
            ages,
            exported.split(tables),
            ages_ms={name: of_samples for name, of_samples in ages_ms.items() if of_samples is not None},
            repeated={name: np.array(of_image) for name, of_image in same.items() if len(of_image) == len(ticks)},
            rewards=np.array([sample["reward"] for sample in samples]),
        )
        exported.check_episode(where, number, rows)
        self._columns.append(exported.with_nan(rows, tables))

    def check_dataset(self) -> None:
        """Check the last episode, and the files that describe the dataset."""
        if self._samples:
            with self._findings.reading(f"{self._place}, episode {self._episode}"):
                self._end_episode()
        exported, index = self._exported, self._index
        exported.check_count(self._episode, schema.INDEX)
        exported.check_value(schema.INDEX, "rate_hz", index["rate_hz"], exported.spec.rate_hz)
        for number, (stated, episode) in enumerate(zip(index["episodes"], exported.episodes, strict=False)):
            where = f"{schema.INDEX}, episode {number}"
            exported.check_value(where, "samples", stated["samples"], episode.frames)
            exported.check_value(where, "task", stated["task"], episode.task)
            exported.check_value(where, "success", stated["success"], episode.success)
        for shard in index["shards"]:
            path = self._findings.dataset / shard["name"]
            of_shard = {"episodes": self._episodes_of[shard["name"]]}
            of_shard |= {"bytes": path.stat().st_size} if path.is_file() else {}
            for key, count in of_shard.items():
                text = f"{key} of {shard['name']} is {printable(shard[key], 20)}; the file has {count}"
                self._findings.check(shard[key] == count, schema.INDEX, text)
        stats = read_json(self._findings.dataset, schema.STATS)
        for field, role in schema.ROLES.items():
            if labels := exported.labels(role):
                exported.check_names(f"columns.{field}", index["columns"].get(field), labels, where=schema.INDEX)
                with self._findings.reading(f"{schema.STATS}: {field}"):
                    compare(
                        self._findings, f"{schema.STATS}: {field}", stats[field], self._columns.stats(role), exact=True
                    )
        for field, stated in stats.items():
            if field.rpartition(".")[2] in IMAGES:
                check_image_statistics(self._findings, f"{schema.STATS}: {field}", stated)


def _own_samples(findings: Findings, index: Any, columns: ColumnFiles) -> _OwnSamples | None:
    """Return the checks of samples that this package wrote; None for a dataset of another tool."""
    has_provenance = (findings.dataset / PROVENANCE).is_file()
    if has_provenance and index is not None:
        exported = ExportedRows(findings, PROVENANCE, read_json(findings.dataset, PROVENANCE))
        return _OwnSamples(findings, index, exported, columns)
    own = isinstance(index, dict) and {"shards", "episodes", "columns"} <= set(index)
    findings.check(not own, PROVENANCE, "is missing; without it readers do not know the streams")
    findings.check(not has_provenance, schema.INDEX, "is missing; it lists the shards")
    return None


def _stacked(samples: list[dict[str, Any]], field: str) -> NDArray[Any] | None:
    """Return the (T, ...) values of a field; None if a sample has none, or one of another shape."""
    values = [sample.get(field) for sample in samples]
    shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
    return None if None in shapes or len(shapes) != 1 else np.stack(values)  # type: ignore[arg-type]


WEBDATASET_CHECK = WebDatasetCheck()
