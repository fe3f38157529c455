"""The last steps of a batch, on its device: normalisation, augmentation and the conversion of images.

Random numbers are drawn on the host, for each sample: the CPU and a GPU apply the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch, convert_images
from robocache_ros.datasets.loader.order import COLOUR, CROP, DROPOUT, NOISE, SHIFT, philox, random_words
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import known_names

_GREY = (0.299, 0.587, 0.114)  # share of red, green and blue in the brightness of a pixel (ITU-R BT.601)


@dataclass(frozen=True)
class Augmentation:
    """Random changes of each sample. A sample has the same ones in an epoch, whatever batch, worker or rank it is in.

    Attributes:
        noise: standard deviation of normal noise by key, such as `{"proprio": 0.01}`, in the unit of the normalised
            values; on valid values only.
        dropout: the probability that a sample loses a stream: its columns of `fused` become 0, its `valid` 0.
        crop: (height, width) of a random part of the images; the same part in all ticks and cameras.
        shift: the most pixels by which images are moved up or down, and left or right; their edge is repeated. All
            ticks and cameras are moved alike. Kostrikov et al. (2020), https://arxiv.org/abs/2004.13649.
        brightness, contrast, saturation: images are changed by a factor in [1 - x, 1 + x]; contrast is around mid-grey.
    """

    noise: Mapping[str, float] = field(default_factory=dict)
    dropout: float = 0.0
    crop: tuple[int, int] | None = None
    shift: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout <= 1:
            raise RoboCacheError(f"dropout: {self.dropout:g} is not in [0, 1]; give a probability")
        if type(self.shift) is not int or self.shift < 0:
            raise RoboCacheError(
                f"shift: {printable(self.shift, 30)} is not a whole number of pixels from 0 on; give one"
            )
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise RoboCacheError(f"{name}: {getattr(self, name):g} is not in [0, 1]; give the range of the factor")

    def apply(self, batch: Batch, seed: int, epoch: int) -> None:
        """Change a batch in place."""
        known_names("noise", self.noise, list(batch.tensors))
        for key, deviation in self.noise.items():
            if deviation:
                self._add_noise(batch, key, deviation, seed, epoch)
        if self.dropout and "valid" in batch.tensors:
            self._drop_streams(batch, seed, epoch)
        images = [key for key in batch.tensors if key.partition("/")[0] == "vision"]
        for key in images:
            if self.crop:
                batch.tensors[key] = self._cropped(batch, key, seed, epoch)
            if self.shift:
                batch.tensors[key] = self._shifted(batch, key, seed, epoch)
            if self.brightness or self.contrast or self.saturation:
                batch.tensors[key] = self._jittered(batch, key, seed, epoch)

    def _add_noise(self, batch: Batch, key: str, deviation: float, seed: int, epoch: int) -> None:
        values = batch.tensors[key]
        noise = np.zeros(values.shape, np.float32)
        for row, sample, length in zip(noise, batch.samples, batch.lengths, strict=True):
            generator = np.random.Generator(philox(seed, epoch, NOISE, sample))
            # Drawn for the sample's own ticks, so that it does not depend on the padding.
            shape = (length, *row.shape[1:]) if key in batch.per_tick else row.shape
            row[: shape[0]] = generator.standard_normal(shape, np.float32) * np.float32(deviation)
        there = batch.columns_valid(key)
        added = torch.from_numpy(noise).to(values.device)
        batch.tensors[key] = values + (added if there is None else added.masked_fill_(~there, 0))

    def _drop_streams(self, batch: Batch, seed: int, epoch: int) -> None:
        valid = batch.tensors["valid"]
        kept = _uniform(seed, epoch, DROPOUT, batch, valid.shape[-1]) >= self.dropout
        keep = torch.from_numpy(kept).to(valid.device)[:, None, :]
        batch.tensors["valid"] = valid * keep
        for key in batch.widths:
            there = batch.columns_valid(key)
            if there is not None:
                batch.tensors[key] = batch.tensors[key].masked_fill(~there, 0)

    def _cropped(self, batch: Batch, key: str, seed: int, epoch: int) -> Tensor:
        assert self.crop
        images, (height, width) = batch.tensors[key], self.crop
        rows, columns = images.shape[-3:-1]
        if height > rows or width > columns:
            raise RoboCacheError(f"crop: {self.crop} of images of {(rows, columns)}; choose a smaller part")
        parts = []
        for image, (u, v) in zip(images, _uniform(seed, epoch, CROP, batch, 2), strict=True):
            top, left = int(u * (rows - height + 1)), int(v * (columns - width + 1))
            parts.append(image[..., top : top + height, left : left + width, :])
        return torch.stack(parts)

    def _shifted(self, batch: Batch, key: str, seed: int, epoch: int) -> Tensor:
        images = batch.tensors[key]
        rows, columns = images.shape[-3:-1]
        moved = (_uniform(seed, epoch, SHIFT, batch, 2) * (2 * self.shift + 1)).astype(np.int64) - self.shift
        row, column = (
            (np.arange(size) - by[:, None]).clip(0, size - 1) for size, by in zip((rows, columns), moved.T, strict=True)
        )
        row, column = (torch.from_numpy(each).to(images.device) for each in (row, column))
        pixels = images.reshape(len(images), -1, rows * columns, images.shape[-1])
        source = (row[:, :, None] * columns + column[:, None, :]).view(len(images), 1, rows * columns, 1)
        return pixels.gather(2, source.expand(pixels.shape)).view(images.shape)

    def _jittered(self, batch: Batch, key: str, seed: int, epoch: int) -> Tensor:
        """Each step is one float32 operation, which CPUs and GPUs round alike."""
        images = batch.tensors[key]
        ranges = np.array([self.brightness, self.contrast, self.saturation])
        factors = 1 + ranges * (2 * _uniform(seed, epoch, COLOUR, batch, 3) - 1)
        shape = (3, len(images), *(1,) * (images.ndim - 1))
        bright, contrast, saturation = (
            torch.from_numpy(factors.astype(np.float32).T.copy()).to(images.device).view(shape)
        )
        pixels = images.float() * bright
        pixels = (pixels - 127.5) * contrast + 127.5
        red, green, blue = (pixels[..., i : i + 1] * share for i, share in enumerate(_GREY))
        grey = red + green + blue
        pixels = (pixels - grey) * saturation + grey
        changed: Tensor = pixels.round_().clamp_(0, 255).to(torch.uint8)
        return changed


def _uniform(seed: int, epoch: int, purpose: int, batch: Batch, count: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1) of each sample of a batch, (B, count)."""
    words = random_words(seed, epoch, purpose, batch.samples, count)
    found: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64)
    found *= 2.0**-53
    return found


