"""Read RLDS datasets: those of Open X-Embodiment, and exports."""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.fork import cached_until_fork
from robocache_ros.formats.columns import ArrayRows, ExportColumns, channels_last, export_columns, read_marks
from robocache_ros.formats.read import (
    MAX_EPISODES,
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
from robocache_ros.formats.rlds import schema
from robocache_ros.formats.rlds.open_x import rate_of
from robocache_ros.formats.rlds.tfds import CompressedArrays, TfdsDataset, TfdsFeature, unlisted, values_of
from robocache_ros.formats.rlds.tfrecord import RecordFile, parse_example
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, folder_below, name_below

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
    schema.LANGUAGE,
    "steps/observation/natural_language_instruction",
    "steps/observation/language_instruction",
)
KINDS = ("vision", "proprio", "actions", "language")
Mapped = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RldsFeatures:
    """Paths of features by what they are; see the rules above."""

    vision: tuple[str, ...]
    proprio: tuple[str, ...]
    actions: tuple[str, ...]
    language: tuple[str, ...]
    reward: tuple[str, ...]

    @property
    def all(self) -> set[str]:
        """All paths."""
        return {*self.vision, *self.proprio, *self.actions, *self.language, *self.reward}


def find_features(features: Sequence[TfdsFeature], mapping: Mapped, where: str) -> RldsFeatures:
    """Find the features by the rules above.

    Args:
        features: of the dataset.
        mapping: for any of vision, proprio, actions and language the paths to use instead, such as
            `{"proprio": ["observation/joints", "observation/gripper"]}`; `steps/` may be left out.
        where: the dataset, for errors.

    Errors:
        DatasetError: the mapping names a feature that there is not.
    """
    steps = {
        feature.path: feature for feature in features if feature.path.startswith(schema.STEPS) and feature.levels == 1
    }
    found = {
        "vision": [
            p for p, f in steps.items() if p.startswith(schema.OBSERVATION) and f.kind == "image" and "depth" not in p
        ],
        "proprio": _proprio(steps),
        "actions": [
            p for p, f in steps.items() if p == schema.ACTION or (p.startswith(schema.ACTION + "/") and _floating(f))
        ],
        "language": [p for p in _LANGUAGE if p in steps and steps[p].kind == "text"],
    }
    for kind, paths in mapping.items():
        if kind not in KINDS:
            raise DatasetError(f"features: {printable(kind, 40)} is not one of {', '.join(KINDS)}; choose one of them")
        given = [paths] if isinstance(paths, str) else list(paths)
        found[kind] = [path if path in steps else schema.STEPS + path for path in given]
        missing = [path for path in found[kind] if path not in steps]
        if missing:
            raise DatasetError(f"{where}: has no feature {printable(missing[0], 60)}; features.json has the names")
    reward = tuple(path for path in (schema.REWARD,) if path in steps)
    vision, proprio, actions, language = (tuple(found[kind]) for kind in KINDS)
    return RldsFeatures(vision, proprio, actions, language, reward)


def _proprio(steps: Mapping[str, TfdsFeature]) -> list[str]:
    vectors = {
        p.removeprefix(schema.OBSERVATION): p
        for p, f in steps.items()
        if p.startswith(schema.OBSERVATION) and _floating(f)
    }
    for name in _PROPRIO:
        if name in vectors:
            return [vectors[name]]
    return [path for name, path in vectors.items() if "embedding" not in name]


def _floating(feature: TfdsFeature) -> bool:
    is_vector = feature.kind == "tensor" and len(feature.shape) <= 1 and feature.encoding == "none"
    return is_vector and feature.dtype.startswith("float")


