"""WebDataset shards: tar files with a sample per tick, written, read and checked."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import (
    ColumnFiles,
    ExportedRows,
    Findings,
    FormatCheck,
    check_image_statistics,
    compare,
    exported_rows,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.columns import (
    MAX_BYTES,
    ArrayRows,
    FileRows,
    channels_last,
    export_columns,
    npy_array,
    read_marks,
)
from robocache_ros.formats.dataset import Episode, ExportedDataset, StoredMedia
from robocache_ros.formats.read import (
    ACTION,
    BY_STREAM,
    IMAGES,
    MAX_EPISODES,
    MAX_STEPS,
    PROVENANCE,
    STATE,
    TICK_COLUMNS,
    WINDOW,
    DatasetError,
    SourceEpisode,
    numbers,
    parse_object,
    read_object,
    refusing,
)
from robocache_ros.formats.write import (
    FileTask,
    HeldBytes,
    WrittenByTasks,
    shard_tasks,
    write_json,
    write_provenance,
)
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, given_file, open_file, path_below

INDEX, STATS = "dataset.json", "stats.json"
STATE_FIELD, ACTION_FIELD, META = "state.npy", "action.npy", "meta.json"
ROLES = {STATE_FIELD: "observation", ACTION_FIELD: "action"}  # of the streams in a field
EXTENSIONS = {"jpeg": "jpg", "png": "png"}  # by encoding
ARRAY = "array.npy"  # in the npz of voxels and depth images
MEMBER_BYTES = 1 << 30


def sample_key(episode: int, tick: int) -> str:
    """Return what the members of a sample have before their field."""
    return f"{episode:06d}_{tick:06d}"


def age_field(window: str) -> str:
    """Return the field of the ages of the samples of a window."""
    return f"{window}.age_ms.npy"


def _write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a tar file of files, given their names and contents, without owner and time.

    Unlike that of Python's tarfile, the memory does not grow with the number of members.
    """
    with path.open("xb") as file:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.write(data)
            file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # marks the end
        file.write(bytes(-file.tell() % tarfile.RECORDSIZE))


SHARD_BYTES = 64 << 20  # a shard that has about this size is followed by another, at the next episode
Field = Callable[[int], bytes]  # tick of an episode -> the bytes of its member


