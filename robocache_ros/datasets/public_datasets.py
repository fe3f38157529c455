"""The datasets by their names: a source of one format on a timeline, from a local path or a URL."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache_ros.datasets.timeline_dataset import RESIZES, TimelineDataset, Window
from robocache_ros.errors import printable
from robocache_ros.formats.calvin import CalvinSteps
from robocache_ros.formats.lerobot.read import LeRobotEpisodes
from robocache_ros.formats.read import ChainedEpisodes, DatasetError, known_names
from robocache_ros.formats.registry import open_source
from robocache_ros.formats.rlds.read import Mapped, open_rlds
from robocache_ros.formats.robomimic import RobomimicDemos
from robocache_ros.storage.paths import AnyPath, any_path
from robocache_ros.untrusted_files import file_below, name_below


def dataset_path(
    path: str | AnyPath,
    *,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AnyPath:
    """Return the path of a dataset; see `any_path`. Downloaded files are in robocache_ros/datasets by default."""
    return any_path(path, "datasets", cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=storage_options)


ALL_MODALITIES = ("vision", "proprio", "language")
_TIMELINE = ("align", "window", "image_size", "image_resize")
_FILES = ("cache_dir", "cache_bytes", "storage_options")


class RTXDataset(TimelineDataset):
    """RLDS datasets (TFDS), as those of Open X-Embodiment.

    Args:
        path: a dataset, its version, or a folder of several datasets, which follow each other by name; as of all
            classes, a local path or a URL of fsspec.
        modalities, target_hz: see `TimelineDataset`.
        split: train, or another that dataset_info.json names.
        rate_hz: steps per second; None: that of a known dataset of Open X. Exports of this project need none.
        features: features that replace those found by the rules in `rlds_features`, such as
            `{"vision": ["observation/image_0"], "proprio": ["observation/state"]}`.
        options: align, window, image_size and image_resize of `TimelineDataset`; cache_dir, cache_bytes and
            storage_options of `dataset_path`, for a URL.
    """

    def __init__(
        self,
        path: str | AnyPath,
        modalities: Sequence[str] = ALL_MODALITIES,
        target_hz: float = 50.0,
        *,
        split: str = "train",
        rate_hz: float | None = None,
        features: Mapped | None = None,
        **options: Any,
    ) -> None:
        path = _of_timeline(path, options)
        source = open_rlds(path, split=split, rate_hz=rate_hz, features=features)
        super().__init__(source, target_hz=target_hz, modalities=modalities, **options)


class CALVINDataset(TimelineDataset):
    """CALVIN.

    Args:
        path: the dataset, or the folder of a split.
        tasks, cameras, split, actions: see `CalvinSteps`.
        target_hz, options: see `RTXDataset`.
    """

    def __init__(
        self,
        path: str | AnyPath,
        tasks: Sequence[str] = ("all",),
        cameras: Sequence[str] = ("static", "gripper"),
        target_hz: float = 50.0,
        *,
        split: str = "training",
        actions: str = "rel_actions",
        **options: Any,
    ) -> None:
        path = _of_timeline(path, options)
        source = CalvinSteps(path, split=split, tasks=tasks, cameras=cameras, actions=actions)
        super().__init__(source, target_hz=target_hz, modalities=ALL_MODALITIES, **options)


class RoboMimicDataset(TimelineDataset):
    """robomimic.

    Args:
        path: a file, or the folder of an export; with `tasks`, a folder with a file of each task: `<task>.hdf5`, the
            only one below `<task>/`, or the only one with the task in its name; of several, the only one with
            `obs_modality` in its name.
        tasks: the tasks; None: `path` is a file or an export.
        obs_modality, obs_keys, mask, rate_hz: see `RobomimicDemos`.
        target_hz, modalities, options: see `RTXDataset`.
    """

    def __init__(
        self,
        path: str | AnyPath,
        tasks: Sequence[str] | None = None,
        obs_modality: str = "low_dim",
        target_hz: float = 50.0,
        *,
        modalities: Sequence[str] = ALL_MODALITIES,
        obs_keys: Sequence[str] | None = None,
        mask: str | None = None,
        rate_hz: float | None = None,
        **options: Any,
    ) -> None:
        given = _of_timeline(path, options)
        files = [given] if tasks is None else [_task_file(given, task, obs_modality) for task in tasks]
        sources = [
            RobomimicDemos(file, obs_modality=obs_modality, obs_keys=obs_keys, mask=mask, rate_hz=rate_hz)
            for file in files
        ]
        source = sources[0] if len(sources) == 1 else ChainedEpisodes(sources)
        super().__init__(source, target_hz=target_hz, modalities=modalities, **options)


class LeRobotTimelineDataset(TimelineDataset):
    """LeRobot v3.0 and v2.1.

    Args:
        path: the folder with `meta/`.
        cameras, episodes: see `LeRobotEpisodes`.
        modalities, target_hz, options: see `RTXDataset`.
    """

    def __init__(
        self,
        path: str | AnyPath,
        modalities: Sequence[str] = ALL_MODALITIES,
        target_hz: float = 50.0,
        *,
        cameras: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        path = _of_timeline(path, options)
        source = LeRobotEpisodes(path, cameras=cameras, episodes=episodes)
        super().__init__(source, target_hz=target_hz, modalities=modalities, **options)


def open_dataset(
    name: str,
    path: str | AnyPath,
    *,
    target_hz: float = 50.0,
    modalities: Sequence[str] = ALL_MODALITIES,
    align: Mapping[str, str] | None = None,
    window: Window | None = None,
    image_size: Sequence[int] | None = None,
    image_resize: str = RESIZES[0],
    **options: Any,
) -> TimelineDataset:
    """Open a dataset of any format.

    Args:
        name: rlds, calvin, robomimic, lerobot, lerobot21, hdf5, webdataset, diffusion_policy, mcap or delta; or an
            entry point of the group `robocache_ros.datasets`, which is called with `path` and `options` and returns an
            `EpisodeSource`.
        path: the dataset.
        target_hz: see `TimelineDataset`, as the others up to `options`.
        modalities: the parts that are read.
        align: alignments by name or role.
        window: the ticks of a sample.
        image_size: height and width of all images.
        image_resize: how images are resized.
        options: of the format; cache_dir, cache_bytes and storage_options of `dataset_path`, for a URL.

    Errors:
        DatasetError: there is no such format.
    """
    path = _taken(path, options)
    source = open_source(name, path, **options)
    return TimelineDataset(
        source,
        target_hz=target_hz,
        modalities=modalities,
        align=align,
        window=window,
        image_size=image_size,
        image_resize=image_resize,
    )


def _task_file(path: AnyPath, task: str, modality: str) -> AnyPath:
    """Return the file of a task: the only one in its folder or with its name, or the one of these with the modality."""
    if path.is_file() or (path / f"{task}.hdf5").exists():
        return path if path.is_file() else file_below(path, f"{task}.hdf5")
    found = [*(path / task).rglob("*.hdf5")] or [*path.glob(f"*{glob.escape(task)}*.hdf5")]
    if len(found) > 1:
        found = [file for file in found if modality in file.name]
    if len(found) != 1:
        raise DatasetError(
            f"{printable(path, 60)}: {len(found)} files of {printable(task, 40)} with {modality} in the name, not 1; "
            "give the file itself"
        )
    return file_below(path, name_below(path, found[0]))


def _of_timeline(path: str | AnyPath, options: dict[str, Any]) -> AnyPath:
    """Return the path of a dataset, and leave those of its options that a `TimelineDataset` has."""
    known_names("options", options, (*_TIMELINE, *_FILES))
    return _taken(path, options)


def _taken(path: str | AnyPath, options: dict[str, Any]) -> AnyPath:
    """Return the path of a dataset, and take the options of its files out of the others."""
    files = {name: options.pop(name) for name in _FILES if name in options}
    return dataset_path(path, **files)
