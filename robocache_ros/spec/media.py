"""Processing of images and point clouds: crop, size and normalization, or the voxel grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from robocache_ros.reductions import SPEC_REDUCTIONS, ReductionKind
from robocache_ros.spec.keys import choice, converted, either, integer, key, many, nested, number, text
from robocache_ros.spec.problems import refusal

# Mean and standard deviation of the ImageNet RGB channels in 0..1, as used to train torchvision models.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_triple = many(number(-1e6, 1e6), length=3)
_pixels = integer(1, 16384)


@dataclass(frozen=True)
class Normalize:
    """Per-channel normalisation `(x / 255 - mean) / std` of RGB values."""

    mean: tuple[float, ...] = key(many(number(-10, 10)), "mean of each channel in 0..1")
    std: tuple[float, ...] = key(many(number(0, 10, above=True)), "standard deviation of each channel in 0..1")

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise refusal("std", f"has {len(self.std)} values, but mean has {len(self.mean)}; give one per channel")


_named = {"imagenet": Normalize(*IMAGENET)}


@dataclass(frozen=True)
class ImageSpec:
    """How an image is processed: cropped, resized, then normalised for the policy."""

    size: tuple[int, int] | None = key(
        many(_pixels, length=2), "height and width of the result", default=None, unit="px"
    )
    crop: tuple[int, int, int, int] | None = key(
        many(integer(0, 16384), length=4), "top, left, height, width cut out before resizing", default=None, unit="px"
    )
    resize: str = key(choice("bilinear", "nearest", "area"), "how pixels are resampled", default="bilinear")
    normalize: Normalize | None = key(
        either(
            converted(choice(*_named), lambda name: _named[name]),
            nested(Normalize),
        ),
        "imagenet, or mean and std, applied where the image becomes a tensor",
        default=None,
    )

    def __post_init__(self) -> None:
        if self.crop and not (self.crop[2] and self.crop[3]):
            raise refusal("crop", f"{list(self.crop)} is empty; the order is top, left, height, width")


@dataclass(frozen=True)
class Extrinsic:
    """Pose of the sensor in the grid's frame, `T_base_sensor` (base <- sensor)."""

    translation_m: tuple[float, float, float] = key(_triple, "position of the sensor", unit="m")
    rotation_xyzw: tuple[float, ...] = key(
        many(number(-1, 1), length=4), "orientation of the sensor", unit="quaternion"
    )

    def __post_init__(self) -> None:
        if abs(self._norm - 1) > 1e-3:
            raise refusal("rotation_xyzw", f"its norm is {self._norm:.4f}, not 1; give a unit quaternion")

    @property
    def _norm(self) -> float:
        x, y, z, w = self.rotation_xyzw
        return math.sqrt(x * x + y * y + z * z + w * w)  # sum() rounds differently since Python 3.12

    @cached_property
    def matrix(self) -> tuple[tuple[float, ...], ...]:
        """The rows of the 3x4 matrix [R | t]."""
        scale = 1 / self._norm
        x, y, z, w = (q * scale for q in self.rotation_xyzw)
        rotation = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
        return tuple((*row, t) for row, t in zip(rotation, self.translation_m, strict=True))


_MEANINGS = ", ".join(f"{kind.summary} ({name})" for name, kind in SPEC_REDUCTIONS.items())
_OF_FEATURES = ", ".join(name for name, kind in SPEC_REDUCTIONS.items() if kind.needs_features)


@dataclass(frozen=True)
class VoxelSpec:
    """The dense voxel grid that a point cloud is reduced to."""

    origin_m: tuple[float, float, float] = key(_triple, "corner of the grid with the smallest coordinates", unit="m")
    size_m: tuple[float, float, float] = key(
        converted(
            either(number(0, 1e4, above=True), many(number(0, 1e4, above=True), length=3)),
            lambda size: size if isinstance(size, tuple) else (size,) * 3,
        ),
        "edge of a voxel; one value, or one per axis",
        unit="m",
    )
    shape: tuple[int, int, int] = key(many(integer(1, 4096), length=3), "voxels along x, y and z")
    reduce: str = key(choice(*SPEC_REDUCTIONS), f"what a voxel holds: {_MEANINGS}", default="occupancy")
    features: tuple[str, ...] = key(
        many(text("a field of the cloud"), unique=True),
        f"fields of the cloud to reduce ({_OF_FEATURES}); of a depth image x, y, z, r, g, b",
        default=(),
    )
    extrinsic: Extrinsic | None = key(nested(Extrinsic), "pose of the sensor in the grid's frame", default=None)
    frame: str = key(
        text("a frame such as base_link"),
        "the grid's frame; the sensor's pose in it comes from /tf_static and /tf",
        default="",
    )

    def __post_init__(self) -> None:
        if self.frame and self.extrinsic:
            raise refusal("frame", "given together with extrinsic; give one of the two")
        if math.prod(self.shape) > 2**30:
            raise refusal("shape", f"{list(self.shape)} has {math.prod(self.shape)} voxels; use at most 2**30")
        if self.reduction.needs_features != bool(self.features):
            hint = "has features; leave them out" if self.features else "needs features; list fields of the cloud"
            raise refusal("reduce", f"{self.reduce!r} {hint}")

    @property
    def reduction(self) -> ReductionKind:
        """The reduction selected by `reduce`."""
        return SPEC_REDUCTIONS[self.reduce]
