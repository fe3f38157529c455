"""The device code of voxels gives the CPU backend's bits: as host code built by g++, and on a GPU."""

import ctypes
from collections import namedtuple

import numpy as np
import pytest
import torch

from robocache_ros.ops import voxelize_cloud_bytes, voxelize_pointcloud
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.voxel.cuda import Clouds, cloud_of_bytes, cloud_of_tensor
from robocache_ros.ops.voxel.grid import Voxelization, checked_grid, checked_reduction
from robocache_ros.ops.voxel.layouts import CloudLayout, check_cloud, column_sources
from robocache_ros.ops.voxel.voxelize import cloud_columns, place_columns
from robocache_ros.reductions import REDUCTIONS
from robocache_ros.reductions.kind import fixed_point, key_of_float

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


DENSE = [name for name, kind in REDUCTIONS.items() if not kind.needs_max_points]
REDUCED = [(name, ("i2", "i7", "z") if REDUCTIONS[name].needs_features else ()) for name in DENSE]


def same_voxels(one, other):
    for name in ("dense", "tally", "coordinates", "num_points", "features"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            same_bits(mine.cpu().numpy(), theirs.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 31, 513, 20000])
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("sparse", [False, True])
def test_every_mode_has_the_same_bits_on_the_gpu(mode, count, sparse):
    points = torch.from_numpy(awkward_points(count, 6)) if count > 1000 else torch.rand(count, 6) * 2.2 - 1.1
    arguments = (*GRID, mode)
    extra = {"sparse": sparse, "max_points": 3 if REDUCTIONS[mode].needs_max_points else None}
    same_voxels(
        voxelize_pointcloud(points.cuda(), *arguments, **extra), voxelize_pointcloud(points, *arguments, **extra)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("crowd", [1, 7, 32, 3000])
def test_crowded_voxels_have_the_same_bits_on_the_gpu_run_after_run(mode, crowd):
    random = torch.Generator().manual_seed(crowd)
    points = (torch.rand(9000 // crowd + 1, 5, generator=random) * 1.4 - 0.7).repeat_interleave(crowd, dim=0)
    points[:, 3:] = torch.randn(len(points), 2, generator=random) * 1000
    extra = {"max_points": 5 if REDUCTIONS[mode].needs_max_points else None}
    wanted = voxelize_pointcloud(points, *GRID, mode, **extra)
    there = points.cuda()
    for _ in range(5):
        same_voxels(voxelize_pointcloud(there, *GRID, mode, **extra), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("sparse", [False, True])
def test_ragged_batches_have_the_same_bits_on_the_gpu(mode, sparse):
    points = torch.from_numpy(awkward_points(4 * 700, 5)).view(4, 700, 5)
    lengths = torch.tensor([700, 0, 13, 512])
    extra = {"sparse": sparse, "max_points": 2 if REDUCTIONS[mode].needs_max_points else None}
    there = voxelize_pointcloud(points.cuda(), *GRID, mode, lengths=lengths.cuda(), **extra)
    same_voxels(there, voxelize_pointcloud(points, *GRID, mode, lengths=lengths, **extra))


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [3, 4, 8])
@pytest.mark.parametrize("offset", [0, 1])
def test_strided_and_unaligned_points_have_the_same_bits_on_the_gpu(columns, offset):
    storage = torch.rand(2, 600, columns + offset) * 2.4 - 1.2
    for mode in ("count", "first"):
        extra = {"max_points": 2 if REDUCTIONS[mode].needs_max_points else None}
        points, there = (s[:, ::2, offset : offset + 3] for s in (storage, storage.cuda()))
        same_voxels(voxelize_pointcloud(there, *GRID, mode, **extra), voxelize_pointcloud(points, *GRID, mode, **extra))


@pytest.mark.gpu
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u2", "i4"])
@pytest.mark.parametrize(("height", "padding"), [(1, 0), (7, 0), (7, 11)])
def test_every_cloud_layout_has_the_same_bits_on_the_gpu(kind, big_endian, height, padding):
    data, layout = cloud_bytes(kind, big_endian, height, padding)
    grid = {"grid_min": GRID[0], "voxel_size": GRID[1], "grid_size": GRID[2], "transform": TURN}
    for mode, features in REDUCED:
        arguments = {**layout, **grid, "mode": mode, "features": features}
        same_voxels(voxelize_cloud_bytes(data.cuda(), **arguments), voxelize_cloud_bytes(data, **arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(("height", "padding"), [(1, 0), (7, 11)])
def test_bytes_in_a_grid_of_many_voxels_have_the_same_bits_on_the_gpu(big_endian, height, padding):
    data, layout = cloud_bytes("f4", big_endian, height, padding, count=20_300)
    grid = {"grid_min": (-2.0,) * 3, "voxel_size": 0.0625, "grid_size": (64, 64, 64), "transform": TURN}
    for mode, features in REDUCED:
        arguments = {**layout, **grid, "mode": mode, "features": features}
        same_voxels(voxelize_cloud_bytes(data.cuda(), **arguments), voxelize_cloud_bytes(data, **arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", DENSE)
def test_sixteen_byte_points_have_the_same_bits_on_the_gpu(mode):
    points = awkward_points(5000, 4)
    data = torch.from_numpy(points.view(np.uint8).reshape(-1))
    fields = [Field(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity"))]
    layout = {"width": 5000, "height": 1, "point_step": 16, "row_step": 80000, "fields": fields, "transform": TURN}
    features = ("intensity",) if REDUCTIONS[mode].needs_features else ()
    grid = {"grid_min": GRID[0], "voxel_size": GRID[1], "grid_size": GRID[2], "mode": mode, "features": features}
    same_voxels(voxelize_cloud_bytes(data.cuda(), **layout, **grid), voxelize_cloud_bytes(data, **layout, **grid))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", DENSE)
@pytest.mark.parametrize("shape", [(64, 64, 64), (5, 7, 96), (1, 1, 1), (128, 100, 33)])
def test_grids_of_any_shape_have_the_same_bits_on_the_gpu(mode, shape):
    random = torch.Generator().manual_seed(5)
    points = torch.randn(2, 30_000, 6, generator=random) * 0.6
    points[0, :20_000] = points[0, :40].repeat_interleave(500, dim=0)
    points[1, ::7, 4] = torch.inf
    points[1, ::11, 1] = torch.nan
    points[:, :, 3] *= 1e6
    lengths = torch.tensor([30_000, 12_345])
    grid = ((-1.0, -1.0, -1.0), (2 / shape[0], 2 / shape[1], 2 / shape[2]), shape)
    there = voxelize_pointcloud(points.cuda(), *grid, mode, lengths=lengths.cuda())
    same_voxels(there, voxelize_pointcloud(points, *grid, mode, lengths=lengths))


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
def test_it_reads_what_torch_wrote_just_before(wrong_after, mode):
    clouds = torch.rand(8, 50_000, 5, device="cuda") * 2 - 1
    wanted = torch.stack([voxelize_pointcloud(cloud, *GRID, mode).grid for cloud in clouds])
    points, found = torch.empty_like(clouds[0]), torch.empty_like(wanted)

    def rounds():
        for i in range(8):
            points.copy_(clouds[i])
            voxelize_pointcloud(points, *GRID, mode, out=found[i])

    assert wrong_after(rounds, found, wanted) == 0


@pytest.mark.gpu
def test_saturated_features_are_counted_the_same_on_the_gpu():
    points = torch.zeros(100, 4)
    points[:, 3] = torch.linspace(-3e6, 3e6, 100)
    there, here = (voxelize_pointcloud(p, *GRID, "mean") for p in (points.cuda(), points))
    assert here.saturated > 0
    same_voxels(there, here)


@pytest.mark.gpu
def test_more_than_2_31_values_are_numbered_correctly_on_the_gpu():
    count = 2**31 // 3 + 1000
    points = torch.full((count, 3), 9.0, device="cuda")
    points[-1] = torch.tensor([-0.95, -0.9, -0.45])
    voxels = voxelize_pointcloud(points, *GRID, "count")
    assert voxels.grid.sum() == 1
    assert voxels.grid[0, 0, 0] == 1
    assert voxels.outside == count - 1


HOST = """
#include "voxel/cloud.cuh"
#include "voxel/fixed_point.cuh"
using namespace robocache;
extern "C" void locate(const Clouds* clouds, long long batch, int* cell, float* rows) {
  for (long long cloud = 0; cloud < batch; ++cloud)
    for (long long i = 0; i < points_of(*clouds, cloud); ++i) {
      const unsigned char* p = point_at(*clouds, cloud, i);
      const Point point = to_grid(*clouds, read_point(*clouds, p));
      *cell++ = place(*clouds, p, point);
      *rows++ = point.x; *rows++ = point.y; *rows++ = point.z;
      for (int f = 0; f < clouds->features; ++f) *rows++ = feature_of(*clouds, p, f);
    }
}
extern "C" void sums(
    const float* value, int n, float scale, float limit, long long* fixed, int* key, float* back
) {
  for (int i = 0; i < n; ++i) {
    fixed[i] = fixed_point(value[i], scale, limit);
    key[i] = key_of(value[i]);
    back[i] = float_of_key(key[i]);
  }
}
extern "C" void means(const long long* sum, const long long* count, int n, double unit, float* mean) {
  for (int i = 0; i < n; ++i) mean[i] = mean_of(sum[i], count[i], unit);
}
"""


@pytest.fixture(scope="module")
def host(host_library):
    return host_library(HOST)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def located(host, clouds, features):
    total = clouds.batch * clouds.count
    cell, rows = np.full(total, -9, np.int32), np.full((total, 3 + features), -9, np.float32)
    packed = packer(Clouds).pack(*clouds.numbers)
    host.locate(ctypes.c_char_p(packed), ctypes.c_longlong(clouds.batch), pointer(cell), pointer(rows))
    return cell, rows


def test_cells_of_awkward_points_are_the_same_as_host_code(host):
    points = awkward_points(3000, 3)
    grid, reduction = checked_grid(*GRID), checked_reduction("count", 0, None, 20)
    cell, rows = located(
        host, cloud_of_tensor(torch.from_numpy(points)[None], None, Voxelization(grid, reduction, ())), 0
    )
    wanted, tally = place_columns(list(points.T), grid, reduction, 1, None)
    assert np.array_equal(np.where(cell < 0, -1, cell), wanted)
    assert (np.count_nonzero(cell == -1), np.count_nonzero(cell == -2)) == tuple(tally[0, :2])
    same_bits(rows, points)


def test_a_feature_that_is_not_finite_refuses_its_point_in_host_code(host):
    points = awkward_points(900, 5)
    points[5:80:3, 4] = np.nan
    grid, reduction = checked_grid(*GRID), checked_reduction("mean", 2, None, 20)
    cell, _ = located(host, cloud_of_tensor(torch.from_numpy(points)[None], None, Voxelization(grid, reduction, ())), 2)
    wanted, tally = place_columns(list(points.T), grid, reduction, 1, None)
    assert np.array_equal(np.where(cell < 0, -1, cell), wanted)
    assert np.count_nonzero(cell == -1) == tally[0, 0]


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
    bits = np.random.default_rng(3).integers(0, 2**32, 20000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.concatenate(
        [values[np.isfinite(values)], np.float32([0.0, -0.0, 1e-45, -1e-45, 2**20, -(2**20), 3e38, 0.5])]
    )
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
