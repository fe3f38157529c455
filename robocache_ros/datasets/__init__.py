"""Public datasets of robot episodes on one timeline. Nothing here needs ROS.

The names below load when first used, so that importing the package does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.datasets.loader.augmentation import Augmentation as Augmentation
    from robocache_ros.datasets.loader.rtx_dataloader import create_rtx_dataloader as create_rtx_dataloader
    from robocache_ros.datasets.loader.runs import ShuffledRuns as ShuffledRuns
    from robocache_ros.datasets.loader.timeline_loader import LoaderOptions as LoaderOptions
    from robocache_ros.datasets.loader.timeline_loader import TimelineLoader as TimelineLoader
    from robocache_ros.datasets.mixture import WeightedMixture as WeightedMixture
    from robocache_ros.datasets.public_datasets import CALVINDataset as CALVINDataset
    from robocache_ros.datasets.public_datasets import LeRobotTimelineDataset as LeRobotTimelineDataset
    from robocache_ros.datasets.public_datasets import RoboMimicDataset as RoboMimicDataset
    from robocache_ros.datasets.public_datasets import RTXDataset as RTXDataset
    from robocache_ros.datasets.public_datasets import open_dataset as open_dataset
    from robocache_ros.datasets.statistics import dataset_statistics as dataset_statistics
    from robocache_ros.datasets.timeline_dataset import TimelineDataset as TimelineDataset
    from robocache_ros.datasets.window import Window as Window
    from robocache_ros.formats.hdf5.read import Hdf5Trajectories as Hdf5Trajectories
    from robocache_ros.formats.read import DatasetError as DatasetError
    from robocache_ros.formats.read import EpisodeSource as EpisodeSource
    from robocache_ros.formats.read import SourceEpisode as SourceEpisode
    from robocache_ros.formats.read import Stream as Stream
    from robocache_ros.formats.rlds.open_x import MAGIC_SOUP as MAGIC_SOUP
    from robocache_ros.formats.rlds.open_x import RT_X_MIXTURE as RT_X_MIXTURE

_HOMES = {
    "robocache_ros.formats.hdf5.read": ("Hdf5Trajectories",),
    "statistics": ("dataset_statistics",),
    "robocache_ros.formats.read": ("DatasetError", "EpisodeSource", "SourceEpisode", "Stream"),
    "robocache_ros.formats.rlds.open_x": ("MAGIC_SOUP", "RT_X_MIXTURE"),
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

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
