"""The device code of voxels gives the CPU backend's bits: as host code built by g++, and on a GPU."""

import ctypes

import numpy as np
import pytest
import torch

from robocache_ros.decode import PointField
from robocache_ros.ops import voxelize_cloud_bytes, voxelize_pointcloud
from robocache_ros.ops.voxel.cuda import cloud_of_bytes, cloud_of_tensor
from robocache_ros.ops.voxel.grid import Voxelization, checked_grid, checked_reduction
from robocache_ros.ops.voxel.layouts import CloudLayout, check_cloud, column_sources
from robocache_ros.ops.voxel.voxelize import cloud_columns, place_columns
from robocache_ros.reductions import REDUCTIONS
from robocache_ros.reductions.kind import fixed_point, key_of_float
from test.ops.conftest import same_bits
from test.ops.voxel.conftest import located, pointer, same_voxels

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


def cloud_bytes(kind, big_endian, height, padding, count=210, seed=0):
    """A cloud whose x, y and z are of a NumPy kind, with an intensity of each of the eight datatypes, unaligned."""
    order = ">" if big_endian else "<"
    names = ["x", "y", "z", *(f"i{n}" for n in range(8))]
    datatypes = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
    kinds = [kind] * 3 + datatypes
    offsets = np.cumsum([3, *(np.dtype(k).itemsize for k in kinds)])
    step = int(offsets[-1]) + 2
    width = count // height
    row_step = width * step + padding
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, row_step * height, dtype=np.uint8)
    for name, k, offset in zip(names, kinds, offsets[:-1], strict=True):
        view = np.ndarray((height, width), order + k, data, int(offset), (row_step, step))
        if k[0] == "f":
            low, high = (-1.3, 1.6) if name in "xyz" else (-1e3, 1e3)
            view[...] = random.uniform(low, high, (height, width))
        elif name in "xyz":
            view[...] = random.integers(0, 3)
    fields = [PointField(n, int(o), datatypes.index(k) + 1, 1) for n, o, k in zip(names, offsets, kinds, strict=False)]
    layout = {"width": width, "height": height, "point_step": step, "row_step": row_step, "fields": fields}
    return torch.from_numpy(data), {**layout, "big_endian": big_endian}


DENSE = [name for name, kind in REDUCTIONS.items() if not kind.needs_max_points]
REDUCED = [(name, ("i2", "i7", "z") if REDUCTIONS[name].needs_features else ()) for name in DENSE]


