"""Folders of TFDS datasets: a dataset, its versions, or several datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robocache_ros.datasets.episode_source import DatasetError, EpisodeSource
from robocache_ros.datasets.sources.chained import ChainedEpisodes
from robocache_ros.datasets.sources.rlds_episodes import RldsEpisodes
from robocache_ros.errors import printable
from robocache_ros.remote.any_path import as_path
from robocache_ros.untrusted_files import folder_below

MAX_DATASETS = 10_000  # in a folder


def open_rlds(path: str | Path, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset, of its newest version, or of all datasets in a folder, by name.

    Args:
        path: the folder.
        options: of `RldsEpisodes`.

    Errors:
        DatasetError: there is no dataset.
    """
    top = as_path(path)
    folders = [folder_below(top, str(folder)[len(str(top)) :].strip("/")) for folder in _tfds_folders(top)]
    sources = [RldsEpisodes(folder, **options) for folder in folders]
    return sources[0] if len(sources) == 1 else ChainedEpisodes(sources)


def _tfds_folders(path: Path) -> list[Path]:
    """Return the folders of datasets: itself, its newest version, or those of each dataset in it."""
    if (path / "dataset_info.json").exists():
        return [path]
    if versions := [folder for folder in _folders(path) if (folder / "dataset_info.json").exists()]:
        return [max(versions, key=lambda folder: [int(n) for n in folder.name.split(".") if n.isdecimal()])]
    found = [_tfds_folders(folder)[0] for folder in _folders(path) if any(folder.glob("*/dataset_info.json"))]
    if not found:
        raise DatasetError(f"{printable(path)}: no dataset_info.json; give the folder of a TFDS dataset")
    return found


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DatasetError(f"{printable(path)}: not a folder; give the folder of a dataset")
    folders = sorted(each for each in path.iterdir() if each.is_dir())
    if len(folders) > MAX_DATASETS:
        raise DatasetError(f"{printable(path)}: {len(folders):,} folders; at most {MAX_DATASETS:,} are read")
    return folders
