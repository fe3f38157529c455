"""Validation of WebDataset shards."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.validate.array_values import image_size
from robocache_ros.export.validate.findings import Findings, file_in, read_json
from robocache_ros.untrusted_files import DatasetFile, given_file, open_file

INDEX = "dataset.json"  # of datasets that this package wrote
IMAGES = ("jpg", "jpeg", "png", "webp")
MEMBER_BYTES = 1 << 30


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
        fields: set[str] | None = None
        seen: set[str] = set()
        counts: dict[str, int] = {}
        for path in files:
            shard = _Shard(findings, path.name, fields, seen)
            with findings.reading(path.name, tarfile.TarError, EOFError, ValueError):
                shard.read(file_in(folder, path.name) if folder.is_dir() else given_file(path))
                counts[path.name] = shard.samples
            fields = shard.fields
        if folder.is_dir() and (folder / INDEX).is_file():
            index = read_json(folder, INDEX)
            told = {shard["name"]: shard["samples"] for shard in index["shards"]}
            for name, samples in told.items():
                if (folder / name).is_file():
                    text = f"{counts.get(name, 0)} samples; {INDEX} says {samples}"
                    findings.check(counts.get(name) == samples, name, text)
                else:
                    findings.add(name, f"is missing; it is in {INDEX}")
            total = sum(episode["samples"] for episode in index["episodes"])
            findings.check(total == sum(told.values()), INDEX, f"its episodes have {total} samples, its shards others")
            findings.counted["episodes"] += len(index["episodes"])
        else:
            findings.skip(f"number of samples and of shards: there is no {INDEX}")


class _Shard:
    """Reads one tar file, sample by sample."""

    def __init__(self, findings: Findings, name: str, fields: set[str] | None, seen: set[str]) -> None:
        self._findings, self._name, self._seen = findings, name, seen
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
            self._findings.counted["rows"] += 1
        self._sample = set()

    def _check_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, field: str) -> None:
        where = f"{self._name}, {member.name}"
        kind = field.rpartition(".")[2]
        if member.size > MEMBER_BYTES:
            raise RoboCacheError(f"{self._name}: {printable(member.name, 60)} has {member.size:,} bytes")
        file = archive.extractfile(member)
        data = file.read() if file else b""
        if len(data) != member.size:
            raise RoboCacheError(f"{self._name}: ends within {printable(member.name, 60)}")
        with self._findings.reading(where, ValueError, KeyError, EOFError):
            if kind == "npy":
                values: Any = np.load(io.BytesIO(data), allow_pickle=False)
                finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
                self._findings.check(finite, where, "NaN or infinite")
            elif kind == "json":
                json.loads(data)
            elif kind in IMAGES:
                image_size(data, decode=self._findings.decode)
                self._findings.counted["images"] += 1


WEBDATASET_CHECK = WebDatasetCheck()
