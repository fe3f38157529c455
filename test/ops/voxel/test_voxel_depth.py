"""Depth images as voxels: projections worked by hand, a float64 reference, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode import PointField
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxelize_cloud_bytes, voxelize_depth
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.voxel.cuda import cloud_of_depth
from robocache_ros.ops.voxel.grid import Voxelization, checked_grid, checked_reduction
from robocache_ros.ops.voxel.layouts import MAX_BYTES, ColorLayout, DepthImageLayout, check_depth
from robocache_ros.ops.voxel.voxelize import depth_columns, place_columns
from robocache_ros.reductions import REDUCTIONS, SPEC_REDUCTIONS
from test.ops.conftest import same_bits
from test.ops.voxel.conftest import located, same_voxels

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


@pytest.mark.parametrize(
    ("pixel", "millimetres", "cell"),
    [
        # fx = fy = 100, cx = 2, cy = 1; the grid begins at (-1, -1, 0) in steps of 0.25 m.
        ((2, 1), 1000, (4, 4, 4)),  # on the axis: (0, 0, 1.0)
        ((3, 1), 2500, (4, 4, 10)),  # 0.025 m to the right
        ((0, 0), 3990, (3, 3, 15)),  # (-0.0798, -0.0399, 3.99)
        ((3, 3), 250, (4, 4, 1)),  # on a face: it belongs to the voxel that begins there
    ],
)
def test_a_pixel_lands_in_the_voxel_worked_out_by_hand(pixel, millimetres, cell):
    depths = np.zeros((4, 4), np.uint16)
    depths[pixel[1], pixel[0]] = millimetres
    data, layout = image(depths)
    voxels = voxelize_depth(data, **layout, camera=(100, 100, 2, 1), **GRID)
    assert np.argwhere(voxels.grid.numpy()).tolist() == [list(cell)]
    assert voxels.tally.tolist() == [15, 0, 0]


def test_the_transform_takes_the_optical_frame_to_the_grids():
    depths = np.float32([[2.0]])
    data, layout = image(depths)
    columns = depth_columns(data.numpy(), None, check(data, layout, camera=(100, 100, -50, 25)), TURN.numpy())
    # u - cx = 50 -> x = 1; v - cy = -25 -> y = -0.5; z = 2; ahead 2 + 0.5, left -1 + 0.25, up 0.5 + 1
    assert [float(c[0]) for c in columns] == [2.5, -0.75, 1.5]


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_points_are_those_of_a_float64_reference_to_a_few_roundings(dtype):
    depths = scene(1, dtype=dtype)
    data, layout = image(depths)
    got = np.stack(depth_columns(data.numpy(), None, check(data, layout), None))
    z = depths.astype(np.float64) / (1000 if dtype == np.uint16 else 1)
    z = np.where(np.isfinite(z) & (z > 0), z, np.nan)
    v, u = np.mgrid[: len(depths), : depths.shape[1]]
    expected = np.stack([(u - 15.5) * z / 30, (v - 11.25) * z / 31, z]).reshape(3, -1)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    # Four operations, each of half a unit in the last place, and the smallest subnormal; 3e38 * 16 leaves float32.
    huge = np.abs(expected) > 1e37
    np.testing.assert_allclose(got[~huge], expected[~huge], rtol=4 * 2.0**-24, atol=2e-45)


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, np.nan, np.inf, -np.inf])
def test_a_depth_that_was_not_measured_is_counted_and_not_placed(value):
    data, layout = image(np.float32([[value, 1.0]]))
    voxels = voxelize_depth(data, **layout, camera=(100, 100, 0, 0), **GRID)
    assert (voxels.nonfinite.item(), voxels.outside.item(), int(voxels.grid.sum())) == (1, 0, 1)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize(("big_endian", "padding"), [(True, 0), (False, 6), (True, 1)])
def test_byte_order_and_padding_do_not_change_the_grid(dtype, big_endian, padding):
    plain, layout = image(scene(2, dtype=dtype))
    other, packed = image(scene(2, dtype=dtype), big_endian, padding)
    grids = [voxelize_depth(d, **k, camera=(30, 31, 15, 11), **GRID) for d, k in ((plain, layout), (other, packed))]
    assert torch.equal(grids[0].grid, grids[1].grid)
    assert torch.equal(grids[0].tally, grids[1].tally)


@pytest.mark.parametrize("reduce", SPEC_REDUCTIONS)
def test_a_grid_is_that_of_the_cloud_that_the_image_projects_to(reduce):
    data, layout = image(scene(3))
    rgb = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    features = ("r", "z", "b") if SPEC_REDUCTIONS[reduce].needs_features else ()
    over = ColorLayout("rgb8", 96, 0)
    kind = check(data, layout, color=over, features=("r", "g", "b"))
    cloud = np.stack(depth_columns(data.numpy(), rgb.reshape(-1), kind, None), axis=1)
    fields = [PointField(name, 4 * i, 7, 1) for i, name in enumerate("xyzrgb")]
    common = {**GRID, "mode": reduce, "features": features, "transform": TURN}
    expected = voxelize_cloud_bytes(
        torch.from_numpy(cloud).view(torch.uint8).reshape(-1),
        width=len(cloud), height=1, point_step=24, row_step=24 * len(cloud), fields=fields, **common,
    )  # fmt: skip
    paint = {"color": torch.from_numpy(rgb.reshape(-1))} if features else {}
    got = voxelize_depth(data, **layout, camera=(30, 31, 15.5, 11.25), **paint, **common)
    assert torch.equal(got.grid, expected.grid)
    assert got.grid.any()


@pytest.mark.parametrize(
    ("encoding", "order"), [("rgb8", (0, 1, 2)), ("bgr8", (2, 1, 0)), ("rgba8", (0, 1, 2, 0)), ("bgra8", (2, 1, 0, 0))]
)
def test_a_voxel_has_the_colour_of_its_pixel(encoding, order):
    pixels = np.uint8([[[9, 9, 9], [10, 20, 30]]])[:, :, list(order)]
    data, layout = image(np.uint16([[0, 1000]]))
    voxels = voxelize_depth(
        data, **layout, camera=(100, 100, 1, 0), color=torch.from_numpy(pixels.reshape(-1)), color_encoding=encoding,
        mode="mean", features=("r", "g", "b"), **GRID,
    )  # fmt: skip
    assert voxels.grid[:, 4, 4, 4].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoding": "rgb8"}, "encoding: 'rgb8' is not a depth encoding"),
        ({"step": 63}, "data: 24 rows of 32 pixels of 2 bytes do not fit a step of 63"),
        ({"height": 25}, "data: 1536 bytes, but 25 rows of 32 pixels need 1600"),
        ({"width": 0}, "data: 24 rows of 0 pixels"),
        ({"camera": (0, 1, 0, 0)}, "camera:"),
        ({"camera": (1, 1, float("nan"), 0)}, "camera:"),
        ({"mode": "mean", "features": ("r",)}, "features: 'r' is not one of x, y, z; pass the colour image"),
        ({"color": torch.zeros(24 * 96 - 1, dtype=torch.uint8)}, "color: 2303 bytes, but 24 rows of 32 pixels need"),
        ({"color": torch.zeros(9, dtype=torch.uint8), "color_encoding": "nv12"}, "color_encoding: 'nv12' is not"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(changes, expected):
    data, layout = image(scene())
    with pytest.raises(RoboCacheError, match=expected):
        voxelize_depth(data, **{**layout, "camera": (30, 31, 15, 11), **GRID, **changes})


def compare_on_host(host, data, rgb, layout, matrix, mode="mean"):
    """The cells and rows of the device code, built by g++, against the CPU backend's."""
    features = len(layout.sources)
    grid, reduction = checked_grid(*GRID.values()), checked_reduction(mode, features, None, 20)
    # Both images in a block of their own size: a read past it would meet the other's bytes, or a sanitizer.
    source = cloud_of_depth(data, layout, rgb.data_ptr() - data.data_ptr(), matrix, Voxelization(grid, reduction, ()))
    cell, rows = located(host, source, features)
    columns = depth_columns(data.numpy(), rgb.numpy(), layout, matrix)
    expected, _ = place_columns(columns, grid, reduction, 1, None)
    assert np.array_equal(np.maximum(cell, -1), expected)
    same_bits(rows[expected >= 0], np.stack(columns, axis=1)[expected >= 0])


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize(("big_endian", "padding", "matrix"), [(False, 0, None), (True, 3, TURN.numpy())])
def test_device_code_gives_the_cpu_backends_bits(host, dtype, big_endian, padding, matrix):
    data, kind = image(scene(4, dtype=dtype), big_endian, padding)
    over = ColorLayout("bgr8", 100, 0)
    layout = check(data, kind, color=over, features=("g", "x", "r"))
    rgb = torch.from_numpy(np.random.default_rng(5).integers(0, 256, 24 * 100, dtype=np.uint8))
    compare_on_host(host, data, rgb, layout, matrix)


