"""Tensors in, tensors out."""

from robocache_ros.ops.image import convert_image, normalize_image

__all__ = ["convert_image", "normalize_image"]
