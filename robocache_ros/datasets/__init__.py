"""Public datasets of robot episodes on one timeline. Nothing here needs ROS.

The names below load when first used, so that importing the package does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.datasets.loader.augmentation import Augmentation
    from robocache_ros.datasets.loader.rtx_dataloader import create_rtx_dataloader
    from robocache_ros.datasets.loader.runs import ShuffledRuns
    from robocache_ros.datasets.loader.timeline_loader import LoaderOptions, TimelineLoader
    from robocache_ros.datasets.mixture import WeightedMixture
    from robocache_ros.datasets.public_datasets import (
        CALVINDataset,
        LeRobotTimelineDataset,
        RoboMimicDataset,
        RTXDataset,
        open_dataset,
    )
    from robocache_ros.datasets.statistics import dataset_statistics
    from robocache_ros.datasets.timeline_dataset import TimelineDataset
    from robocache_ros.datasets.window import Window
    from robocache_ros.formats.hdf5.read import Hdf5Trajectories
    from robocache_ros.formats.read import DatasetError, EpisodeSource, SourceEpisode, Stream

_HOMES = {
    "robocache_ros.formats.hdf5.read": ("Hdf5Trajectories",),
    "statistics": ("dataset_statistics",),
    "robocache_ros.formats.read": ("DatasetError", "EpisodeSource", "SourceEpisode", "Stream"),
    "loader.augmentation": ("Augmentation",),
    "loader.rtx_dataloader": ("create_rtx_dataloader",),
    "loader.runs": ("ShuffledRuns",),
    "loader.timeline_loader": ("LoaderOptions", "TimelineLoader"),
    "mixture": ("WeightedMixture",),
    "public_datasets": (
        "CALVINDataset",
        "LeRobotTimelineDataset",
        "RTXDataset",
        "RoboMimicDataset",
        "open_dataset",
    ),
    "window": ("Window",),
    "timeline_dataset": ("TimelineDataset",),
}

__all__ = [
    "Augmentation",
    "CALVINDataset",
    "DatasetError",
    "EpisodeSource",
    "Hdf5Trajectories",
    "LeRobotTimelineDataset",
    "LoaderOptions",
    "RTXDataset",
    "RoboMimicDataset",
    "ShuffledRuns",
    "SourceEpisode",
    "Stream",
    "TimelineDataset",
    "TimelineLoader",
    "WeightedMixture",
    "Window",
    "create_rtx_dataloader",
    "dataset_statistics",
    "open_dataset",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
