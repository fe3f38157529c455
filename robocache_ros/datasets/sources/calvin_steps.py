"""CALVIN: one npz file per step, recordings as ranges of steps, and language as ranges with an instruction.

No stamps are stored; the published rate is 30 Hz.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import (
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
    DatasetError,
    SourceEpisode,
    Stream,
    check_image_bytes,
    nominal_span,
    nominal_stamps,
    numbers,
)
from robocache_ros.datasets.sources.restricted_pickle import load_arrays
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.file_limits import IMAGE_RATIO, check_decoded
from robocache_ros.remote.any_path import as_path
from robocache_ros.untrusted_files import file_below, folder_below, open_file

RATE_HZ = 30.0
LANGUAGE = "lang_annotations/auto_lang_ann.npy"
RANGES = "ep_start_end_ids.npy"
PROPRIO, ACTIONS = "robot_obs", ("rel_actions", "actions")
ALL = "all"
MAX_STEP_BYTES = 256 << 20  # of an array of a step


@dataclass(frozen=True)
class _Steps:
    first: int
    last: int  # inclusive
    task: str = ""


class CalvinSteps:
    """The episodes of a split of CALVIN.

    Args:
        path: the dataset, or the folder of a split.
        split: training or validation, if `path` is the dataset.
        tasks: names of tasks, such as `open_drawer`: an episode is a range that was annotated with one of them.
            `["all"]`: all annotated ranges, or the whole recordings where there are no annotations. Empty: the whole
            recordings, without language.
        cameras: static and gripper.
        actions: rel_actions (relative to the last step, scaled, within -1 … 1) or actions (absolute).

    Errors:
        DatasetError: a file is missing or damaged, or a task or a camera is not known.
    """

    name = "calvin"

    def __init__(
        self,
        path: str | Path,
        *,
        split: str = "training",
        tasks: Sequence[str] = (ALL,),
        cameras: Sequence[str] = ("static", "gripper"),
        actions: str = ACTIONS[0],
    ) -> None:
        folder = as_path(path)
        self.folder = (
            folder if (folder / RANGES).exists() or not (folder / split).is_dir() else folder_below(folder, split)
        )
        if actions not in ACTIONS:
            raise DatasetError(
                f"actions: {printable(actions, 40)} is not one of {', '.join(ACTIONS)}; choose one of them"
            )
        self._actions, self._cameras = actions, tuple(cameras)
        recordings = _ranges(_array(self.folder), self.folder / RANGES)
        self._episodes = self._annotated(tasks) if tasks else None
        if self._episodes is None:
            self._episodes = [_Steps(first, last) for first, last in recordings]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.folder / RANGES, self.folder / LANGUAGE)

    def __len__(self) -> int:
        assert self._episodes is not None
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are read when they are asked for."""
        steps = self._steps(index)
        count = steps.last - steps.first + 1
        stamps, where = nominal_stamps(count, RATE_HZ), self._where(steps)
        found: dict[str, list[NDArray[Any]]] = {PROPRIO: [], self._actions: []}
        for step in range(steps.first, steps.last + 1):
            for key, value in _read_step(self.folder, step, found).items():
                found[key].append(value)
                if value.nbytes * count > MAX_VECTOR_BYTES:
                    raise DatasetError(f"{where}: {printable(key, 40)}: {value.nbytes:,} bytes a step; check the files")
        streams = {}
        for name, key, role in (("proprio", PROPRIO, "observation"), ("actions", self._actions, "action")):
            streams[name] = Stream(
                name, stamps, numbers(_stacked(found[key], f"{where}: {key}"), f"{where}: {key}"), False, role
            )
        for camera in self._cameras:
            name = f"vision/{camera}"
            streams[name] = Stream(name, stamps, _Frames(self.folder, steps.first, count, f"rgb_{camera}"), False)
        return SourceEpisode(streams, steps.task, self.name, where)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        steps = self._steps(index)
        return nominal_span(steps.last - steps.first + 1, RATE_HZ)

    def _steps(self, index: int) -> _Steps:
        assert self._episodes is not None
        return self._episodes[index]

    def _where(self, steps: _Steps) -> str:
        return f"{printable(self.folder, 60)}: steps {steps.first} to {steps.last}"

    def _annotated(self, tasks: Sequence[str]) -> list[_Steps] | None:
        """Return the annotated ranges of some tasks; None for all tasks of recordings without annotations."""
        path = self.folder / LANGUAGE
        everything = list(tasks) == [ALL]
        if everything and not path.exists():
            return None
        told = load_arrays(file_below(self.folder, LANGUAGE))
        try:
            texts, names = list(told["language"]["ann"]), list(told["language"]["task"])
            ranges = _ranges(np.array(told["info"]["indx"], np.int64), path)
        except (ArithmeticError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DatasetError(
                f"{printable(path)}: not CALVIN's annotations ({printable(error, 60)}); get it again"
            ) from None
        if not len(texts) == len(names) == len(ranges):
            raise DatasetError(f"{printable(path)}: {len(texts)} texts for {len(ranges)} ranges; get the file again")
        if not everything and (unknown := [task for task in tasks if task not in names]):
            known = ", ".join(sorted({printable(name, 40) for name in names})[:8])
            raise DatasetError(
                f"tasks: no {printable(unknown[0], 40)} in {printable(path, 60)}; there are {known}"[:199]
            )
        annotated = zip(ranges, texts, names, strict=True)
        return [_Steps(*steps, str(text)) for steps, text, name in annotated if everything or name in tasks]


@dataclass(frozen=True)
class _Frames:
    """The images of a camera, read step by step."""

    folder: Path
    first: int
    count: int
    key: str

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if len(rows):
            shape = _read_step(self.folder, self.first + int(rows[0]), (self.key,))[self.key].shape
            check_image_bytes(len(rows), shape, f"{printable(self.folder, 60)}: {self.key}")
        images = [_read_step(self.folder, self.first + row, (self.key,))[self.key] for row in rows.tolist()]
        where = f"{printable(self.folder, 60)}: step {self.first + int(rows[0])}: {self.key}"
        if images[0].ndim != 3 or images[0].shape[2] != 3 or images[0].dtype != np.uint8:
            raise DatasetError(
                f"{where}: {images[0].dtype} {images[0].shape}, not an 8-bit RGB image; choose other cameras"
            )
        stacked: NDArray[np.uint8] = _stacked(images, where)
        return stacked


def _stacked(values: list[NDArray[Any]], where: str) -> NDArray[Any]:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise DatasetError(f"{where}: its shape differs from step to step; get the files again")
    return np.stack(values)


def _read_step(folder: Path, step: int, keys: Any) -> dict[str, NDArray[Any]]:
    path = file_below(folder, f"episode_{step:07d}.npz")
    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as arrays:
            for key in keys:
                member, label = arrays.zip.getinfo(f"{key}.npy"), f"{printable(path)}: {printable(key, 40)}"
                if member.file_size > MAX_STEP_BYTES:
                    raise DatasetError(f"{label}: {member.file_size:,} bytes; check the file")
                check_decoded(member.file_size, member.compress_size, label, IMAGE_RATIO)
            found = {key: arrays[key] for key in keys}
            if not all(isinstance(value, np.ndarray) for value in found.values()):
                raise DatasetError(f"{printable(path)}: damaged (a header of an array); get the file again")
            return found
    except KeyError as error:
        raise DatasetError(
            f"{printable(path)}: {printable(error.args[0], 60)}; choose another camera or get the file again"
        ) from None
    except RoboCacheError as error:
        raise DatasetError(str(error)) from None
    except Exception as error:  # damaged headers of arrays raise errors of any kind
        raise DatasetError(f"{printable(path)}: damaged ({printable(error, 60)}); get the file again") from None


def _array(folder: Path) -> NDArray[Any]:
    path = file_below(folder, RANGES)
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(os.fspath(path), "r")
    except Exception as error:  # damaged headers of arrays raise errors of any kind
        reason = f"damaged ({printable(error, 60)})"
        raise DatasetError(f"{printable(path)}: {reason}; give the folder of a CALVIN dataset") from None
    return array


def _ranges(ranges: NDArray[Any], path: Path) -> list[tuple[int, int]]:
    """Return (N, 2) ranges of steps."""
    if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype.kind not in "iu" or len(ranges) > MAX_EPISODES:
        raise DatasetError(f"{printable(path)}: {ranges.dtype} {ranges.shape}, not ranges of steps; get the file again")
    found = [(int(first), int(last)) for first, last in ranges]
    for first, last in found:
        if not 0 <= first <= last < first + MAX_STEPS:
            raise DatasetError(f"{printable(path)}: {first} to {last} is not a range of steps; get the file again")
    return found
