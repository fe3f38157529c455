"""Read RLDS datasets: those of Open X-Embodiment, and exports."""

from __future__ import annotations

import math
import os
import warnings
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.columns import ArrayRows, ExportColumns, channels_last, export_columns, read_marks
from robocache_ros.formats.read import (
    MAX_EPISODES,
    PROVENANCE,
    TICK_COLUMNS,
    ChainedEpisodes,
    DatasetError,
    EpisodeSource,
    SourceEpisode,
    Stream,
    nominal_span,
    nominal_stamps,
    numbers,
    read_object,
    refusing,
)
from robocache_ros.formats.rlds.tfrecord import RecordFile, Values, parse_example, read_records
from robocache_ros.processes import cached_until_fork
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, filled, folder_below, name_below, path_below

INFO, FEATURES, STATISTICS = "dataset_info.json", "features.json", "dataset_statistics.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
STEPS, OBSERVATION = "steps/", "steps/observation/"
STATE, ACTION, REWARD = f"{OBSERVATION}state", f"{STEPS}action", f"{STEPS}reward"
ROLES = {STATE: "observation", ACTION: "action"}  # of the streams in a feature
OWN = f"{STEPS}robocache/"  # what this package adds to a step
TICK, STAMP, VALID, AGE = (OWN + name for name in TICK_COLUMNS)
SAMPLE_AGES = f"{OWN}sample_age_ms/"  # and the name of a window
EPISODE_INDEX, RECORDING = "episode_metadata/episode_index", "episode_metadata/file_path"
SUCCESS = "episode_metadata/success"  # 1 yes, 0 no, -1 not known
LANGUAGE = f"{STEPS}language_instruction"


def file_name(template: object, dataset: object, split: object, kind: object, index: int, count: int) -> str:
    """Return the name of a file of a split, by the template in dataset_info.json; None: that of TFDS.

    Errors:
        KeyError: the template has another name.
    """
    return filled(
        template or TEMPLATE,
        DATASET=dataset,
        SPLIT=split,
        FILEFORMAT=kind,
        SHARD_INDEX=f"{index:05d}",
        NUM_SHARDS=f"{count:05d}",
        SHARD_X_OF_Y=f"{index:05d}-of-{count:05d}",
    )


# Which features of a TFDS dataset are images, proprioception, actions and language: the conventions of Open X.
#
# - vision: every image of `steps/observation` whose name does not contain `depth`.
# - proprio: of `steps/observation`, the vector `proprio`, `state` or `robot_state`, the first that there is; else every
#   vector or number of a floating-point type whose name does not contain `embedding`.
# - actions: `steps/action`; if it is a dictionary, every feature of a floating-point type in it.
# - language: the first text of `steps/language_instruction`, `steps/observation/natural_language_instruction` and
#   `steps/observation/language_instruction`.
# - rewards: `steps/reward`.


_PROPRIO = ("proprio", "state", "robot_state")
_LANGUAGE = (
    LANGUAGE,
    "steps/observation/natural_language_instruction",
    "steps/observation/language_instruction",
)
KINDS = ("vision", "proprio", "actions", "language")
Mapped = Mapping[str, Sequence[str]]


def find_features(features: Sequence[TfdsFeature], mapping: Mapped, where: str) -> dict[str, list[str]]:
    """Return the paths of features by what they are, KINDS and reward; see the rules above.

    Args:
        features: of the dataset.
        mapping: for any of vision, proprio, actions and language the paths to use instead, such as
            `{"proprio": ["observation/joints", "observation/gripper"]}`; `steps/` may be left out.
        where: the dataset, for errors.
    """
    steps = {feature.path: feature for feature in features if feature.path.startswith(STEPS) and feature.levels == 1}
    found = {
        "vision": [p for p, f in steps.items() if p.startswith(OBSERVATION) and f.kind == "image" and "depth" not in p],
        "proprio": _proprio(steps),
        "actions": [p for p, f in steps.items() if p == ACTION or (p.startswith(ACTION + "/") and _floating(f))],
        "language": [p for p in _LANGUAGE if p in steps and steps[p].kind == "text"],
        "reward": [p for p in (REWARD,) if p in steps],
    }
    for kind, paths in mapping.items():
        if kind not in KINDS:
            raise DatasetError(f"features: {printable(kind, 40)} is not one of {', '.join(KINDS)}; choose one of them")
        given = [paths] if isinstance(paths, str) else list(paths)
        found[kind] = [path if path in steps else STEPS + path for path in given]
        missing = [path for path in found[kind] if path not in steps]
        if missing:
            raise DatasetError(f"{where}: has no feature {printable(missing[0], 60)}; features.json has the names")
    return found


