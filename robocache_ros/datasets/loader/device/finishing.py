"""The last steps of a batch, on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robocache_ros.datasets.loader.augmentation import Augmentation, Normalisation
from robocache_ros.datasets.loader.batch import Batch, convert_images


@dataclass(frozen=True)
class Finishing:
    """Normalises and augments batches and converts their images."""

    normalisation: Normalisation
    augmentation: Augmentation | None
    seed: int
    image_dtype: torch.dtype | None
    image_normalize: Any

    def apply(self, batch: Batch, epoch: int) -> Batch:
        """Change a batch of an epoch in place, and return it."""
        self.normalisation.apply(batch)
        if self.augmentation is not None:
            self.augmentation.apply(batch, self.seed, epoch)
        if self.image_dtype is not None:
            convert_images(batch, self.image_dtype, self.image_normalize)
        return batch
