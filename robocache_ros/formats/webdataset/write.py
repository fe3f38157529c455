"""Write WebDataset shards: tar files with a sample per tick."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.dataset import Episode, ExportedDataset, StoredArrays
from robocache_ros.formats.schema import ACTION, BY_STREAM, IMAGES, PROVENANCE, STATE, WINDOW
from robocache_ros.formats.webdataset import schema
from robocache_ros.formats.write import (
    FileTask,
    HeldBytes,
    WrittenByTasks,
    array_or_zeros,
    shard_tasks,
    write_json,
    write_provenance,
)
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions


def member_bytes(nbytes: int) -> int:
    """Return the bytes of a member of a tar file, given those of its data."""
    return tarfile.BLOCKSIZE * (1 - -nbytes // tarfile.BLOCKSIZE)


class TarWriter:
    """Writes a tar file. Unlike that of Python's tarfile, its memory does not grow with the number of members."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self.path = path
        self.samples = 0

    def write(self, name: str, data: bytes) -> None:
        """Add a file, without owner and time."""
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._file.write(member.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(data)
        self._file.write(bytes(-len(data) % tarfile.BLOCKSIZE))

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self._file.tell()

    def close(self, *, complete: bool = True) -> None:
        """Close the file; if `complete`, with the two empty blocks that mark its end."""
        with self._file:
            if complete:
                self._file.write(bytes(2 * tarfile.BLOCKSIZE))
                self._file.write(bytes(-self._file.tell() % tarfile.RECORDSIZE))


SHARD_BYTES = 64 << 20  # a shard that has about this size is followed by another, at the next episode
Field = Callable[[int], bytes]  # tick of an episode -> the bytes of its member


class WebDatasetFormat(WrittenByTasks):
    """WebDataset shards."""

    name = "webdataset"
    title = "WebDataset shards, a sample per tick"
    entry = schema.INDEX
    needs_stats = True

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a window with the name of a field for all vectors."""
        for stream in spec.vectors:
            if stream.rows and stream.name in ("state", "action"):
                raise RoboCacheError(
                    f"streams.{stream.name}: webdataset stores vectors under this name; rename the stream"
                )

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return a task for each shard. Memory: one sample."""
        return shard_tasks(dataset, _sample_bytes(dataset), SHARD_BYTES, _write_shard)

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the metadata, dataset.json last."""
        write_provenance(folder / PROVENANCE, dataset, dataset.encodings(WEBDATASET.encoding))
        write_json(folder / schema.STATS, _stats(dataset))
        episodes = [
            {
                "recording": printable(episode.recording, 4096),
                "task": episode.task,
                "success": episode.success,
                "samples": episode.length,
            }
            for episode in dataset.episodes
        ]
        names = {STATE: schema.STATE, ACTION: schema.ACTION}
        columns = {field: dataset.features[name].names for name, field in names.items() if name in dataset.features}
        write_json(
            folder / schema.INDEX,
            {"rate_hz": dataset.rate_hz, "shards": list(results), "episodes": episodes, "columns": columns},
        )


def _write_shard(dataset: ExportedDataset, folder: Path, group: range, shard: int, shards: int) -> dict[str, Any]:
    """Write the samples of some episodes; return the name of the file, and its episodes, samples and bytes."""
    path, samples, complete = folder / f"train-{shard:06d}.tar", 0, False
    tar = TarWriter(path)
    try:
        for index in group:
            episode = dataset.episodes[index]
            fields = _fields(dataset, episode)
            for tick in range(episode.length):
                for name, data_of in fields.items():
                    tar.write(f"{schema.sample_key(episode.index, tick)}.{name}", data_of(tick))
            samples += episode.length
        complete = True
    finally:
        tar.close(complete=complete)
    return {"name": path.name, "episodes": len(group), "samples": samples, "bytes": path.stat().st_size}


def _sample_bytes(dataset: ExportedDataset) -> int:
    """Return about how many bytes a sample takes: those of the one in the middle of the first episode."""
    episode = dataset.episodes[0]
    return sum(member_bytes(len(data_of(episode.length // 2))) for data_of in _fields(dataset, episode).values())


def _fields(dataset: ExportedDataset, episode: Episode) -> dict[str, Field]:
    """Return the fields of the samples of an episode."""
    fields: dict[str, Field] = {}
    if dataset.state:
        fields[schema.STATE] = _rows(episode.state)
    if dataset.actions:
        fields[schema.ACTION] = _rows(episode.action)
    for stream in dataset.spec.vectors:
        if stream.rows:
            fields[f"{stream.name}.npy"] = _rows(episode.vector(stream.name))
            fields[schema.age_field(stream.name)] = _rows(episode.window_ages_ms(stream.name))
    for name, encoding in dataset.encodings(WEBDATASET.encoding).items():
        images = episode.images(name, encoding)
        fields[f"{name}.{schema.EXTENSIONS[encoding]}"] = HeldBytes(images.samples, images.__getitem__).__getitem__
    for name in dataset.arrays:
        fields[f"{name}.npz"] = _compressed(episode.arrays(name))
    fields[schema.META] = _meta(dataset, episode)
    return fields


def _rows(values: NDArray[Any]) -> Field:
    return lambda tick: _npy(values[tick])


def _compressed(arrays: StoredArrays) -> Field:
    held: Field = HeldBytes(arrays.samples, lambda tick: _npz(array_or_zeros(arrays, tick))).__getitem__
    return held


def _meta(dataset: ExportedDataset, episode: Episode) -> Field:
    names = dataset.layout.names
    by_stream: tuple[NDArray[Any], ...] = (episode.stamps_ns, episode.valid, episode.age_ns)
    columns = dict(zip(BY_STREAM, by_stream, strict=True))

    def data_of(tick: int) -> bytes:
        meta = {
            "episode": episode.index,
            "tick": tick,
            "tick_ns": int(episode.ticks_ns[tick]),
            "is_first": tick == 0,
            "is_last": tick == episode.length - 1,
            "task": episode.task,
            "task_index": episode.task_index,
            "success": episode.success,
            "reward": float(episode.rewards[tick]),
            **{key: dict(zip(names, values[tick].tolist(), strict=True)) for key, values in columns.items()},
        }
        return json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()

    return data_of


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _npz(array: NDArray[Any]) -> bytes:
    """Compress an array as numpy.savez_compressed(file, array=array) does, but several times as fast."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo(schema.ARRAY)  # its date is that of the first DOS
        archive.writestr(member, _npy(array), zipfile.ZIP_DEFLATED, compresslevel=1)
    return file.getvalue()


def _stats(dataset: ExportedDataset) -> dict[str, Any]:
    """Return the statistics by field."""
    fields = {STATE: schema.STATE, ACTION: schema.ACTION}
    fields.update({WINDOW + s.name: f"{s.name}.npy" for s in dataset.spec.vectors if s.rows})
    for name, encoding in dataset.encodings(WEBDATASET.encoding).items():
        fields[IMAGES + name] = f"{name}.{schema.EXTENSIONS[encoding]}"
    return {fields[name]: values for name, values in dataset.stats.items() if name in fields}


WEBDATASET = WebDatasetFormat()
