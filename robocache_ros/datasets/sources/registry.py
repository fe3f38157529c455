"""The formats by name: those of this package, and those of other packages through entry points."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

from robocache_ros.datasets.episode_source import DatasetError, EpisodeSource, known_names
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats_by_name import FormatsByName

ENTRY_POINTS = "robocache_ros.datasets"
# Format -> module and name of what returns its `EpisodeSource`, imported on first use. Exports have the same names.
FORMATS = {
    "rlds": "robocache_ros.datasets.sources.rlds_folders:open_rlds",
    "calvin": "robocache_ros.datasets.sources.calvin_steps:CalvinSteps",
    "robomimic": "robocache_ros.datasets.sources.robomimic_demos:RobomimicDemos",
    "lerobot": "robocache_ros.datasets.sources.lerobot_episodes:LeRobotEpisodes",
    "lerobot21": "robocache_ros.datasets.sources.lerobot_episodes:LeRobotEpisodes",
    "hdf5": "robocache_ros.datasets.sources.hdf5.hdf5_trajectories:Hdf5Trajectories",
    "webdataset": "robocache_ros.datasets.sources.exports.webdataset_episodes:WebDatasetEpisodes",
    "diffusion_policy": "robocache_ros.datasets.sources.exports.replay_buffer:ReplayBufferEpisodes",
    "mcap": "robocache_ros.datasets.sources.exports.mcap_episodes:McapEpisodes",
    "delta": "robocache_ros.datasets.sources.exports.delta_episodes:DeltaEpisodes",
}


_BY_NAME = FormatsByName("format", FORMATS, ENTRY_POINTS)


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats, those of other packages last."""
    return _BY_NAME.names()


def open_source(name: str, path: str | Path, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset.

    Args:
        name: of the format.
        path: the dataset.
        options: of the format.

    Errors:
        DatasetError: there is no such format, or the package that has it cannot be imported.
        RoboCacheError: the format has no such option.
    """
    try:
        opens = _BY_NAME.load(name)
    except RoboCacheError as error:
        raise DatasetError(str(error)) from error
    parameters = signature(opens).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        known_names(f"options of {name}", options, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY])
    source: EpisodeSource = opens(path, **options)
    if not all(hasattr(source, method) for method in ("__len__", "read", "span_ns")):
        raise DatasetError(f"format: {name} returns {type(source).__name__}, not an EpisodeSource; reinstall it")
    return source
