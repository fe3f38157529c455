"""Means and maxima by bins of voxels: sizes and cells, and on a GPU the CPU backend's bits for any crowd of points."""

import math

import numpy as np
import pytest
import torch

from robocache_ros.ops import voxelize_pointcloud
from robocache_ros.ops.voxel import cuda as voxel_bins
from robocache_ros.ops.voxel.cuda import PIECE, bin_defines, bin_sizes
from robocache_ros.ops.voxel.grid import checked_reduction
from robocache_ros.reductions import REDUCTIONS
from test.ops.voxel.conftest import pointer, same_voxels

OF_FEATURES = [name for name, kind in REDUCTIONS.items() if kind.needs_features]
H200 = (132, 226 << 10)
HOST = """
#include "voxel/cell_bins.cuh"
using namespace robocache;
extern "C" void deal(int cells, int bits, unsigned* bin, unsigned* place, unsigned* back) {
  for (int cell = 0; cell < cells; ++cell) {
    bin[cell] = bin_of(cell, bits);
    place[cell] = place_of(cell, bits);
    back[cell] = cell_at(bin[cell], place[cell], bits);
  }
}
"""


def dealt(host_library, cells, bits):
    """The bin of each cell, its place there, and the cell found there."""
    arrays = [np.empty(cells, np.uint32) for _ in range(3)]
    host_library(HOST, (f"PIECE={PIECE}u",)).deal(cells, bits, *map(pointer, arrays))
    return arrays


