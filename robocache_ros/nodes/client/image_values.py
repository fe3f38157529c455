"""Images for a policy: 8-bit pixels, values in 0..1 as in datasets, or normalised values."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros import ops
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.image.conversion import mean_std
from robocache_ros.spec import StreamSpec

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)


class ImageConverter:
    """Converts the images of a fusion node to the values that a policy requests.

    Args:
        dtype: float32, float16 or bfloat16 for x / 255 of each 8-bit value x, computed in float32 and rounded once;
            uint8 for the 8-bit values themselves.
        normalize: return (x / 255 - mean) / std instead, if the stream's spec has `normalize`.

    Raises:
        RoboCacheError: another dtype, or uint8 with `normalize`.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, *, normalize: bool = False) -> None:
        if dtype not in DTYPES:
            raise RoboCacheError(f"dtype: {dtype} is not one of {', '.join(str(known) for known in DTYPES)}")
        if normalize and dtype == torch.uint8:
            raise RoboCacheError("normalize: normalised images are not uint8; give a floating dtype")
        self._dtype = dtype
        self._normalize = normalize

    def __call__(self, stream: StreamSpec, tensor: Tensor | None) -> Tensor:
        """Convert an image; the tensor of a voxel stream is returned unchanged.

        Args:
            stream: the stream of the tensor.
            tensor: (C, H, W) as the node provides it: uint8; float32 for depth, or from a node that normalises. None if
                no image has arrived yet and the size is not declared.

        Returns:
            (C, H, W) on the same device; (0,) for None. Depth keeps its unit: float32 in metres or millimetres.
        """
        if stream.voxels:
            return torch.zeros(0) if tensor is None else tensor
        if tensor is None:
            return torch.zeros(0, dtype=self._dtype)
        normalization = stream.image.normalize if stream.image else None
        if tensor.dtype != torch.uint8:
            if len(tensor) != 3:  # depth
                return tensor if self._dtype == torch.uint8 else tensor.to(self._dtype)
            if self._normalize or (normalization is None and self._dtype != torch.uint8):
                return tensor.to(self._dtype)
            tensor = _pixels(tensor, normalization)
        if self._dtype == torch.uint8:
            return tensor
        return ops.normalize_image(tensor, normalization if self._normalize else None, self._dtype)


def _pixels(image: Tensor, normalization: object) -> Tensor:
    """The (3, H, W) uint8 pixels that a node normalised to float32; exact, because rounding errors are below 1e-3."""
    affine = mean_std(normalization, len(image))
    if affine:
        mean, std = (torch.tensor(values, dtype=torch.float32, device=image.device)[:, None, None] for values in affine)
        image = image * std + mean
    return (image * 255).round().clamp(0, 255).to(torch.uint8)