def crowd(size):
    """Points of which each voxel that has any has many."""
    random = torch.Generator().manual_seed(size)
    points = (torch.rand(9000 // size + 1, 5, generator=random) * 1.4 - 0.7).repeat_interleave(size, dim=0)
    points[:, 3:] = torch.randn(len(points), 2, generator=random) * 1000
    return points


def batch():
    """Two clouds with a crowd, features that are not finite, and some that saturate."""
    random = torch.Generator().manual_seed(5)
    points = torch.randn(2, 30_000, 6, generator=random) * 0.6
    points[0, :20_000] = points[0, :40].repeat_interleave(500, dim=0)
    points[1, ::7, 4] = torch.inf
    points[1, ::11, 1] = torch.nan
    points[:, :, 3] *= 1e6
    return points


def strided(columns, offset):
    storage = torch.rand(2, 600, columns + offset) * 2.4 - 1.2
    return lambda device: storage.to(device)[:, ::2, offset : offset + 3]


RAGGED = torch.from_numpy(awkward_points(4 * 700, 5)).view(4, 700, 5)
CLOUDS = {  # points, lengths, and the shape of the grid
    **{f"{count} points": (torch.rand(count, 6) * 2.2 - 1.1, None, None) for count in (0, 1, 31, 513)},
    "awkward points": (torch.from_numpy(awkward_points(20_000, 6)), None, None),
    **{f"{size} in a voxel": (crowd(size), None, None) for size in (1, 7, 32, 3000)},
    "ragged": (RAGGED, torch.tensor([700, 0, 13, 512]), None),
    **{
        f"a grid of {shape}": (batch(), torch.tensor([30_000, 12_345]), shape)
        for shape in ((64, 64, 64), (5, 7, 96), (1, 1, 1), (128, 100, 33))
    },
    **{f"{c} columns from {o}": (strided(c, o), None, None) for c in (3, 4, 8) for o in (0, 1)},
}


@pytest.mark.gpu
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("sparse", [False, True])
def test_every_cloud_has_the_same_bits_on_the_gpu_run_after_run(mode, cloud, sparse):
    points, lengths, shape = CLOUDS[cloud]
    here, there = (points(d) if callable(points) else points.to(d) for d in ("cpu", "cuda"))
    if REDUCTIONS[mode].needs_features and here.shape[-1] == 3:
        return
    grid = ((-1.0, -1.0, -1.0), tuple(2 / size for size in shape), shape) if shape else GRID
    extra = {"sparse": sparse, "max_points": 3 if REDUCTIONS[mode].needs_max_points else None}
    wanted = voxelize_pointcloud(here, *grid, mode, lengths=lengths, **extra)
    assert "a grid" not in cloud or mode != "mean" or wanted.saturated.any()
    lengths = None if lengths is None else lengths.to("cuda")
    for _ in range(5 if "in a voxel" in cloud else 1):
        same_voxels(voxelize_pointcloud(there, *grid, mode, lengths=lengths, **extra), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u2", "i4"])
@pytest.mark.parametrize(("height", "padding"), [(1, 0), (7, 0), (7, 11)])
@pytest.mark.parametrize("many", [False, True])
def test_every_layout_has_the_same_bits_on_the_gpu(kind, big_endian, height, padding, many):
    data, layout = cloud_bytes(kind, big_endian, height, padding, count=20_300 if many else 210)
    names = ("grid_min", "voxel_size", "grid_size")
    grid = dict(zip(names, ((-2.0,) * 3, 0.0625, (64, 64, 64)) if many else GRID, strict=True))
    for mode, features in REDUCED:
        arguments = {**layout, **grid, "transform": TURN, "mode": mode, "features": features}
        same_voxels(voxelize_cloud_bytes(data.cuda(), **arguments), voxelize_cloud_bytes(data, **arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", DENSE)
def test_sixteen_byte_points_have_the_same_bits_on_the_gpu(mode):
    points = awkward_points(5000, 4)
    data = torch.from_numpy(points.view(np.uint8).reshape(-1))
    fields = [PointField(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity"))]
    layout = {"width": 5000, "height": 1, "point_step": 16, "row_step": 80000, "fields": fields, "transform": TURN}
    features = ("intensity",) if REDUCTIONS[mode].needs_features else ()
    grid = {"grid_min": GRID[0], "voxel_size": GRID[1], "grid_size": GRID[2], "mode": mode, "features": features}
    same_voxels(voxelize_cloud_bytes(data.cuda(), **layout, **grid), voxelize_cloud_bytes(data, **layout, **grid))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", DENSE)
def test_a_grid_given_dirty_and_unaligned_is_cleared_on_the_gpu(mode):
    points = torch.rand(300, 4) * 2 - 1
    wanted = voxelize_pointcloud(points, *GRID, mode)
    grid = wanted.grid
    storage = torch.full((grid.numel() + 1,), 77, dtype=grid.dtype, device="cuda")
    out = storage[1:].view(grid.shape)
    same_voxels(voxelize_pointcloud(points.cuda(), *GRID, mode, out=out), wanted)
    assert storage[0] == 77


@pytest.mark.gpu
@pytest.mark.parametrize("mode", DENSE)
def test_it_reads_what_torch_wrote_just_before(wrong_after_writes, mode):
    def grid(points, out=None):
        return voxelize_pointcloud(points, *GRID, mode, out=out).grid

    assert wrong_after_writes(grid, torch.rand(8, 50_000, 5, device="cuda") * 2 - 1) == 0


@pytest.mark.gpu
def test_more_than_2_31_values_are_numbered_correctly_on_the_gpu():
    count = 2**31 // 3 + 1000
    points = torch.full((count, 3), 9.0, device="cuda")
    points[-1] = torch.tensor([-0.95, -0.9, -0.45])
    voxels = voxelize_pointcloud(points, *GRID, "count")
    assert voxels.grid.sum() == 1
    assert voxels.grid[0, 0, 0] == 1
    assert voxels.outside == count - 1


@pytest.mark.parametrize(("mode", "features"), [("count", 0), ("mean", 2)])
def test_awkward_points_have_the_cells_that_host_code_gives_them(host, mode, features):
    points = awkward_points(3000, 3 + features)
    if features:
        points[5:80:3, 4] = np.nan  # refuses its point
    grid, reduction = checked_grid(*GRID), checked_reduction(mode, features, None, 20)
    cloud = cloud_of_tensor(torch.from_numpy(points)[None], None, Voxelization(grid, reduction, ()))
    cell, rows = located(host, cloud, features)
    wanted, tally = place_columns(list(points.T), grid, reduction, 1, None)
    assert np.array_equal(np.where(cell < 0, -1, cell), wanted)
    assert (np.count_nonzero(cell == -1), np.count_nonzero(cell == -2)) == tuple(tally[0, :2])
    same_bits(rows, points)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u2", "i4"])
@pytest.mark.parametrize("transform", [None, TURN])
def test_every_layout_reads_the_same_as_host_code(host, kind, big_endian, transform):
    data, layout = cloud_bytes(kind, big_endian, height=7, padding=11)
    cloud = check_cloud(data.numel(), CloudLayout(**layout))
    sources = column_sources(cloud, [f"i{n}" for n in range(8)] + ["z", "y", "x"])
    matrix = None if transform is None else transform[:3].numpy()
    grid, reduction = checked_grid(*GRID), checked_reduction("count", 11, None, 20)
    _, rows = located(host, cloud_of_bytes(data, cloud, sources, matrix, Voxelization(grid, reduction, ())), 11)
    same_bits(rows, np.stack(cloud_columns(data.numpy(), cloud, sources, matrix), axis=1))


def test_fixed_point_and_order_keys_are_the_same_as_host_code(host):
    values = np.random.default_rng(3).integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    odd = np.float32([0.0, -0.0, 1e-45, -1e-45, 2**20, -(2**20), 3e38, 0.5])
    values = np.concatenate([values[np.isfinite(values)], odd])
    fixed, key = np.empty(len(values), np.int64), np.empty(len(values), np.int32)
    back = np.empty_like(values)
    scale, limit = ctypes.c_float(2**20), ctypes.c_float(2**20)
    host.sums(pointer(values), len(values), scale, limit, pointer(fixed), pointer(key), pointer(back))
    tensor = torch.from_numpy(values)
    assert np.array_equal(fixed, fixed_point(tensor, 20).numpy())
    assert np.array_equal(key, key_of_float(tensor).numpy())
    same_bits(back, values)


def test_means_are_the_same_as_host_code(host):
    random = np.random.default_rng(4)
    total, count = random.integers(-(2**62), 2**62, 5000), random.integers(1, 2**30, 5000)
    count[:2000] = 2 ** random.integers(0, 31, 2000)
    mean = np.empty(5000, np.float32)
    host.means(pointer(total), pointer(count), 5000, ctypes.c_double(2.0**-20), pointer(mean))
    wanted = torch.from_numpy(total).double() / torch.from_numpy(count).double() * 2.0**-20
    same_bits(mean, wanted.float().numpy())