RECORD_BYTES = 1 << 30  # of an episode
OPEN_FILES = 64  # whose offsets stay in memory
_MARKS = (schema.TICK, schema.VALID, schema.AGE)


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
        self.name, self._files = dataset.name, dataset.splits[split].files
        self._lengths = dataset.splits[split].lengths
        if self._files and not any(file.exists() for file in self._files):
            there = [name for name, each in dataset.splits.items() if any(file.exists() for file in each.files)]
            way_out = f"split='{printable(there[0], 40)}' has files" if there else "get the files"
            raise DatasetError(f"{where}: no file of the split {printable(split, 40)} is there; {way_out}")
        self._ends = list(accumulate(self._lengths))
        if self._ends and self._ends[-1] > MAX_EPISODES:
            raise DatasetError(f"{where}: {self._ends[-1]:,} episodes; at most {MAX_EPISODES:,} are read")
        self._folder = as_path(folder)
        self.export = _read_export(self._folder)
        self._paths = find_features(dataset.features, features or {}, where)
        self._rate_hz = 0.0 if self.export else rate_of(self.name, rate_hz, where)
        wanted = {*self._paths.all, *(_MARKS if self.export else ())}
        if self.export:
            wanted |= {
                f.path for f in dataset.features if f.path.startswith(schema.OBSERVATION) or f.path == schema.SUCCESS
            }
        # Only what is used is parsed further. `is_first` counts the steps.
        first = {"steps/is_first", schema.TICK}
        self._listed = dataset.features
        self._features = tuple(f for f in dataset.features if f.path in wanted)
        self._counting = tuple(f for f in dataset.features if f.path in first) or self._features

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return self._files

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        where, values = self._values(index, self._features)
        task = next((v[0] for v in (values[path] for path in self._paths.language) if v and v[0]), "")
        counts = {path: len(each) for path, each in values.items() if path.startswith(schema.STEPS)}
        if odd := [path for path, count in counts.items() if count != next(iter(counts.values()))]:
            first, count = next(iter(counts.items()))
            raise DatasetError(
                f"{where}: {counts[odd[0]]:,} steps of {printable(odd[0], 40)}, {count:,} of {printable(first, 40)}; "
                "get features.json again"
            )
        streams = self._exported(values, where) if self.export else self._nominal(values, where)
        success = int(values[schema.SUCCESS]) if schema.SUCCESS in values else -1
        return SourceEpisode(streams, task, self.name, where, None if success < 0 else success > 0)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode. Its record is read, but its images are not."""
        where, values = self._values(index, self._counting)
        if schema.TICK in values:
            ticks = values[schema.TICK]
            if not len(ticks):
                raise DatasetError(f"{where}: no steps; leave the episode out")
            return int(ticks[0]), int(ticks[-1])
        return nominal_span(
            max(len(each) for path, each in values.items() if path.startswith(schema.STEPS)), self._rate_hz
        )

    def _values(self, index: int, features: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        file = bisect_right(self._ends, index)
        record = index - (self._ends[file - 1] if file else 0)
        where = f"{printable(self._files[file])}: record {record}"
        with refusing(where):
            opened = _record_file(file_below(self._folder, self._files[file].name), os.getpid())
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
        if names := unlisted(stored, self._listed):
            path, name = printable(self._files[0].with_name(schema.FEATURES), 80), printable(names[0], 40)
            warnings.warn(f"{path}: does not list {name}, which the records have; check the file", stacklevel=2)

    def _nominal(self, values: Mapping[str, Any], where: str) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        single = {"observation": len(self._paths.proprio) == 1, "action": len(self._paths.actions) == 1}
        for role, paths, name in (
            ("observation", self._paths.proprio, "proprio"),
            ("action", self._paths.actions, "actions"),
            ("reward", self._paths.reward, "rewards"),
        ):
            for path in paths:
                label = name if single.get(role, True) else path.removeprefix(schema.STEPS)
                table = numbers(np.asarray(values[path]), f"{where}: {path}")
                streams[label] = Stream(label, self._stamps(len(table)), table, False, role)
        for path in self._paths.vision:
            camera = path.removeprefix(schema.OBSERVATION)
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
        arrays: dict[str, Any] = {}
        for path, role in ((schema.STATE, "observation"), (schema.ACTION, "action")):
            if path in values:
                table = numbers(values[path], f"{where}: {path}")
                found.update(columns.split(table, role, f"{where}: {path}"))
        for name, about in columns.streams.items():
            path = schema.OBSERVATION + name
            if path not in values:
                continue
            if about.kind == "vector":  # a window
                found[name] = numbers(values[path], f"{where}: {path}")
            elif isinstance(values[path], CompressedArrays):
                read = partial(_array, values[path], about.kind)
                arrays[name] = ArrayRows(len(values[path]), read, f"{where}: {path}")
            elif path in self._paths.vision:
                found[name] = values[path]
        return columns.episode_streams(ticks, marks, found, arrays, values.get(schema.REWARD), where)


def _array(stored: CompressedArrays, kind: str, row: int) -> NDArray[Any]:
    return channels_last(stored[row], kind)


@cached_until_fork(OPEN_FILES)
def _record_file(path: DatasetFile, process: int) -> RecordFile:
    return RecordFile(path, limit=RECORD_BYTES)  # in each process, because processes would share the place in a file


def _read_export(folder: AnyPath) -> ExportColumns | None:
    path = folder / PROVENANCE
    return export_columns(read_object(file_below(folder, path.name)), printable(path)) if path.exists() else None


MAX_DATASETS = 10_000  # in a folder


def open_rlds(path: str | AnyPath, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset, of its newest version, or of all datasets in a folder, by name.

    Args:
        path: the folder.
        options: of `RldsEpisodes`.

    Errors:
        DatasetError: there is no dataset.
    """
    top = as_path(path)
    folders = [folder_below(top, name_below(top, folder)) for folder in _tfds_folders(top)]
    sources = [RldsEpisodes(folder, **options) for folder in folders]
    return sources[0] if len(sources) == 1 else ChainedEpisodes(sources)


def _tfds_folders(path: AnyPath) -> list[AnyPath]:
    """Return the folders of datasets: itself, its newest version, or those of each dataset in it."""
    if (path / schema.INFO).exists():
        return [path]
    if versions := [folder for folder in _folders(path) if (folder / schema.INFO).exists()]:
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