def _proprio(steps: Mapping[str, TfdsFeature]) -> list[str]:
    vectors = {p.removeprefix(OBSERVATION): p for p, f in steps.items() if p.startswith(OBSERVATION) and _floating(f)}
    for name in _PROPRIO:
        if name in vectors:
            return [vectors[name]]
    return [path for name, path in vectors.items() if "embedding" not in name]


def _floating(feature: TfdsFeature) -> bool:
    is_vector = feature.kind == "tensor" and len(feature.shape) <= 1 and feature.encoding == "none"
    return is_vector and feature.dtype.startswith("float")


EPISODE_BYTES = 1 << 30  # of an episode
OPEN_FILES = 64  # whose offsets stay in memory
_MARKS = (TICK, VALID, AGE)


class RldsEpisodes:
    """The episodes of one split of a dataset.

    Args:
        folder: with dataset_info.json and features.json.
        split: its name.
        rate_hz: steps per second, which RLDS does not store; None: the published rate of a dataset of Open X, found by
            the name of the dataset. Exports of this project have measured stamps and need none.
        features: paths of features that replace those found by `rlds_features`.

    Errors:
        RoboCacheError: the folder is not such a dataset. DatasetError: the rate is not known; reading an episode:
            its file is missing, or its record is damaged.
    """

    def __init__(
        self,
        folder: str | AnyPath,
        *,
        split: str = "train",
        rate_hz: float | None = None,
        features: Mapped | None = None,
    ) -> None:
        dataset = TfdsDataset(folder)
        where = printable(folder, 60)
        if split not in dataset.splits:
            raise DatasetError(f"{where}: no split {printable(split, 40)}; there are {', '.join(dataset.splits)}")
        self.name, self.files = dataset.name, dataset.splits[split].files
        self._lengths = dataset.splits[split].lengths
        if self.files and not any(file.exists() for file in self.files):
            there = [name for name, each in dataset.splits.items() if any(file.exists() for file in each.files)]
            way_out = f"split='{printable(there[0], 40)}' has files" if there else "get the files"
            raise DatasetError(f"{where}: no file of the split {printable(split, 40)} is there; {way_out}")
        self._ends = list(accumulate(self._lengths))
        if self._ends and self._ends[-1] > MAX_EPISODES:
            raise DatasetError(f"{where}: {self._ends[-1]:,} episodes; at most {MAX_EPISODES:,} are read")
        self._folder = as_path(folder)
        self.export: ExportColumns | None = None
        if (provenance := self._folder / PROVENANCE).exists():
            stated = read_object(file_below(self._folder, PROVENANCE))
            self.export = export_columns(stated, printable(provenance))
        self._paths = find_features(dataset.features, features or {}, where)
        self._rate_hz = 0.0 if self.export else rate_of(self.name, rate_hz, where)
        wanted = {*chain(*self._paths.values()), *(_MARKS if self.export else ())}
        if self.export:
            wanted |= {f.path for f in dataset.features if f.path.startswith(OBSERVATION) or f.path == SUCCESS}
        # Only what is used is parsed further. `is_first` counts the steps.
        first = {"steps/is_first", TICK}
        self._listed = dataset.features
        self._features = tuple(f for f in dataset.features if f.path in wanted)
        self._counting = tuple(f for f in dataset.features if f.path in first) or self._features

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        where, values = self._values(index, self._features)
        task = next((v[0] for v in (values[path] for path in self._paths["language"]) if v and v[0]), "")
        counts = {path: len(each) for path, each in values.items() if path.startswith(STEPS)}
        if odd := [path for path, count in counts.items() if count != next(iter(counts.values()))]:
            first, count = next(iter(counts.items()))
            raise DatasetError(
                f"{where}: {counts[odd[0]]:,} steps of {printable(odd[0], 40)}, {count:,} of {printable(first, 40)}; "
                "get features.json again"
            )
        streams = self._exported(values, where) if self.export else self._nominal(values, where)
        success = int(values[SUCCESS]) if SUCCESS in values else -1
        return SourceEpisode(streams, task, self.name, where, None if success < 0 else success > 0)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode. Its record is read, but its images are not."""
        where, values = self._values(index, self._counting)
        if TICK in values:
            ticks = values[TICK]
            if not len(ticks):
                raise DatasetError(f"{where}: no steps; leave the episode out")
            return int(ticks[0]), int(ticks[-1])
        return nominal_span(max(len(each) for path, each in values.items() if path.startswith(STEPS)), self._rate_hz)

    def _values(self, index: int, features: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        file = bisect_right(self._ends, index)
        record = index - (self._ends[file - 1] if file else 0)
        where = f"{printable(self.files[file])}: record {record}"
        with refusing(where):
            opened = _record_file(file_below(self._folder, self.files[file].name), os.getpid())
            if opened.records is not None and opened.records > self._lengths[file]:
                raise DatasetError(
                    f"{where}: the file has {opened.records:,} records, not {self._lengths[file]:,}; get it again"
                )
            data = opened.read(record)
        try:
            stored = parse_example(data)
            if record == 0:
                self._compare(stored)
            return where, values_of(stored, features)
        except RoboCacheError as error:
            raise DatasetError(f"{where}: {error}") from None

    def _compare(self, stored: Mapping[str, Any]) -> None:
        """Warn if records have features that features.json does not list: damaged names look like this too."""
        listed = {feature.path for feature in self._listed}
        if names := sorted({name.partition("/ragged_")[0] for name in stored} - listed):
            path, name = printable(self.files[0].with_name(FEATURES), 80), printable(names[0], 40)
            warnings.warn(f"{path}: does not list {name}, which the records have; check the file", stacklevel=2)

    def _nominal(self, values: Mapping[str, Any], where: str) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        single = {"observation": len(self._paths["proprio"]) == 1, "action": len(self._paths["actions"]) == 1}
        for role, paths, name in (
            ("observation", self._paths["proprio"], "proprio"),
            ("action", self._paths["actions"], "actions"),
            ("reward", self._paths["reward"], "rewards"),
        ):
            for path in paths:
                label = name if single.get(role, True) else path.removeprefix(STEPS)
                table = numbers(np.asarray(values[path]), f"{where}: {path}")
                streams[label] = Stream(label, self._stamps(len(table)), table, False, role)
        for path in self._paths["vision"]:
            camera = path.removeprefix(OBSERVATION)
            label = f"vision/{camera}"
            streams[label] = Stream(label, self._stamps(len(values[path])), values[path], False)
        return streams

    def _stamps(self, count: int) -> NDArray[np.int64]:
        return nominal_stamps(count, self._rate_hz)

    def _exported(self, values: Mapping[str, Any], where: str) -> dict[str, Stream]:
        columns = self.export
        assert columns is not None
        ticks, valid, age_ns = (values[name] for name in _MARKS)
        marks = read_marks(columns, valid, age_ns, where)
        found: dict[str, Any] = {}
        for path, role in ((STATE, "observation"), (ACTION, "action")):
            if path in values:
                table = numbers(values[path], f"{where}: {path}")
                found.update(columns.split(table, role, f"{where}: {path}"))
        for name, about in columns.streams.items():
            path = OBSERVATION + name
            if path not in values:
                continue
            if about.kind == "vector":  # a window
                found[name] = numbers(values[path], f"{where}: {path}")
            elif isinstance(values[path], CompressedArrays):
                read = partial(_array, values[path], about.kind)
                found[name] = ArrayRows(len(values[path]), read, f"{where}: {path}")
            elif path in self._paths["vision"]:
                found[name] = values[path]
        return columns.episode_streams(ticks, marks, found, values.get(REWARD), where)


def _array(stored: CompressedArrays, kind: str, row: int) -> NDArray[Any]:
    return channels_last(stored[row], kind)


@cached_until_fork(OPEN_FILES)
def _record_file(path: DatasetFile, process: int) -> RecordFile:
    return RecordFile(path, limit=EPISODE_BYTES)  # in each process, because processes would share the place in a file


MAX_DATASETS = 10_000  # in a folder


def open_rlds(path: str | AnyPath, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset, of its newest version, or of all datasets in a folder, by name.

    The options are those of `RldsEpisodes`.
    """
    top = as_path(path)
    folders = [folder_below(top, name_below(top, folder)) for folder in _tfds_folders(top)]
    sources = [RldsEpisodes(folder, **options) for folder in folders]
    return sources[0] if len(sources) == 1 else ChainedEpisodes(sources)