@pytest.mark.parametrize(("cells", "bits"), [(128**3, 9), (128**3, 11), (64 * 65 * 33, 9), (500, 2), (200**3, 12)])
def test_every_cell_has_a_place_of_its_own(host_library, cells, bits):
    bin_, place, back = dealt(host_library, cells, bits)
    places = -(-cells // (PIECE << bits)) * PIECE
    assert bin_.max() < 1 << bits
    assert place.max() < places
    assert np.array_equal(back, np.arange(cells))  # so no two cells share a place


def test_walls_and_floors_spread_over_the_bins(host_library):
    bin_ = dealt(host_library, 128**3, 9)[0].reshape(128, 128, 128)
    for surface in (bin_[:96, :72, 57], bin_[40, :72, 50:80], bin_[:96, 30, 50:80], bin_[32:96, 32:96, 32:34]):
        cells = np.bincount(surface.reshape(-1), minlength=512)
        assert cells.max() <= 3 * PIECE
        assert np.count_nonzero(cells) > surface.size / PIECE / 2


@pytest.mark.parametrize("features", [1, 4, 5, 9, 16])
@pytest.mark.parametrize("batch", [1, 3, 300])
def test_tiles_hold_all_points_and_bins_all_cells(batch, features):
    for count in (1, 31, 700, 5000, 100_000, 500_000, 2_000_000):
        for cells in (32**3, 64 * 65 * 33, 128**3, 256**3):
            for device in (H200, (84, 93 << 10)):
                bins = bin_sizes(batch, count, cells, features, *device)
                if bins is None:
                    continue
                assert bins.tile % 32 == 0
                assert (bins.tiles - 1) * bins.tile < count <= bins.tiles * bins.tile
                assert bins.tile <= voxel_bins.SORTERS * bins.points
                assert bins.places % PIECE == 0
                assert (bins.places - PIECE) << bins.bits < cells <= bins.places << bins.bits
                assert max(bins.sort_bytes, 2 * bins.reduce_bytes) <= bins.limit
                assert bins.capacity < 1 << 16


def test_bins_support_most_clouds_and_leave_the_others_to_claims():
    assert bin_sizes(1, 500_000, 128**3, 4, *H200).bits == 9
    assert bin_sizes(1, 2_000_000, 128**3, 16, *H200)
    assert bin_sizes(1, 100, 64**3, 1, *H200)
    for batch, count, cells in (
        (1, 0, 64**3),
        (1, 100, 1000),
        (1, 1 << 24, 64**3),
        (1, 100, 512**3),
        (1 << 16, 9, 64**3),
    ):
        assert bin_sizes(batch, count, cells, 4, *H200) is None
    assert bin_sizes(1, 500_000, 128**3, 4, 132, 42 << 10) is None


@pytest.mark.slow
@pytest.mark.parametrize("file", ["voxel/bin_sort.cu", "voxel/bin_reduce.cu"])
def test_it_compiles_without_a_warning(compile_log, file, architecture):
    tensor = ("DEPTH=0", "ANY_LAYOUT=0", "ANY_FEATURE=0")
    variants = [("mean", 4, "POINTS=4"), ("max", 3, "POINTS=4", *tensor), ("mean", 16, "POINTS=1", *tensor)]
    for mode, features, *others in variants if architecture == "sm_90" else variants[:1]:
        defines = (*bin_defines(checked_reduction(mode, features, None, 20)), *others)
        assert compile_log(file, architecture, defines) == ""


SHAPE = (64, 65, 67)  # no multiple of four cells
COUNT = 20_000


def points_in(cells, features, seed=0):
    """One point in each of these cells of a grid of unit voxels, with features of any size."""
    random = np.random.default_rng(seed)
    corner = np.stack(np.unravel_index(cells, SHAPE), axis=1)
    values = random.normal(0, 1000, (len(cells), features)) * 10.0 ** random.integers(-6, 4, (len(cells), features))
    points = np.concatenate([corner + random.uniform(0.1, 0.9, (len(cells), 3)), values], axis=1)
    return torch.from_numpy(points.astype(np.float32))


def crowds(host_library):
    """Cells of COUNT points, by name."""
    random = np.random.default_rng(1)
    cells = math.prod(SHAPE)
    bin_ = dealt(host_library, cells, bin_sizes(1, COUNT, cells, 4, *H200).bits)[0]
    anywhere = random.integers(0, cells, COUNT)
    some = random.random(COUNT) < 0.4
    return {
        "anywhere": anywhere,
        "one voxel": np.full(COUNT, 12_345),
        "many at the origin": np.where(np.repeat(some[: COUNT // 40], 40), 0, anywhere),
        "two voxels in turns": np.repeat(np.arange(COUNT // 20) % 2 * 777, 20),
        "few voxels, shuffled": random.choice(anywhere[:40], COUNT),
        "long lists": random.choice(anywhere[:300], COUNT),
        "runs of three": np.repeat(anywhere, 3)[:COUNT],
        "one bin": random.choice(np.flatnonzero(bin_ == 7), COUNT),
        "one voxel of each bin": random.choice(np.unique(bin_, return_index=True)[1], COUNT),
    }


def has_bins(batch, count, features, shape=SHAPE):
    return voxel_bins.plan_bins(batch, count, math.prod(shape), features, torch.device("cuda")) is not None


GRID = ((0.0, 0.0, 0.0), 1.0, SHAPE)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("features", [1, 4, 6, 16])
def test_any_crowd_has_the_same_bits_on_the_gpu_run_after_run(host_library, mode, features):
    assert has_bins(1, COUNT, features)
    for name, cells in crowds(host_library).items():
        points = points_in(cells, features)
        wanted = voxelize_pointcloud(points, *GRID, mode)
        there = points.cuda()
        for _ in range(3):
            out = torch.full((features, *SHAPE), torch.nan, device="cuda")
            try:
                same_voxels(voxelize_pointcloud(there, *GRID, mode, out=out), wanted)
            except AssertionError as error:
                raise AssertionError(name) from error


@pytest.mark.gpu
@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("fraction_bits", [0, 20, 40])
def test_sums_of_whole_tiles_have_the_same_bits_on_the_gpu(mode, fraction_bits):
    """The largest values and the smallest, of both signs, in one voxel: no bit of a sum is lost on the way."""
    random = torch.Generator().manual_seed(2)
    points = torch.rand(COUNT, 5, generator=random)
    points[:, 3:] = (points[:, 3:] - 0.5) * 2.0 ** (42 - fraction_bits)
    points[::3, 4] = 2.0**-fraction_bits
    points[:, 3] = -points[:, 3].abs()
    assert has_bins(1, COUNT, 2)
    wanted = voxelize_pointcloud(points, *GRID, mode, fraction_bits=fraction_bits)
    assert (wanted.saturated > 0) == REDUCTIONS[mode].saturates
    same_voxels(voxelize_pointcloud(points.cuda(), *GRID, mode, fraction_bits=fraction_bits), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("shape", [SHAPE, (64, 64, 64)])
@pytest.mark.parametrize("offset", [0, 1])
def test_ragged_clouds_and_unaligned_grids_have_the_same_bits_on_the_gpu(mode, shape, offset):
    random = torch.Generator().manual_seed(3)
    points = torch.rand(5, COUNT, 7, generator=random) * 70 - 2
    points[0] = points[0, :100].repeat_interleave(COUNT // 100, dim=0)
    points[1, ::7, 4] = torch.inf
    points[1, ::11, 1] = torch.nan
    points[2, :, 3] *= 1e6
    lengths = torch.tensor([COUNT, 12_345, 4_000, 0, 1])
    assert has_bins(5, COUNT, 4, shape)
    grid = (GRID[0], 1.0, shape)
    wanted = voxelize_pointcloud(points, *grid, mode, lengths=lengths)
    storage = torch.full((wanted.grid.numel() + offset,), torch.nan, device="cuda")
    out = storage[offset:].view(wanted.grid.shape)
    same_voxels(voxelize_pointcloud(points.cuda(), *grid, mode, lengths=lengths.cuda(), out=out), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("shape", [(128, 128, 128), (200, 200, 200), (16, 32, 64)])
def test_large_clouds_and_grids_have_the_same_bits_on_the_gpu(mode, shape):
    random = torch.Generator().manual_seed(4)
    points = torch.rand(300_000, 5, generator=random) * torch.tensor([*shape, 1e3, 1])
    points[:100_000, :3] = torch.randn(100_000, 3, generator=random) + 8
    assert has_bins(1, 300_000, 2, shape)
    grid = (GRID[0], 1.0, shape)
    same_voxels(voxelize_pointcloud(points.cuda(), *grid, mode), voxelize_pointcloud(points, *grid, mode))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_it_reads_what_torch_wrote_just_before(wrong_after_writes, mode):
    def grid(points, out=None):
        return voxelize_pointcloud(points, *GRID, mode, out=out).grid

    assert has_bins(1, 50_000, 2)
    assert wrong_after_writes(grid, torch.rand(8, 50_000, 5, device="cuda") * 64, 10) == 0
