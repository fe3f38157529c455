"""The formats by name: those of this package, and those of other packages through entry points."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from robocache_ros.datasets.episode_source import DatasetError, EpisodeSource
from robocache_ros.errors import printable

ENTRY_POINTS = "robocache_ros.datasets"
_SOURCES = "robocache_ros.datasets.sources"
# Format -> module and name of what returns its `EpisodeSource`, imported on first use. Exports have the same names.
FORMATS = {
    "rlds": f"{_SOURCES}.rlds_folders:open_rlds",
    "calvin": f"{_SOURCES}.calvin_steps:CalvinSteps",
    "robomimic": f"{_SOURCES}.robomimic_demos:RobomimicDemos",
    "lerobot": f"{_SOURCES}.lerobot_episodes:LeRobotEpisodes",
    "lerobot21": f"{_SOURCES}.lerobot_episodes:LeRobotEpisodes",
    "webdataset": f"{_SOURCES}.exports.webdataset_episodes:WebDatasetEpisodes",
    "diffusion_policy": f"{_SOURCES}.exports.replay_buffer:ReplayBufferEpisodes",
    "mcap": f"{_SOURCES}.exports.mcap_episodes:McapEpisodes",
}


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats, those of other packages last."""
    return (*FORMATS, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(FORMATS)))


def open_source(name: str, path: str | Path, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset.

    Args:
        name: of the format.
        path: the dataset.
        options: of the format.

    Errors:
        DatasetError: there is no such format, or the package that has it cannot be imported.
    """
    source: EpisodeSource
    if name in FORMATS:
        module, _, attribute = FORMATS[name].partition(":")
        source = getattr(import_module(module), attribute)(path, **options)
        return source
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points:
        known = ", ".join(known_formats())
        raise DatasetError(f"format: {printable(name, 40)!r} is not one of {printable(known, 120)}; choose one of them")
    try:
        opens = points[0].load()
    except Exception as error:
        where = printable(points[0].value, 60)
        raise DatasetError(
            f"format: {name} of {where} cannot be imported ({printable(error, 60)}); reinstall it"
        ) from error
    source = opens(path, **options)
    if not all(hasattr(source, method) for method in ("__len__", "read", "span_ns")):
        raise DatasetError(f"format: {name} returns {type(source).__name__}, not an EpisodeSource; reinstall it")
    return source