def _tfds_folders(path: AnyPath) -> list[AnyPath]:
    """Return the folders of datasets: itself, its newest version, or those of each dataset in it."""
    if (path / INFO).exists():
        return [path]
    if versions := [folder for folder in _folders(path) if (folder / INFO).exists()]:
        return [max(versions, key=lambda folder: [int(n) for n in folder.name.split(".") if n.isdecimal()])]
    found = [_tfds_folders(folder)[0] for folder in _folders(path) if any(folder.glob("*/dataset_info.json"))]
    if not found:
        raise DatasetError(f"{printable(path)}: no dataset_info.json; give the folder of a TFDS dataset")
    return found


def _folders(path: AnyPath) -> list[AnyPath]:
    if not path.is_dir():
        raise DatasetError(f"{printable(path)}: not a folder; give the folder of a dataset")
    folders = sorted(each for each in path.iterdir() if each.is_dir())
    if len(folders) > MAX_DATASETS:
        raise DatasetError(f"{printable(path)}: {len(folders):,} folders; at most {MAX_DATASETS:,} are read")
    return folders


MAX_FEATURES, MAX_DEPTH = 10_000, 32
ARRAY_BYTES = 1 << 30  # limit of a compressed array
_TYPES = {kind: kind for kind in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")}
_TYPES |= {"float16": "float16", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


@dataclass(frozen=True)
class TfdsFeature:
    """One feature of a record."""

    path: str  # its name in a record, such as `steps/observation/image`
    kind: str  # tensor, text or image
    dims: tuple[int, ...]  # sizes of its dimensions, those of sequences first; -1: differs from record to record
    dtype: str  # of NumPy; empty for text and images
    encoding: str  # of a tensor: none, bytes or zlib
    levels: int  # number of sequences that it is in: 1 for a feature of a step

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self.dims[self.levels :]


class CompressedArrays(Sequence["NDArray[Any]"]):
    """Arrays of which each is stored as bytes, and is decompressed when it is asked for.

    Errors:
        ValueError: an array is damaged or does not have the feature's shape.
    """

    def __init__(self, feature: TfdsFeature, stored: Sequence[memoryview]) -> None:
        self._feature, self._stored = feature, stored
        self._dtype = np.dtype(feature.dtype).newbyteorder("<")
        self._nbytes = math.prod(feature.shape) * self._dtype.itemsize
        if not 0 <= self._nbytes <= ARRAY_BYTES:
            raise ValueError(f"arrays of shape {list(feature.shape)} are not read")

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, step: Any) -> Any:
        data: bytes | memoryview = self._stored[step]
        if self._feature.encoding == "zlib":
            try:
                data = zlib.decompressobj().decompress(data, self._nbytes + 1)
            except zlib.error as error:
                raise ValueError(f"{self._feature.path}: step {step}: {error}") from None
        if len(data) != self._nbytes:
            raise ValueError(f"{self._feature.path}: step {step}: {len(data):,} bytes, not {self._nbytes:,}")
        return np.frombuffer(data, self._dtype).reshape(self._feature.shape)


def features_of(tree: Mapping[str, Any]) -> tuple[TfdsFeature, ...]:
    """Return the features of a parsed features.json.

    Errors:
        RoboCacheError: the tree is malformed, too large, or has features of a type that is not supported.
    """
    features = tuple(islice(_walk(tree, "", ()), MAX_FEATURES + 1))
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features.json: more than {MAX_FEATURES:,} features; check the file")
    return features


def values_of(stored: Mapping[str, Values], features: Sequence[TfdsFeature]) -> dict[str, Any]:
    """Return the values of a record that was parsed with `parse_example`, by the path of the feature.

    Numbers are arrays of all steps, (T, *shape). Texts are lists of str, images lists of views of their files' bytes,
    compressed arrays `CompressedArrays`; outside of sequences, each is one value. A feature of sequences in the steps
    is a list with an array for each step.
    """
    found: dict[str, Any] = {}
    for feature in features:
        try:
            found[feature.path] = _value(feature, stored)
        except (KeyError, ValueError) as error:
            what = f"not in the record ({error})" if isinstance(error, KeyError) else printable(error, 100)
            raise RoboCacheError(f"{printable(feature.path, 60)}: {what}; check features.json") from None
    return found


def _walk(node: Any, path: str, outer: tuple[int, ...], depth: int = 0) -> Iterator[TfdsFeature]:
    where = printable(path or "features.json", 60)
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        raise RoboCacheError(f"{where}: not a feature of TFDS; check features.json")
    with refusing(where, advice="check features.json"):
        if "featuresDict" in node:
            for name, child in node["featuresDict"]["features"].items():
                yield from _walk(child, f"{path}/{name}" if path else name, outer, depth + 1)
        elif "sequence" in node:
            length = int(node["sequence"].get("length", -1))
            yield from _walk(node["sequence"]["feature"], path, (*outer, length), depth + 1)
        elif "image" in node:
            yield TfdsFeature(path, "image", outer, "", "none", len(outer))
        elif "text" in node:
            yield TfdsFeature(path, "text", outer, "", "none", len(outer))
        elif "classLabel" in node:
            yield TfdsFeature(path, "tensor", outer, "int64", "none", len(outer))
        elif "tensor" in node:
            yield _tensor(node["tensor"], path, outer)
        else:
            kind = printable(node.get("pythonClassName", "?"), 80)
            raise RoboCacheError(f"{where}: features of type {kind} are not read; leave the feature out")


def _tensor(stated: Mapping[str, Any], path: str, outer: tuple[int, ...]) -> TfdsFeature:
    dims = (*outer, *(int(size) for size in stated["shape"].get("dimensions", ())))
    if stated["dtype"] in ("string", "object"):
        return TfdsFeature(path, "text", dims, "", "none", len(outer))
    return TfdsFeature(
        path, "tensor", dims, _TYPES[stated["dtype"]], stated.get("encoding", "none").lower(), len(outer)
    )


def _value(feature: TfdsFeature, stored: Mapping[str, Values]) -> Any:
    if feature.path not in stored and f"{feature.path}/ragged_flat_values" in stored:
        return _ragged(feature, stored)
    values = stored[feature.path]
    if feature.kind == "tensor" and feature.encoding == "none":
        return _numbers(feature, values).reshape(feature.dims)
    if not isinstance(values, list):
        raise ValueError(f"{len(values)} numbers, not bytes")
    if feature.kind == "tensor":
        arrays = CompressedArrays(feature, values)
        return arrays if feature.levels else arrays[0]
    read = [str(data, "utf-8", "replace") for data in values] if feature.kind == "text" else values
    return read if feature.dims else read[0]


def _numbers(feature: TfdsFeature, values: Values) -> NDArray[Any]:
    if isinstance(values, list):
        if values:
            raise ValueError(f"{len(values)} strings, not numbers")
        values = np.empty(0, np.int64)
    if feature.dtype == "uint64":  # stored bit by bit as int64
        return values.view(np.uint64)
    return values.astype(feature.dtype, copy=False)


def _ragged(feature: TfdsFeature, stored: Mapping[str, Values]) -> list[NDArray[Any]]:
    """Return an array for each step, for a sequence in the steps whose length differs."""
    if feature.levels != 2 or f"{feature.path}/ragged_row_lengths_1" in stored:
        raise ValueError("sequences in sequences of the steps are not read")
    flat = _numbers(feature, stored[f"{feature.path}/ragged_flat_values"]).reshape(-1, *feature.shape)
    lengths = stored[f"{feature.path}/ragged_row_lengths_0"]
    if isinstance(lengths, list) or lengths.sum() != len(flat) or (lengths < 0).any():
        raise ValueError("the lengths of its rows do not match its values")
    return np.split(flat, np.cumsum(lengths.astype(np.int64))[:-1])


MAX_SHARDS = 100_000


class TfdsSplit(NamedTuple):
    """The files of a split, and the number of records of each."""

    files: tuple[AnyPath, ...]
    lengths: tuple[int, ...]


class TfdsDataset:
    """A dataset in a folder with dataset_info.json and features.json, usually `<name>/<version>`."""

    def __init__(self, folder: str | AnyPath) -> None:
        self.folder = Path(folder) if isinstance(folder, str) else folder
        if not (self.folder / INFO).exists():
            raise RoboCacheError(f"{printable(self.folder)}: cannot be read; give the folder of a TFDS dataset")
        info = read_object(file_below(self.folder, INFO))
        self.features: tuple[TfdsFeature, ...] = features_of(read_object(file_below(self.folder, FEATURES)))
        with refusing(printable(self.folder), "dataset_info.json is malformed"):
            self.name, self.version = str(info["name"]), str(info["version"])
            kind = str(info.get("fileFormat", "tfrecord"))
            if kind != "tfrecord":
                raise RoboCacheError(f"{printable(self.folder)}: its files are {kind}; only tfrecord is read")
            self.splits = {split["name"]: self._split(split) for split in info["splits"]}  # whose files may be missing

    def episodes(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the values of each record of a split, in order; see `values_of`.

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
            for record in read_records(file_below(self.folder, path.name)):
                try:
                    example = values_of(parse_example(record), self.features)
                except RoboCacheError as error:
                    raise RoboCacheError(f"{printable(path)}: record {count}: {error}") from None
                yield example
                count += 1
            if count != length:
                raise RoboCacheError(f"{printable(path)}: {count:,} records, not {length:,}; get the file again")

    def _split(self, stated: dict[str, Any]) -> TfdsSplit:
        lengths = tuple(int(length) for length in stated.get("shardLengths", ()))
        if min(lengths, default=0) < 0:
            raise ValueError(f"a file of {min(lengths)} records")
        if len(lengths) > MAX_SHARDS:
            raise RoboCacheError(f"{printable(self.folder)}: more than {MAX_SHARDS:,} files; check dataset_info.json")
        template, count = stated.get("filepathTemplate"), len(lengths)
        names = [file_name(template, self.name, stated["name"], "tfrecord", index, count) for index in range(count)]
        if any(Path(name).name != name for name in names):
            raise ValueError("a file is not in the folder of the dataset")
        return TfdsSplit(tuple(path_below(self.folder, name) for name in names), lengths)


# Steps per second -> names of datasets. Bridge has another name in each of its releases.
_DATASETS_BY_RATE = {
    1.0: (
        "robo_net",
        "uiuc_d3field",
    ),
    2.0: ("ucsd_kitchen_dataset_converted_externally_to_rlds",),
    3.0: (
        "fractal20220817_data",
        "nyu_door_opening_surprising_effectiveness",
        "nyu_rot_dataset_converted_externally_to_rlds",
        "nyu_franka_play_dataset_converted_externally_to_rlds",
        "ucsd_pick_and_place_dataset_converted_externally_to_rlds",
        "berkeley_gnm_recon",
    ),
    5.0: (
        "bridge",
        "bridge_dataset",
        "bridge_orig",
        "berkeley_autolab_ur5",
        "berkeley_mvp_converted_externally_to_rlds",
        "dlr_edan_shared_control_converted_externally_to_rlds",
        "stanford_robocook_converted_externally_to_rlds",
        "cmu_play_fusion",
        "berkeley_gnm_cory_hall",
    ),
    10.0: (
        "kuka",
        "jaco_play",
        "berkeley_cable_routing",
        "roboturk",
        "language_table",
        "columbia_cairlab_pusht_real",
        "stanford_hydra_dataset_converted_externally_to_rlds",
        "furniture_bench_dataset_converted_externally_to_rlds",
        "bc_z",
        "utokyo_pr2_opening_fridge_converted_externally_to_rlds",
        "utokyo_pr2_tabletop_manipulation_converted_externally_to_rlds",
        "utokyo_xarm_pick_and_place_converted_externally_to_rlds",
        "utokyo_xarm_bimanual_converted_externally_to_rlds",
        "kaist_nonprehensile_converted_externally_to_rlds",
        "tokyo_u_lsmo_converted_externally_to_rlds",
        "dlr_sara_pour_converted_externally_to_rlds",
        "dlr_sara_grid_clamp_converted_externally_to_rlds",
        "imperialcollege_sawyer_wrist_cam",
        "berkeley_fanuc_manipulation",
        "cmu_stretch",
        "berkeley_gnm_sac_son",
        "fmb",
    ),
    12.5: ("asu_table_top_converted_externally_to_rlds",),
    15.0: (
        "taco_play",
        "droid",
    ),
    20.0: (
        "viola",
        "stanford_kuka_multimodal_dataset_converted_externally_to_rlds",
        "austin_buds_dataset_converted_externally_to_rlds",
        "maniskill_dataset_converted_externally_to_rlds",
        "austin_sailor_dataset_converted_externally_to_rlds",
        "austin_sirius_dataset_converted_externally_to_rlds",
        "iamlab_cmu_pickup_insert_converted_externally_to_rlds",
        "utaustin_mutex",
    ),
    30.0: (
        "toto",
        "berkeley_rpt_converted_externally_to_rlds",
    ),
}
RATES_HZ = {name: rate_hz for rate_hz, names in _DATASETS_BY_RATE.items() for name in names}
# Octo's `rtx`, the mixture of RT-X: weight of each dataset.
RT_X_MIXTURE = {
    "fractal20220817_data": 0.54087122203,
    "kuka": 0.8341046294,
    "bridge_dataset": 1.0,
    "taco_play": 2.0,
    "jaco_play": 2.0,
    "berkeley_cable_routing": 3.0,
    "roboturk": 1.0,
    "nyu_door_opening_surprising_effectiveness": 5.0,
    "viola": 2.0,
    "berkeley_autolab_ur5": 1.0,
    "toto": 1.0,
}
# Octo's `oxe_magic_soup`, which Octo was trained on.
MAGIC_SOUP = {
    "fractal20220817_data": 0.54087122203,
    "kuka": 0.8341046294,
    "bridge_dataset": 1.0,
    "taco_play": 2.0,
    "jaco_play": 1.0,
    "berkeley_cable_routing": 1.0,
    "roboturk": 2.0,
    "nyu_door_opening_surprising_effectiveness": 1.0,
    "viola": 2.0,
    "berkeley_autolab_ur5": 2.0,
    "toto": 1.0,
    "language_table": 0.1,
    "stanford_hydra_dataset_converted_externally_to_rlds": 2.0,
    "austin_buds_dataset_converted_externally_to_rlds": 1.0,
    "nyu_franka_play_dataset_converted_externally_to_rlds": 3.0,
    "furniture_bench_dataset_converted_externally_to_rlds": 0.1,
    "ucsd_kitchen_dataset_converted_externally_to_rlds": 2.0,
    "austin_sailor_dataset_converted_externally_to_rlds": 1.0,
    "austin_sirius_dataset_converted_externally_to_rlds": 1.0,
    "bc_z": 0.2,
    "dlr_edan_shared_control_converted_externally_to_rlds": 1.0,
    "iamlab_cmu_pickup_insert_converted_externally_to_rlds": 1.0,
    "utaustin_mutex": 1.0,
    "berkeley_fanuc_manipulation": 2.0,
    "cmu_stretch": 1.0,
}


def rate_of(name: str, rate_hz: float | None, where: str) -> float:
    """Return the rate that is given, else the published rate of the dataset."""
    if rate_hz is not None:
        return float(rate_hz)
    if name in RATES_HZ:
        return RATES_HZ[name]
    raise DatasetError(f"{where}: the rate of {printable(name, 40)} is not known and RLDS has no stamps; give rate_hz")
