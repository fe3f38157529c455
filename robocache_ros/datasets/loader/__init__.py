"""Batches for training: order, workers, cache and resume."""

from robocache_ros.datasets.loader.augmentation import Augmentation
from robocache_ros.datasets.loader.timeline_loader import TimelineLoader

__all__ = ["Augmentation", "TimelineLoader"]
