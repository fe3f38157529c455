"""Points and clouds with edge cases, for the tests."""

from collections import namedtuple

import numpy as np
import torch

Field = namedtuple("Field", "name offset datatype count")
GRID = ((-1.0, -1.0, -0.5), (0.1, 0.125, 0.0625), (20, 16, 37))
TURN = torch.tensor([[0.8, -0.6, 0.0, 0.1], [0.6, 0.8, 0.0, -0.2], [0.0, 0.0, 1.0, 0.3], [0, 0, 0, 1]])


def awkward_points(count, columns, seed=0):
    """Points in, on the faces of and around the grid; some NaN, infinite, huge and subnormal."""
    random = np.random.default_rng(seed)
    points = random.uniform(-1.3, 1.5, (count, columns)).astype(np.float32)
    faces = random.integers(-2, 22, (count // 3, 3)) * np.float32(GRID[1]) + np.float32(GRID[0])
    points[: count // 3, :3] = faces
    odd = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, -1e-42, -0.0, -1.0]
    spots = random.integers(0, count, len(odd) * 4), random.integers(0, 3, len(odd) * 4)
    points[spots] = np.repeat(np.float32(odd), 4)
    return points


def same_bits(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert np.array_equal(np.ascontiguousarray(one).view(np.uint8), np.ascontiguousarray(other).view(np.uint8))


def cloud_bytes(kind, big_endian, height, padding, count=210, seed=0):
    """A cloud whose x, y and z are of a NumPy kind, with an intensity of each of the eight datatypes, unaligned."""
    order = ">" if big_endian else "<"
    names = ["x", "y", "z", *(f"i{n}" for n in range(8))]
    kinds = [kind] * 3 + ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
    offsets = np.cumsum([3, *(np.dtype(k).itemsize for k in kinds)])
    step = int(offsets[-1]) + 2
    width = count // height
    row_step = width * step + padding
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, row_step * height, dtype=np.uint8)
    for name, k, offset in zip(names, kinds, offsets[:-1], strict=True):
        view = np.ndarray((height, width), order + k, data, int(offset), (row_step, step))
        if name in "xyz":
            view[...] = (
                random.uniform(-1.3, 1.6, (height, width)).astype(kind) if kind[0] == "f" else random.integers(0, 3)
            )
        elif k[0] == "f":
            view[...] = random.uniform(-1e3, 1e3, (height, width))
    datatypes = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
    fields = [Field(n, int(o), datatypes.index(k) + 1, 1) for n, o, k in zip(names, offsets, kinds, strict=False)]
    layout = {"width": width, "height": height, "point_step": step, "row_step": row_step, "fields": fields}
    return torch.from_numpy(data), {**layout, "big_endian": big_endian}
