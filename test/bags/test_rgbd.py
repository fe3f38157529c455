"""Depth cameras in recordings, end to end: colour, frames, compressed depth, and what a recording may lack."""

import io

import numpy as np
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxelize_depth
from robocache_ros.spec import load_spec
from test.fuzz.messages import header, serialize
from test.fuzz.node_inputs import raw_image
from test.fuzz.recordings import MS, START_NS

HEIGHT, WIDTH, FRAMES = 12, 16, 15
CAMERA = (14.0, 15.0, 7.5, 5.5)
GRID = {"origin_m": [-1, -1, 0], "size_m": 0.125, "shape": [16, 16, 24]}
IMAGE, COMPRESSED, INFO = (f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "CameraInfo"))
TF = "tf2_msgs/msg/TFMessage"
ENCODINGS = {np.uint16: "16UC1", np.float32: "32FC1"}
# Half a turn about x, then a quarter about z, by quaternions that float32 does not hold.
MAST = ("base_link", "mast", (0.1, -0.2, 2.1), (0.0, 0.0, 0.6, 0.8))
HEAD = ("mast", "optical", (0.05, 0.0, 0.3), (1.0, 0.0, 0.0, 0.0))


def image(stamp_ns, pixels, encoding):
    return raw_image(stamp_ns, HEIGHT, WIDTH, encoding, pixels.nbytes // HEIGHT, pixels.tobytes(), "optical")


def info(stamp_ns):
    fx, fy, cx, cy = CAMERA
    k, p = [fx, 0, cx, 0, fy, cy, 0, 0, 1], [fx, 0, cx, 0, 0, fy, cy, 0, 0, 0, 1, 0]
    return serialize(INFO, {"header": header(stamp_ns, "optical"), "height": HEIGHT, "width": WIDTH, "k": k, "p": p})


def compressed(stamp_ns, depth):
    """A compressedDepth image, as compressed_depth_image_transport writes 16UC1."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(depth).save(file, "PNG")
    packed = {"format": "16UC1; compressedDepth png", "data": bytes(12) + file.getvalue()}
    return serialize(COMPRESSED, {"header": header(stamp_ns, "optical"), **packed})


def scene(k, dtype=np.uint16):
    """The depth and colour images of frame k."""
    rng = np.random.default_rng(k)
    metres = rng.uniform(0.4, 2.4, (HEIGHT, WIDTH))
    depth = (1000 * metres if dtype == np.uint16 else metres).astype(dtype)
    return depth, rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


@pytest.fixture
def record(tmp_path, tf_message):
    """Writes half a second of a 30 Hz camera whose colour comes 4 ms after its depth."""

    def write(dtype=np.uint16, frames=(), lost=(), packed=False):
        types = {"/depth": COMPRESSED if packed else IMAGE, "/info": INFO, "/color": IMAGE}
        if frames:
            types["/tf_static"] = TF
        # The first transform comes late, as where a recorder was told of it after the camera's topics.
        messages = [("/tf_static", START_NS + (90 + k) * MS, tf_message((0, *one))) for k, one in enumerate(frames)]
        for k in range(FRAMES):
            stamp = START_NS + 33 * k * MS
            depth, color = scene(k, dtype)
            raw = compressed(stamp, depth) if packed else image(stamp, depth, ENCODINGS[dtype])
            messages += [("/info", stamp + 2 * MS, info(stamp)), ("/depth", stamp + 3 * MS, raw)]
            if k not in lost:
                messages.append(("/color", stamp + 7 * MS, image(stamp + MS, color, "rgb8")))
        return write_bag(tmp_path / "bag", types, sorted(messages, key=lambda message: message[1]))

    return write


def spec(type_=IMAGE, **keys):
    stream = {"topic": "/depth", "type": type_, "camera_info": "/info", "max_age_ms": 40, "voxels": GRID, **keys}
    return load_spec({"robocache": 1, "streams": {"rgbd": stream}})


def fused(path, fusion):
    """The grid of each frame that was used, by its number."""
    found = {}
    with Bag(path) as bag:
        for part in BagRun(bag, fusion, visibility="deployed").frames():
            stamps = part.stamps_ns[:, 0].tolist()
            found |= {(s - START_NS) // (33 * MS): g for s, g in zip(stamps, part.media["rgbd"], strict=True) if s}
    assert [k for k in found if not 0 <= k < FRAMES] == []
    return found


def expected(k, dtype=np.uint16, transform=None, **options):
    depth, color = scene(k, dtype)
    if options:
        options |= {"color": torch.from_numpy(color.reshape(-1)), "color_step": 3 * WIDTH}
    return voxelize_depth(
        torch.from_numpy(depth.view(np.uint8).reshape(-1)),
        encoding=ENCODINGS[dtype], width=WIDTH, height=HEIGHT, step=WIDTH * depth.itemsize,
        camera=CAMERA, transform=transform, grid_min=GRID["origin_m"], voxel_size=GRID["size_m"],
        grid_size=GRID["shape"], **options,
    ).grid  # fmt: skip


def matrix(*entries):
    """The product of the poses, each by its quaternion's rotation of the axes."""
    combined = np.eye(4)
    for _, _, at, (x, y, z, w) in entries:
        v, unit = np.array([x, y, z]), np.eye(3)
        turned = [e + 2 * w * np.cross(v, e) + 2 * np.cross(v, np.cross(v, e)) for e in unit]
        combined = combined @ np.vstack([np.column_stack([*turned, at]), [0, 0, 0, 1]])
    return torch.tensor(combined[:3], dtype=torch.float32)


@pytest.mark.parametrize(("dtype", "packed"), [(np.uint16, False), (np.float32, False), (np.uint16, True)])
def test_a_grid_is_that_of_the_image_at_its_stamp(record, dtype, packed):
    grids = fused(record(dtype, packed=packed), spec(COMPRESSED if packed else IMAGE))
    assert len(grids) >= FRAMES - 2
    for k, grid in grids.items():
        assert torch.equal(grid, expected(k, dtype))


@pytest.mark.parametrize("lost", [(), (4, 9)])
def test_colour_is_a_feature_of_the_voxels_and_an_image_without_it_is_not_used(record, lost):
    features = ("r",) if lost else ("r", "z", "b")
    voxels = {**GRID, "reduce": "mean", "features": list(features)}
    grids = fused(record(lost=lost), spec(color="/color", voxels=voxels))
    assert not set(lost) & set(grids)
    assert len(grids) >= FRAMES - 2 - len(lost)
    for k, grid in grids.items():
        assert torch.equal(grid, expected(k, mode="mean", features=features))


@pytest.mark.parametrize("order", [(MAST, HEAD), (HEAD, MAST)])
def test_the_sensors_place_comes_from_tf_static_wherever_it_stands(record, order):
    grids = fused(record(frames=order), spec(voxels={**GRID, "frame": "base_link"}))
    assert len(grids) >= FRAMES - 2  # also those before the transforms were logged: static is of all times
    differing = sum(int((grid != expected(k, transform=matrix(MAST, HEAD))).sum()) for k, grid in grids.items())
    # The reference rounds the same pose elsewhere: a point on a face may fall to its other side.
    assert differing <= 4
    assert all(grid.sum() > 5 for grid in grids.values())


def test_a_frame_that_does_not_lead_to_the_sensor_is_reported_with_the_count(record):
    path = record(frames=(MAST,))
    with pytest.raises(RoboCacheError, match=rf"rgbd: dropped:no_transform \({FRAMES}\)"):
        fused(path, spec(voxels={**GRID, "frame": "base_link"}))


def test_a_frame_and_an_extrinsic_are_refused_together():
    pose = {"translation_m": [0, 0, 0], "rotation_xyzw": [0, 0, 0, 1]}
    with pytest.raises(RoboCacheError, match="give one of the two"):
        spec(voxels={**GRID, "frame": "base_link", "extrinsic": pose})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"camera_info": "/depth/info"}, r"has no topic /depth/info \(did you mean"),
        ({"camera_info": "/depth"}, r"streams\.rgbd\.camera_info: sensor_msgs/msg/Camera"),
        ({"voxels": {**GRID, "frame": "base_link"}}, r"frame: .* has no topic /tf_static; give voxels.extr"),
    ],
)
def test_a_recording_without_what_completes_the_images_is_refused(record, keys, message):
    with Bag(record()) as bag, pytest.raises(RoboCacheError, match=message):
        bag.require(spec(**keys))
