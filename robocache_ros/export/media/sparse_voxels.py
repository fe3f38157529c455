"""Voxel grids as the coordinates and values of their voxels that are not empty."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def coordinate_type(shape: tuple[int, ...]) -> str:
    """Return the dtype of coordinates in a grid with this shape, (X, Y, Z) or (F, X, Y, Z): uint8 or uint16."""
    return "uint8" if max(shape[-3:]) <= 1 << 8 else "uint16"


def to_sparse(grid: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the voxels of a grid that are not empty, in C order of x, y, z.

    Args:
        grid: (X, Y, Z), or (F, X, Y, Z) with F features per voxel.

    Returns:
        (K, 3) uint8 or uint16 indices x, y, z, and (K, F) values, F = 1 without features. A voxel is empty if all
        bits of all its values are zero.
    """
    grids = np.ascontiguousarray(grid if grid.ndim == 4 else grid[None])
    bits = grids.view(f"u{grids.itemsize}")
    x, y, z = np.nonzero(bits.any(axis=0))
    coordinates = np.stack([x, y, z], axis=1).astype(coordinate_type(grid.shape))
    return coordinates, np.ascontiguousarray(grids[:, x, y, z].T)


def to_dense(coordinates: NDArray[Any], values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the grid with these voxels: the inverse of `to_sparse`."""
    grids = np.zeros(shape if len(shape) == 4 else (1, *shape), values.dtype)
    x, y, z = coordinates.T.astype(np.intp)
    grids[:, x, y, z] = values.T
    return grids.reshape(shape)
