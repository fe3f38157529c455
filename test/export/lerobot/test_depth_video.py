"""Depth images as video in a LeRobot dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.formats.lerobot.arrays import read_arrays
from robocache_ros.formats.validate import validate
from robocache_ros.formats.video import depth_codes, depths_of_codes
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.fuzz.node_inputs import raw_image

av = pytest.importorskip("av", reason="needs the `export` extra")

START_NS = 1_700_000_000_000_000_000
HEIGHT, WIDTH = 17, 30  # an odd side, and rows that need padding
TYPE = "sensor_msgs/msg/Image"
KEY = "observation.images.depth"


def depth_spec(unit: str) -> FusionSpec:
    depth = {"topic": "/depth", "type": TYPE, **({"unit": unit} if unit else {})}
    joint = {"topic": "/x", "type": "std_msgs/msg/Float64", "align": "hold"}
    return load_spec({"robocache": 1, "actions": "none", "streams": {"depth": depth, "x": joint}})


def recording(folder: Path, encoding: str, seed: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Path:
    """Half a second of a depth camera at 30 Hz, with holes in its images."""
    rng = np.random.default_rng(seed)
    messages = []
    for k in range(16):
        at = START_NS + k * 33_333_333
        metres = rng.uniform(0.3, 4.0, size) * (rng.random(size) > 0.1)
        pixels = (metres * 1000).astype("<u2") if encoding == "16UC1" else metres.astype("<f4")
        messages.append(("/depth", at, raw_image(at, *size, encoding, pixels.strides[0], pixels.tobytes())))
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
    return write_bag(folder / f"bag{seed}", {"/depth": TYPE, "/x": "std_msgs/msg/Float64"}, messages)


@pytest.fixture(scope="module", params=["16UC1", "32FC1"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportResult, list[Path]]:
    folder = tmp_path_factory.mktemp("depth")
    bags = [recording(folder, request.param, seed) for seed in (1, 2)]
    spec = depth_spec("mm" if request.param == "16UC1" else "m")
    return export(bags, spec, folder / "out", DatasetOptions(depth="video")), bags


def test_v21_keeps_depth_as_arrays(tmp_path: Path) -> None:
    bags = [recording(tmp_path, "16UC1", 1)]
    out = export(
        bags, depth_spec("mm"), tmp_path / "out", DatasetOptions(formats=("lerobot", "lerobot21"), depth="video")
    ).out
    reported = json.loads((out / "lerobot21/meta/info.json").read_text())
    assert KEY not in reported["features"]
    assert len(read_arrays(out / "lerobot21", "depth")[1])
    assert [str(finding) for findings in validate(out) for finding in findings.found] == []


def info_of(result: ExportResult) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads((result.out / "meta" / "info.json").read_text())["features"][KEY]
    return reported


def expected(spec: FusionSpec, bags: list[Path]) -> NDArray[np.uint16]:
    frames = []
    for path in bags:
        with Bag(path) as bag:
            frames += [part.media["depth"].numpy()[:, 0] for part in BagRun(bag, spec).frames()]
    return depth_codes(np.concatenate(frames), spec.stream("depth").unit)


def test_the_frames_of_the_video_are_the_codes_of_the_engines_images(made) -> None:
    result, bags = made
    (path,) = (result.out / "videos" / KEY).glob("*/*.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.pix_fmt == "gray12le"
        decoded = list(container.decode(stream))
    planes = [frame.planes[0] for frame in decoded]  # PyAV 12 makes no array of this format
    codes = np.stack([np.frombuffer(plane, "<u2").reshape(HEIGHT, -1)[:, :WIDTH] for plane in planes])
    want = expected(depth_spec(info_of(result)["info"]["depth_unit"]), bags)
    np.testing.assert_array_equal(codes, want)
    assert [round(float(frame.pts * frame.time_base) * 50) for frame in decoded] == list(range(len(want)))


def test_the_dataset_states_the_codes_by_which_lerobot_computes_depths(made) -> None:
    reported = info_of(made[0])
    assert (reported["dtype"], reported["shape"]) == ("video", [HEIGHT, WIDTH, 1])
    info = reported["info"]
    assert info["is_depth_map"] is True
    assert (info["video.depth_min"], info["video.depth_max"], info["video.shift"]) == (0.01, 10.0, 3.5)
    assert info["video.use_log"] is True
    assert not (made[0].out / "arrays").exists()


def test_statistics_are_those_of_the_depths_without_holes(made) -> None:
    result, bags = made
    unit = info_of(result)["info"]["depth_unit"]
    stats = json.loads((result.out / "meta" / "stats.json").read_text())[KEY]
    depths = depths_of_codes(unit)[expected(depth_spec(unit), bags)]
    scale = 1000 if unit == "mm" else 1
    assert np.shape(stats["mean"]) == (1, 1, 1)
    assert stats["mean"][0][0][0] == pytest.approx(depths[depths > 0.02 * scale].mean(), rel=0.05)  # of every 4th image
    assert stats["min"][0][0][0] == pytest.approx(0.3 * scale, rel=0.05)
    (episodes,) = result.out.glob("meta/episodes/*/*.parquet")
    assert f"stats/{KEY}/mean" in parquet.read_table(episodes).column_names


def test_a_depth_image_of_unknown_unit_is_refused(tmp_path: Path) -> None:
    bag = recording(tmp_path, "16UC1", 1)
    with pytest.raises(RoboCacheError, match=r"streams\.depth\.unit: '' is not one of mm, m, which .*; give mm for"):
        export([bag], depth_spec(""), tmp_path / "out", DatasetOptions(depth="video"))


def test_depth_video_needs_the_format_that_has_it() -> None:
    with pytest.raises(RoboCacheError, match="depth: only the format lerobot has depth video; add it"):
        DatasetOptions(formats=("other",), depth="video")


def test_depth_video_needs_images_to_be_exported() -> None:
    with pytest.raises(RoboCacheError, match="depth: media none exports no images, depth included; use media video"):
        DatasetOptions(media="none", depth="video")


@pytest.mark.parametrize("size", [(8, 6), (15, 16), (16, 15)])
def test_depth_images_that_are_too_small_for_video_are_refused(size: tuple[int, int], tmp_path: Path) -> None:
    bag = recording(tmp_path, "16UC1", 1, size)
    with pytest.raises(RoboCacheError, match=rf"depth: .*16x16 pixels at least, images have {size[0]}x{size[1]} .*use"):
        export([bag], depth_spec("mm"), tmp_path / "out", DatasetOptions(depth="video"))


def test_the_smallest_depth_images_for_video_are_exported(tmp_path: Path) -> None:
    bag = recording(tmp_path, "16UC1", 1, (16, 16))

    assert export([bag], depth_spec("mm"), tmp_path / "out", DatasetOptions(depth="video")).episodes == 1
