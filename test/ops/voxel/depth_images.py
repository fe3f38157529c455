"""Depth images for the tests, and their checked layouts."""

import numpy as np
import torch

from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.voxel.layouts import MAX_BYTES, DepthImageLayout, check_depth

GRID = {"grid_min": (-1, -1, 0), "voxel_size": 0.25, "grid_size": (8, 8, 16)}
TURN = torch.tensor([[0.0, 0, 1, 0.5], [-1, 0, 0, 0.25], [0, -1, 0, 1]])  # optical frame -> ahead, left, up


def image(depths, big_endian=False, padding=0):
    """The bytes of an (H, W) depth image, and the arguments that describe them."""
    kind = depths.dtype.newbyteorder(">" if big_endian else "<")
    rows = np.ascontiguousarray(depths.astype(kind)).view(np.uint8).reshape(len(depths), -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xEE)
    return torch.from_numpy(rows.reshape(-1)), {
        "encoding": "16UC1" if depths.dtype.itemsize == 2 else "32FC1",
        "width": depths.shape[1],
        "height": len(depths),
        "step": rows.shape[1],
        "big_endian": big_endian,
    }


def colors(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def scene(seed=0, height=24, width=32, dtype=np.uint16):
    """Depths in and around the grid; some of them are not measured."""
    rng = np.random.default_rng(seed)
    metres = rng.uniform(0.1, 5, (height, width))
    depths = (metres * 1000).astype(np.uint16) if dtype == np.uint16 else metres.astype(np.float32)
    depths.reshape(-1)[rng.integers(0, depths.size, 40)] = 0
    if dtype == np.float32:
        odd = np.float32([np.nan, np.inf, -np.inf, -1, -0.0, 1e-42, 3e38])
        depths.reshape(-1)[rng.integers(0, depths.size, 70)] = np.repeat(odd, 10)
    return depths


def check(data, layout, camera=(30, 31, 15.5, 11.25), color=None, features=()):
    depth = ImageLayout(**{"big_endian": False, **layout})
    return check_depth(data.numel(), MAX_BYTES, DepthImageLayout(depth, camera, color), features)