class _WebDatasetFormat(WrittenByTasks):
    """WebDataset shards."""

    name = "webdataset"
    title = "WebDataset shards, a sample per tick"
    entry = INDEX
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
        episode, block = dataset.episodes[0], tarfile.BLOCKSIZE
        sizes = (len(data_of(episode.length // 2)) for data_of in _fields(dataset, episode).values())
        of_sample = sum(block * (1 - -size // block) for size in sizes)  # of members of the one in the middle, about
        return shard_tasks(dataset, of_sample, SHARD_BYTES, _write_shard)

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the metadata, dataset.json last."""
        write_provenance(folder / PROVENANCE, dataset, dataset.encodings(WEBDATASET.encoding))
        write_json(folder / STATS, _stats(dataset))
        episodes = [
            {
                "recording": printable(episode.recording, 4096),
                "task": episode.task,
                "success": episode.success,
                "samples": episode.length,
            }
            for episode in dataset.episodes
        ]
        names = {STATE: STATE_FIELD, ACTION: ACTION_FIELD}
        columns = {field: dataset.features[name].names for name, field in names.items() if name in dataset.features}
        write_json(
            folder / INDEX,
            {"rate_hz": dataset.rate_hz, "shards": list(results), "episodes": episodes, "columns": columns},
        )


def _write_shard(dataset: ExportedDataset, folder: Path, group: range, shard: int, shards: int) -> dict[str, Any]:
    """Write the samples of some episodes; return the name of the file, and its episodes, samples and bytes."""
    path = folder / f"train-{shard:06d}.tar"
    _write_tar(path, (member for index in group for member in _members_of(dataset, dataset.episodes[index])))
    samples = sum(dataset.episodes.lengths[group.start : group.stop])
    return {"name": path.name, "episodes": len(group), "samples": samples, "bytes": path.stat().st_size}


def _members_of(dataset: ExportedDataset, episode: Episode) -> Iterator[tuple[str, bytes]]:
    fields = _fields(dataset, episode)
    for tick in range(episode.length):
        for name, data_of in fields.items():
            yield f"{sample_key(episode.index, tick)}.{name}", data_of(tick)


def _fields(dataset: ExportedDataset, episode: Episode) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    if dataset.state:
        fields[STATE_FIELD] = _npy_rows(episode.state)
    if dataset.actions:
        fields[ACTION_FIELD] = _npy_rows(episode.action)
    for stream in dataset.spec.vectors:
        if stream.rows:
            fields[f"{stream.name}.npy"] = _npy_rows(episode.vector(stream.name))
            fields[age_field(stream.name)] = _npy_rows(episode.window_ages_ms(stream.name))
    for name, encoding in dataset.encodings(WEBDATASET.encoding).items():
        fields[f"{name}.{EXTENSIONS[encoding]}"] = episode.images(name, encoding).__getitem__
    for name in dataset.arrays:
        fields[f"{name}.npz"] = _compressed(episode.arrays(name))
    fields[META] = _meta(dataset, episode)
    return fields


def _npy_rows(values: NDArray[Any]) -> Field:
    return lambda tick: _npy(values[tick])


def _compressed(arrays: StoredMedia) -> Field:
    held: Field = HeldBytes(arrays.samples, lambda tick: _npz(arrays.array(tick))).__getitem__
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
        member = zipfile.ZipInfo(ARRAY)  # its date is that of the first DOS
        archive.writestr(member, _npy(array), zipfile.ZIP_DEFLATED, compresslevel=1)
    return file.getvalue()


def _stats(dataset: ExportedDataset) -> dict[str, Any]:
    fields = {STATE: STATE_FIELD, ACTION: ACTION_FIELD}
    fields.update({WINDOW + s.name: f"{s.name}.npy" for s in dataset.spec.vectors if s.rows})
    for name, encoding in dataset.encodings(WEBDATASET.encoding).items():
        fields[IMAGES + name] = f"{name}.{EXTENSIONS[encoding]}"
    return {fields[name]: values for name, values in dataset.stats.items() if name in fields}


WEBDATASET = _WebDatasetFormat()


MAX_MEMBERS = 4_000_000  # of a file
OPEN_FILES = 16  # whose members stay in memory


class Place(NamedTuple):
    """The place of a member's data in the file, in bytes."""

    start: int
    size: int


@lru_cache(maxsize=OPEN_FILES)
def tar_members(path: DatasetFile, process: int) -> dict[str, Place]:
    """Return the members of a file by name."""
    found: dict[str, Place] = {}
    at = 0
    with refusing(printable(path), "damaged", errors=(OSError, tarfile.TarError, ValueError)):
        size = path.stat().st_size
        with open_file(path) as file:
            while (head := file.read(tarfile.BLOCKSIZE)) and any(head):
                member = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
                at += tarfile.BLOCKSIZE
                if not member.isreg() or not 0 <= member.size <= MEMBER_BYTES or len(found) == MAX_MEMBERS:
                    raise tarfile.TarError(f"{printable(member.name, 40)} is not a small file")
                if at + member.size > size:
                    raise tarfile.TarError(f"it ends within {printable(member.name, 40)}")
                found[member.name] = Place(at, member.size)
                at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                file.seek(at)
    return found


def read_members(path: DatasetFile, names: list[str]) -> list[bytes]:
    """Return the data of members."""
    places = tar_members(path, os.getpid())
    if missing := [name for name in names if name not in places]:
        raise DatasetError(f"{printable(path)}: has no member {printable(missing[0], 60)}; get the file again")
    total = sum(places[name].size for name in names)
    if total > MEMBER_BYTES:
        shown = printable(names[0], 60)
        raise DatasetError(f"{printable(path)}: {shown} and others: {total:,} bytes; at most {MEMBER_BYTES:,} are read")
    found = []
    with refusing(printable(path), "cannot be read", errors=(OSError,)), open_file(path) as file:
        for name in names:
            file.seek(places[name].start)
            found.append(file.read(places[name].size))
    return found


class WebDatasetEpisodes:
    """The episodes of a dataset in the format webdataset, a folder with dataset.json."""

    def __init__(self, path: str | AnyPath) -> None:
        self.folder = as_path(path)
        self.name = self.folder.name
        where = printable(self.folder / INDEX)
        index = read_object(file_below(self.folder, INDEX))
        self.export = export_columns(read_object(file_below(self.folder, PROVENANCE)), where)
        with refusing(where):
            shards = [(str(shard["name"]), int(shard["episodes"])) for shard in index["shards"]]
            if min((count for _, count in shards), default=0) < 0:
                raise ValueError("a shard of less than 0 episodes")
            self._episodes = [
                (
                    int(stated["samples"]),
                    str(stated["task"]),
                    None if stated["success"] is None else bool(stated["success"]),
                )
                for stated in index["episodes"]
            ]
        self._shards, self._ends = [name for name, _ in shards], list(accumulate(count for _, count in shards))
        count = len(self._episodes)
        if count > MAX_EPISODES or (self._ends[-1] if shards else 0) != count:
            raise DatasetError(f"{where}: {count:,} episodes, but the shards have others; get the file again")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.folder / INDEX, *(path_below(self.folder, name) for name in self._shards))

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded, and arrays are read when they are asked for."""
        path, keys, where = self._place(index)
        _, task, success = self._episodes[index]
        metas = [parse_object(data, f"{where}: {META}") for data in _members(path, keys, META)]
        with refusing(f"{where}: {META}", advice="export it again"):
            ticks = np.array([int(meta["tick_ns"]) for meta in metas], np.int64)
            rewards = np.array([float(meta["reward"]) for meta in metas], np.float32)
            names = self.export.names
            valid, age_ns = (np.array([[m[key][name] for name in names] for m in metas]) for key in ("valid", "age_ns"))
        marks = read_marks(self.export, valid, age_ns, where)
        values = self._values(path, keys, where)
        streams = self.export.episode_streams(ticks, marks, values, rewards, where)
        return SourceEpisode(streams, task, self.name, where, success)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        path, keys, where = self._place(index)
        metas = [parse_object(data, f"{where}: {META}") for data in _members(path, [keys[0], keys[-1]], META)]
        with refusing(f"{where}: {META}", advice="export it again"):
            return int(metas[0]["tick_ns"]), int(metas[1]["tick_ns"])

    def _place(self, index: int) -> tuple[DatasetFile, list[str], str]:
        """Return the file of an episode, the keys of its samples, and where it is."""
        path = file_below(self.folder, self._shards[bisect_right(self._ends, index)])
        where, count = f"{printable(path)}: episode {index}", self._episodes[index][0]
        if not 0 < count <= MAX_STEPS:
            raise DatasetError(f"{where}: {count:,} samples; 1 to {MAX_STEPS:,} are read")
        return path, [sample_key(index, tick) for tick in range(count)], where

    def _values(self, path: DatasetFile, keys: list[str], where: str) -> dict[str, Any]:
        """Return the vectors, images and voxels of an episode by stream."""
        members = tar_members(path, os.getpid())
        found: dict[str, Any] = {}
        for field, role in ROLES.items():
            if f"{keys[0]}.{field}" in members:
                table = _rows(path, keys, field, where)
                found.update(self.export.split(table, role, f"{where}: {field}"))
        for name, about in self.export.streams.items():
            if about.kind == "vector" and about.role == "observation" and not about.width:  # a window
                found[name] = _rows(path, keys, f"{name}.npy", where)
            elif about.kind != "vector" and f"{keys[0]}.{name}.npz" in members:
                read = partial(_array, path, keys, f"{name}.npz", about.kind)
                found[name] = ArrayRows(len(keys), read, f"{where}: {name}.npz")
            for kind in EXTENSIONS.values():
                if about.kind == "image" and f"{keys[0]}.{name}.{kind}" in members:
                    found[name] = FileRows(len(keys), partial(_member, path, keys, f"{name}.{kind}"))
        return found


def _members(path: DatasetFile, keys: list[str], field: str) -> list[bytes]:
    return read_members(path, [f"{key}.{field}" for key in keys])


def _member(path: DatasetFile, keys: list[str], field: str, row: int) -> bytes:
    return _members(path, [keys[row]], field)[0]


def _rows(path: DatasetFile, keys: list[str], field: str, where: str) -> NDArray[np.float32]:
    """(T, D) of the arrays of a field. Their headers are those of the first, which is read once."""
    files = _members(path, keys, field)
    # Damaged headers of arrays raise errors of any kind.
    with refusing(f"{where}: {field}", "damaged", "export it again", (Exception,)):
        first = npy_array(files[0])
        head = files[0][: len(files[0]) - first.nbytes]
        if first.dtype != np.dtype("<f4") or any(len(f) != len(files[0]) or not f.startswith(head) for f in files):
            raise ValueError("its samples are not float32 of one shape")
    rows = np.stack([np.frombuffer(file, "<f4", first.size, len(head)) for file in files])
    return numbers(rows.reshape(len(files), *first.shape), f"{where}: {field}")


def _array(path: DatasetFile, keys: list[str], field: str, kind: str, row: int) -> NDArray[Any]:
    with zipfile.ZipFile(io.BytesIO(_member(path, keys, field, row))) as archive:
        info = archive.getinfo(ARRAY)
        if info.file_size > MAX_BYTES:
            raise ValueError(f"{info.file_size:,} bytes")
        return channels_last(npy_array(archive.read(info)), kind)


IMAGE_KINDS = ("jpg", "jpeg", "png", "webp")


def _recognizes(dataset: Path) -> bool:
    """Return whether this is a tar file, or a folder of them."""
    return any(dataset.glob("*.tar")) if dataset.is_dir() else dataset.suffix == ".tar" and dataset.is_file()


def _check(findings: Findings) -> None:
    """Reads every member of the tar files of a dataset."""
    folder = findings.dataset
    files = sorted(folder.glob("*.tar")) if folder.is_dir() else [folder]
    index = read_json(folder, INDEX) if folder.is_dir() and (folder / INDEX).is_file() else None
    with closing(ColumnFiles()) as columns:
        own = _own_samples(findings, index, columns)
        _check_shards(findings, files, index, own)
        if own is not None:
            with findings.reading(INDEX):
                own.check_dataset()


def _check_shards(findings: Findings, files: list[Path], index: Any, own: _OwnSamples | None) -> None:
    folder = findings.dataset
    wanted: set[str] | None = None  # fields of the first sample
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for path in files:
        name, samples = path.name, 0
        with findings.reading(name):
            given = file_in(folder, name) if folder.is_dir() else given_file(path)
            for key, fields, values in _samples(findings, name, given, seen, is_own=own is not None):
                wanted = fields if wanted is None else wanted
                different = ", ".join(sorted(wanted ^ fields))
                text = f"sample {printable(key, 60)} has other fields than the first: {different}"
                findings.check(not different, name, text)
                samples += 1
                if own is not None:
                    with findings.reading(f"{name}, sample {key}"):
                        own.add(name, key, values)
                findings.counted["rows"] += 1
            counts[name] = samples
    if index is not None:
        stated = {shard["name"]: shard["samples"] for shard in index["shards"]}
        for name, samples in stated.items():
            if (folder / name).is_file():
                text = f"{counts.get(name, 0)} samples; {INDEX} says {samples}"
                findings.check(counts.get(name) == samples, name, text)
            else:
                findings.add(name, f"is missing; it is in {INDEX}")
        total = sum(episode["samples"] for episode in index["episodes"])
        findings.check(total == sum(stated.values()), INDEX, f"its episodes have {total} samples, its shards others")
        findings.counted["episodes"] += len(index["episodes"])
    else:
        findings.skip(f"number of samples and of shards: there is no {INDEX}")


def _samples(
    findings: Findings, shard: str, path: DatasetFile, seen: set[str], *, is_own: bool
) -> Iterator[tuple[str, set[str], dict[str, Any]]]:
    """Check the members of a tar file; yield the key of each sample, its fields, and the values that can be read."""

    def named(archive: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
        for member in archive:
            if member.isfile():
                folder, _, base = member.name.rpartition("/")
                stem, _, field = base.partition(".")
                yield f"{folder}/{stem}" if folder else stem, field, member
            else:
                findings.add(shard, f"{printable(member.name, 60)} is not a file")

    with open_file(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
        for key, members in groupby(named(archive), key=lambda member: member[0]):
            findings.check(key not in seen, shard, f"members of {printable(key, 60)} are not adjacent")
            seen.add(key)
            fields: set[str] = set()
            values: dict[str, Any] = {}
            for _, field, member in members:
                fields.add(field)
                if member.size > MEMBER_BYTES:
                    raise RoboCacheError(f"{shard}: {printable(member.name, 60)} has {member.size:,} bytes")
                content = archive.extractfile(member)
                data = content.read() if content else b""
                if len(data) != member.size:
                    raise RoboCacheError(f"{shard}: ends within {printable(member.name, 60)}")
                with findings.reading(f"{shard}, {member.name}"):
                    _read_field(findings, f"{shard}, {member.name}", field, data, values, is_own=is_own)
            yield key, fields, values


def _read_field(
    findings: Findings, where: str, field: str, data: bytes, values: dict[str, Any], *, is_own: bool
) -> None:
    """Check a field of a sample, and add it to the values."""
    kind = field.rpartition(".")[2]
    if kind == "npy":
        array = values[field] = npy_array(data)
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        findings.check(finite, where, "NaN or infinite")
    elif kind == "json":
        values[field] = json.loads(data)
    elif kind == "npz":
        values[field] = data
        with zipfile.ZipFile(io.BytesIO(data)) as arrays:
            names = arrays.namelist()
            usable = sum(of.file_size for of in arrays.infolist()) <= MEMBER_BYTES and not arrays.testzip()
        one = names == [ARRAY] or not is_own
        findings.check(one and usable, where, "is not one array, is too large or is damaged")
    elif kind in IMAGE_KINDS:
        values[field] = data
        image_size(data, decode=findings.decode)
        findings.counted["images"] += 1


class _OwnSamples:
    """Checks the samples of a dataset that this package wrote, episode by episode."""

    def __init__(self, findings: Findings, index: dict[str, Any], exported: ExportedRows, columns: ColumnFiles) -> None:
        self._findings, self._index, self._exported, self._columns = findings, index, exported, columns
        self._samples: list[dict[str, Any]] = []  # of the episode
        self._same: dict[str, list[bool]] = {}  # by stream of images, whether each is that of the sample before
        self._last: dict[str, bytes] = {}
        self._episode, self._place = 0, ""
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._ages = [age_field(name) for name in exported.windows]
        self._episodes_of: Counter[str] = Counter()  # by shard

    def add(self, shard: str, key: str, sample: dict[str, Any]) -> None:
        where, meta = f"{shard}, sample {key}", sample[META]
        if self._samples and (meta["is_first"] or key[:6] != f"{self._episode:06d}"):
            self._end_episode()
        self._place = self._place or shard
        exported, row = self._exported, len(self._samples)
        self._findings.check(shard == self._place, where, f"its episode begins in {self._place}")
        exported.check_value(where, "its key", key, sample_key(self._episode, row))
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
        kept = {field: sample[field] for field in (*ROLES, *self._ages) if field in sample}
        self._samples.append({**kept, "times": np.array(row_times, np.int64), "reward": float(meta["reward"])})

    def _end_episode(self) -> None:
        exported, samples, number = self._exported, self._samples, self._episode
        where, same = f"{self._place}, episode {number}", self._same
        self._episodes_of[self._place] += 1
        self._episode, self._samples, self._same, self._last, self._place = number + 1, [], {}, {}, ""
        times, streams = _stacked(samples, "times"), len(exported.layout.names)
        if times is None or times.shape[1] != 1 + 3 * streams:
            return  # the samples have other streams, which is reported
        columns = dict(zip(TICK_COLUMNS, (times[:, 0], *np.split(times[:, 1:], 3, axis=1)), strict=True))
        ages_ms = {f"sample_age_ms.{name}": _stacked(samples, age_field(name)) for name in exported.windows}
        columns |= {name: of_samples for name, of_samples in ages_ms.items() if of_samples is not None}
        tables = {role: _stacked(samples, field) for field, role in ROLES.items()}
        repeated = {name: np.array(of_image) for name, of_image in same.items() if len(of_image) == len(samples)}
        rewards = np.array([sample["reward"] for sample in samples])
        rows = exported.tick_rows(columns, exported.split(tables), repeated=repeated, rewards=rewards)
        exported.check_episode(where, number, rows)
        self._columns.append(exported.with_nan(rows, tables))

    def check_dataset(self) -> None:
        """Check the last episode, and the files that describe the dataset."""
        if self._samples:
            with self._findings.reading(f"{self._place}, episode {self._episode}"):
                self._end_episode()
        exported, index = self._exported, self._index
        exported.check_count(self._episode, INDEX)
        exported.check_value(INDEX, "rate_hz", index["rate_hz"], exported.spec.rate_hz)
        for number, (stated, episode) in enumerate(zip(index["episodes"], exported.episodes, strict=False)):
            where = f"{INDEX}, episode {number}"
            exported.check_value(where, "samples", stated["samples"], episode.frames)
            exported.check_value(where, "task", stated["task"], episode.task)
            exported.check_value(where, "success", stated["success"], episode.success)
        for shard in index["shards"]:
            path = self._findings.dataset / shard["name"]
            of_shard = {"episodes": self._episodes_of[shard["name"]]}
            of_shard |= {"bytes": path.stat().st_size} if path.is_file() else {}
            for key, count in of_shard.items():
                text = f"{key} of {shard['name']} is {printable(shard[key], 20)}; the file has {count}"
                self._findings.check(shard[key] == count, INDEX, text)
        stats = read_json(self._findings.dataset, STATS)
        for field, role in ROLES.items():
            if labels := exported.labels(role):
                exported.check_names(f"columns.{field}", index["columns"].get(field), labels, where=INDEX)
                with self._findings.reading(f"{STATS}: {field}"):
                    compare(self._findings, f"{STATS}: {field}", stats[field], self._columns.stats(role), exact=True)
        for field, stated in stats.items():
            if field.rpartition(".")[2] in IMAGE_KINDS:
                check_image_statistics(self._findings, f"{STATS}: {field}", stated)


def _own_samples(findings: Findings, index: Any, columns: ColumnFiles) -> _OwnSamples | None:
    """Return the checks of samples that this package wrote; None for a dataset of another tool."""
    if index is None:
        findings.check(not (findings.dataset / PROVENANCE).is_file(), INDEX, "is missing; it lists the shards")
        return None
    is_own = isinstance(index, dict) and {"shards", "episodes", "columns"} <= set(index)
    exported = exported_rows(findings, PROVENANCE, is_own=is_own)
    return _OwnSamples(findings, index, exported, columns) if exported else None


def _stacked(samples: list[dict[str, Any]], field: str) -> NDArray[Any] | None:
    """Return the (T, ...) values of a field; None if a sample has none, or one of another shape."""
    values = [sample.get(field) for sample in samples]
    shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
    return None if None in shapes or len(shapes) != 1 else np.stack(values)  # type: ignore[arg-type]


WEBDATASET_CHECK = FormatCheck("WebDataset", _recognizes, _check)