class Normalisation:
    """Subtracts the mean and divides by the standard deviation, where values are valid; the others stay 0.

    Args:
        statistics: by key, such as `{"proprio": {"mean": (P,), "std": (P,)}}`. A deviation of 0 counts as 1.
    """

    def __init__(self, statistics: Mapping[str, Mapping[str, Any]]) -> None:
        self._statistics = {}
        for key, given in statistics.items():
            try:
                mean, std = (np.asarray(given[name], np.float32) for name in ("mean", "std"))
            except (ArithmeticError, KeyError, TypeError, ValueError) as error:
                raise RoboCacheError(f"statistics: {key}: {error}; give mean and std of each column") from None
            finite = np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()
            if mean.shape != std.shape or not finite:
                raise RoboCacheError(
                    f"statistics: {key}: mean and std are not finite, or differ in shape; compute them again"
                )
            self._statistics[key] = torch.from_numpy(mean), torch.from_numpy(np.where(std == 0, np.float32(1), std))

    def apply(self, batch: Batch) -> None:
        """Change a batch in place."""
        known_names("statistics", self._statistics, list(batch.tensors))
        for key, (mean, std) in self._statistics.items():
            values = batch.tensors[key]
            if values.shape[-1:] != mean.shape[-1:]:
                shape = tuple(values.shape)
                raise RoboCacheError(f"statistics: {key}: {tuple(mean.shape)} for a batch of {shape}; check the keys")
            if mean.device != values.device:
                mean, std = mean.to(values.device), std.to(values.device)
                self._statistics[key] = mean, std
            there = batch.columns_valid(key)
            scaled = (values - mean) / std
            batch.tensors[key] = scaled if there is None else scaled.masked_fill_(~there, 0)


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
