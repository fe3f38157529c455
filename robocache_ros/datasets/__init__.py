"""Public datasets of robot episodes on one timeline. Nothing here needs ROS.

The names below load when first used, so that importing the package does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.datasets.loader.augmentation import Augmentation as Augmentation
    from robocache_ros.datasets.loader.timeline_loader import LoaderOptions as LoaderOptions
    from robocache_ros.datasets.loader.timeline_loader import ShuffledRuns as ShuffledRuns
    from robocache_ros.datasets.loader.timeline_loader import TimelineLoader as TimelineLoader
    from robocache_ros.datasets.loader.timeline_loader import create_rtx_dataloader as create_rtx_dataloader
    from robocache_ros.datasets.mixture import WeightedMixture as WeightedMixture
    from robocache_ros.datasets.public_datasets import CALVINDataset as CALVINDataset
    from robocache_ros.datasets.public_datasets import LeRobotTimelineDataset as LeRobotTimelineDataset
    from robocache_ros.datasets.public_datasets import RoboMimicDataset as RoboMimicDataset
    from robocache_ros.datasets.public_datasets import RTXDataset as RTXDataset
    from robocache_ros.datasets.public_datasets import open_dataset as open_dataset
    from robocache_ros.datasets.statistics import dataset_statistics as dataset_statistics
    from robocache_ros.datasets.timeline_dataset import TimelineDataset as TimelineDataset
    from robocache_ros.datasets.timeline_dataset import Window as Window
    from robocache_ros.formats.hdf5 import Hdf5Trajectories as Hdf5Trajectories
    from robocache_ros.formats.read import DatasetError as DatasetError
    from robocache_ros.formats.read import EpisodeSource as EpisodeSource
    from robocache_ros.formats.read import SourceEpisode as SourceEpisode
    from robocache_ros.formats.read import Stream as Stream
    from robocache_ros.formats.rlds.read import MAGIC_SOUP as MAGIC_SOUP
    from robocache_ros.formats.rlds.read import RT_X_MIXTURE as RT_X_MIXTURE

_HOMES = {
    "robocache_ros.formats.hdf5": ("Hdf5Trajectories",),
    "statistics": ("dataset_statistics",),
    "robocache_ros.formats.read": ("DatasetError", "EpisodeSource", "SourceEpisode", "Stream"),
    "robocache_ros.formats.rlds.read": ("MAGIC_SOUP", "RT_X_MIXTURE"),
    "loader.augmentation": ("Augmentation",),
    "loader.timeline_loader": ("LoaderOptions", "ShuffledRuns", "TimelineLoader", "create_rtx_dataloader"),
    "mixture": ("WeightedMixture",),
    "public_datasets": (
        "CALVINDataset",
        "LeRobotTimelineDataset",
        "RTXDataset",
        "RoboMimicDataset",
        "open_dataset",
    ),
    "timeline_dataset": ("TimelineDataset", "Window"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
