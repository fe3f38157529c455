"""The kernels of voxels give the CPU backend's bits on a GPU."""

import numpy as np
import pytest
import torch

from robocache_ros.ops import voxelize_cloud_bytes, voxelize_pointcloud
from robocache_ros.reductions import REDUCTIONS
from test.ops.voxel.clouds import GRID, TURN, Field, awkward_points, cloud_bytes, same_bits

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