@settings(max_examples=60)
@given(
    raw=st.binary(min_size=0, max_size=400),
    width=st.integers(0, 12),
    height=st.integers(0, 8),
    step=st.integers(0, 60),
    deep=st.sampled_from(["16UC1", "32FC1", "mono16"]),
    big_endian=st.booleans(),
    camera=st.tuples(*[st.floats(width=32)] * 4),
)
def test_any_bytes_and_intrinsics_are_refused_or_give_the_same_bits(
    host, raw, width, height, step, deep, big_endian, camera
):
    data = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)
    try:
        layout = check_depth(
            len(raw), 0, DepthImageLayout(ImageLayout(deep, width, height, step, big_endian), camera), ("z",)
        )
    except RoboCacheError:
        return
    compare_on_host(host, data, data, layout, TURN.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_gpu_gives_the_cpus_bits(dtype, reduce):
    rng = np.random.default_rng(6)
    for size, big_endian, padding in ((1, False, 0), (7, True, 3), (480, False, 0), (96, True, 4)):
        width = size * 4 // 3
        data, layout = image(scene(size, size, width, dtype), big_endian, padding)
        rgb = torch.from_numpy(rng.integers(0, 256, size * width * 4, dtype=np.uint8))
        options = {**GRID, "camera": (size, size, width / 2, size / 2), "transform": TURN, "mode": reduce}
        if REDUCTIONS[reduce].reads_features:
            options |= {"features": ("r", "g", "b", "z"), "color_encoding": "bgra8"}
        if REDUCTIONS[reduce].needs_max_points:
            options["max_points"] = 3
        for sparse in (False, True):
            on_cpu = voxelize_depth(data, **layout, color=rgb, **options, sparse=sparse)
            on_gpu = voxelize_depth(data.cuda(), **layout, color=rgb.cuda(), **options, sparse=sparse)
            same_voxels(on_gpu, on_cpu)
