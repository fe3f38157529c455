from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.engine.frames import split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.formats import parquet as parquet_tables
from robocache_ros.formats.lerobot import write
from robocache_ros.formats.lerobot.arrays import read_arrays
from robocache_ros.formats.video import encoder_of
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.layout import Layout

Made = Callable[[str], ExportResult]


def columns(result: ExportResult) -> dict[str, Any]:
    return parquet.read_table(result.out / "data/chunk-000/file-000.parquet").to_pydict()


def meta(result: ExportResult, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.out / "meta" / name).read_text())
    return found


@pytest.fixture(scope="module")
def frames(bags: list[Path], spec: FusionSpec) -> list[Any]:
    """What the engine gives for the first episode: the first recording until its joints fall silent."""
    kept = []
    with Bag(bags[0]) as bag:
        for part in BagRun(bag, spec).frames():
            complete = (part.valid > 0).all(axis=1)
            kept.append(part[: len(part) if complete.all() else int(complete.argmin())])
            if not complete.all():
                return kept
    raise AssertionError("the recording has no gap")


def test_state_and_action_are_the_fused_columns_to_the_bit(made: Made, frames: list[Any]) -> None:
    fused = torch.cat([part.fused for part in frames]).numpy()
    rows = columns(made("image"))
    assert np.array_equal(np.array(rows["observation.state"], np.float32)[: len(fused)], fused[:, :23])
    assert np.array_equal(np.array(rows["action"], np.float32)[: len(fused)], fused[:, 23:])


def test_row_of_a_live_frame_is_that_of_the_dataset(made: Made, frames: list[Any], spec: FusionSpec) -> None:
    import io

    from PIL import Image

    rows, layout = columns(made("image")), Layout(spec)
    part = frames[0]
    for index, window in ((0, part.rows()[:1]), (len(part) - 1, part.rows()[-1:])):
        frame = split_window(layout, int(part.ticks_ns[index]), window)
        frame.tensors.update({name: value[index] for name, value in part.media.items()})
        row = frame.lerobot("lift the cube")

        read = {name for name in rows if name.startswith("observation.")}
        assert {name for name in row if name != "task"} == read
        assert row["task"] == "lift the cube"
        assert torch.equal(row["observation.state"], torch.tensor(rows["observation.state"][index]))
        for name in read - {"observation.state"}:
            stored = np.array(Image.open(io.BytesIO(rows[name][index]["bytes"])))
            loaded = torch.from_numpy(stored).permute(2, 0, 1).contiguous().to(torch.float32).div(255)  # as LeRobot
            assert torch.equal(row[name], loaded)


def test_png_images_are_the_engines_to_the_bit(made: Made, frames: list[Any]) -> None:
    import io

    from PIL import Image

    rows = columns(made("image"))
    images = torch.cat([part.media["front"] for part in frames]).numpy()
    for index in (0, 13, len(images) - 1):
        stored = np.asarray(Image.open(io.BytesIO(rows["observation.images.front"][index]["bytes"])))
        assert np.array_equal(stored.transpose(2, 0, 1), images[index])


def test_timestamps_are_the_frame_index_over_the_rate(made: Made) -> None:
    rows = columns(made("none"))
    for episode in (0, 1):
        of_it = [i for i, e in enumerate(rows["episode_index"]) if e == episode]
        assert [rows["frame_index"][i] for i in of_it] == list(range(len(of_it)))
        assert [np.float32(rows["timestamp"][i]) for i in of_it] == [np.float32(k / 50) for k in range(len(of_it))]
    assert rows["index"] == list(range(len(rows["index"])))


def test_original_stamps_can_be_looked_up_in_the_recording(made: Made, bags: list[Path], spec: FusionSpec) -> None:
    with Bag(bags[0]) as bag:
        poses = list(bag.messages(["/panda/ee_pose"]))
    stamps = {int.from_bytes(m.data[4:8], "little") * 10**9 + int.from_bytes(m.data[8:12], "little") for m in poses}
    column = [stream.name for stream in spec.streams].index("ee_position")
    rows = columns(made("video"))
    used = {
        row[column]
        for row, episode in zip(rows["robocache.stamp_ns"], rows["episode_index"], strict=True)
        if episode < 2  # of the first recording
    }
    assert len(used) > 50
    assert used <= stamps


def test_latency_is_given_back_to_the_stored_stamps(bags: list[Path], tmp_path: Path, spec: FusionSpec) -> None:
    raw = spec.to_dict()
    pose = {"topic": "/panda/ee_pose", "type": "geometry_msgs/msg/PoseStamped", "field": "pose.position"}
    raw |= {"actions": "none", "streams": {"plain": pose, "late": {**pose, "latency_ms": 30.0}}}
    result = export([bags[0]], load_spec(raw), tmp_path / "out", DatasetOptions(media="none"))
    rows = columns(result)
    stamps, ages = np.array(rows["robocache.stamp_ns"]), np.array(rows["robocache.age_ns"])
    ticks = np.array(rows["robocache.tick_ns"])
    assert (ages >= 0).all()
    assert np.array_equal(stamps[:, 0], ticks - ages[:, 0])
    assert np.array_equal(stamps[:, 1], ticks - ages[:, 1] + 30_000_000)


def test_info_names_every_value(made: Made, spec: FusionSpec) -> None:
    info = meta(made("video"), "info.json")
    assert info["codebase_version"] == "v3.0"
    assert info["fps"] == 50
    assert info["features"]["observation.state"]["names"][0] == "joint_position.panda_joint1"
    assert info["features"]["observation.state"]["shape"] == [23]
    assert info["features"]["action"]["names"] == [f"action.{k}" for k in range(7)]
    assert info["features"]["robocache.valid"]["names"] == [stream.name for stream in spec.streams]
    assert info["features"]["observation.images.front"]["info"]["video.fps"] == 50


def test_statistics_are_those_of_the_columns(made: Made) -> None:
    stats = meta(made("none"), "stats.json")["observation.state"]
    values = np.array(columns(made("none"))["observation.state"])
    assert stats["count"] == [len(values)]
    for name, wanted in (
        ("min", values.min(0)),
        ("max", values.max(0)),
        ("mean", values.mean(0)),
        ("std", values.std(0)),
    ):
        assert stats[name] == pytest.approx(wanted.tolist(), rel=1e-6, abs=1e-9)
    for name, share in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        assert stats[name] == pytest.approx(np.quantile(values, share, axis=0).tolist(), rel=1e-5, abs=1e-7)


def test_image_statistics_lie_in_0_to_1_a_channel(made: Made) -> None:
    stats = meta(made("video"), "stats.json")["observation.images.front"]
    for name in ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99"):
        assert np.shape(stats[name]) == (3, 1, 1)
        assert 0 <= np.min(stats[name]) <= np.max(stats[name]) <= 1
    assert np.all(np.array(stats["q10"]) <= np.array(stats["q90"]))


def test_voxels_are_kept_next_to_the_tables_bit_for_bit(made: Made, frames: list[Any]) -> None:
    described = meta(made("image"), "robocache.json")["arrays"]["voxels"]
    assert described == {
        "path": "arrays/voxels/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "shape": [64, 64, 64],
        "dtype": "bits",
    }
    ranges, stored = read_arrays(made("image").out, "voxels")
    grids = torch.cat([part.media["voxels"] for part in frames]).numpy()
    assert len(stored) < len(grids) / 4  # each distinct grid once
    assert ranges[0, 0] == 0
    assert ranges[-1, 1] == len(grids)
    for (start, stop), grid in zip(ranges, stored, strict=True):
        assert all(np.array_equal(grid, grids[frame]) for frame in range(start, stop))
    assert len(read_arrays(made("image").out, "voxels", episode=1)[1]) > 3


def test_arrays_that_are_not_there_are_named(made: Made) -> None:
    with pytest.raises(RoboCacheError, match=r"front: .* has no arrays of it; it has those of voxels"):
        read_arrays(made("image").out, "front")


def test_depth_images_are_kept_as_the_numbers_they_are(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    depth = (np.arange(6 * 8, dtype="<u2") * 1000).reshape(6, 8)

    def message(stamp_ns: int) -> bytes:
        head = struct.pack("<iII4xII", *divmod(stamp_ns, 10**9), 1, 6, 8)  # stamp, frame_id "", height, width
        return b"\0\1\0\0" + head + struct.pack("<I6sBxII", 6, b"16UC1\0", 0, 16, 96) + depth.tobytes()

    times = [start + 50_000_000 * k for k in range(20)]
    bag = write_bag(tmp_path / "bag", {"/depth": "sensor_msgs/msg/Image"}, [("/depth", t, message(t)) for t in times])
    streams = {"depth": {"topic": "/depth", "type": "sensor_msgs/msg/Image"}}
    spec = load_spec({"robocache": 1, "actions": "none", "streams": streams})
    result = export([bag], spec, tmp_path / "out")
    ranges, stored = read_arrays(result.out, "depth")
    assert len(stored) == 19  # the last one comes after the last tick
    assert stored.dtype == np.float32
    assert np.array_equal(stored[3, 0], depth.astype(np.float32))
    assert (np.diff(ranges[:-1]) >= 2).all()  # 20 Hz on 50 Hz ticks


def test_a_dataset_says_how_to_make_it_again(made: Made, bags: list[Path], spec: FusionSpec) -> None:
    import hashlib

    reported = meta(made("video"), "robocache.json")
    assert load_spec(reported["spec"]) == spec
    assert reported["options"]["visibility"] == "ideal"
    assert [recording["bag"] for recording in reported["recordings"]] == [str(bag) for bag in bags]
    file = next(bags[0].glob("*.mcap"))
    assert reported["recordings"][0]["files"] == [
        {"name": file.name, "size": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    ]


def test_the_same_recording_gives_the_same_tables(
    made: Made, bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    again = export(
        bags, spec, tmp_path / "again", DatasetOptions(media="none", task="lift the cube", robot_type="panda")
    )
    assert columns(again) == columns(made("none"))


def test_deployed_has_the_late_ones_missing(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    raw = {**spec.to_dict(), "delay_ms": 30.0}  # the front camera's frames come after 38 ms
    result = export([bags[0]], load_spec(raw), tmp_path / "out", DatasetOptions(media="none", visibility="deployed"))
    ideal = export([bags[0]], load_spec(raw), tmp_path / "ideal", DatasetOptions(media="none"))
    voxels = [s.name for s in result.recordings[0].spec.streams].index("voxels")
    ages = [np.array(columns(r)["robocache.age_ns"])[:, voxels].mean() for r in (result, ideal)]
    assert result.recordings[0].counters["voxels"]["late"] > 5
    assert ages[0] > ages[1]


def test_without_images_an_eager_robot_still_waits_for_its_cameras(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    eager = load_spec({**spec.to_dict(), "emit": "eager"})
    bare, full = (
        export([bags[0]], eager, tmp_path / media, DatasetOptions(media=media, visibility="deployed"))
        for media in ("none", "image")
    )
    assert columns(bare)["observation.state"] == columns(full)["observation.state"]
    assert "observation.images.front" not in columns(bare)


def test_row_groups_are_bounded_and_change_no_value(
    made: Made, bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1_000_000
    monkeypatch.setattr(parquet_tables, "ROW_GROUP_BYTES", limit)
    monkeypatch.setattr(write, "PART_BYTES", limit // 2)
    result = export(bags, spec, tmp_path / "out", DatasetOptions(media="image", task="lift the cube"))
    for name in ("data/chunk-000/file-000.parquet", "arrays/voxels/chunk-000/file-000.parquet"):
        small, large = (parquet.ParquetFile(folder / name) for folder in (result.out, made("image").out))
        sizes = [small.read_row_group(group).nbytes for group in range(small.num_row_groups)]
        assert len(sizes) > 1
        assert max(sizes) <= limit
        assert small.read().equals(large.read())


def test_a_dataset_states_how_its_images_are_stored(made: Made) -> None:
    for media, stored in (
        ("video", f"8-bit RGB as {encoder_of((224, 224)).codec} video (yuv420p), lossy"),
        ("image", "8-bit RGB as PNG, lossless"),
    ):
        front = meta(made(media), "robocache.json")["images"]["front"]
        assert (front["stored"], front["normalized"]) == (stored, False)
        assert front["normalize"] == {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize("shape", [[1 << 20, 1 << 20], [0], [-1, 8], "8"])
def test_arrays_of_a_shape_that_does_not_fit_are_refused(made: Made, tmp_path: Path, shape: object) -> None:
    provenance = meta(made("image"), "robocache.json")
    provenance["arrays"]["voxels"]["shape"] = shape
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "robocache.json").write_text(json.dumps(provenance))
    (tmp_path / "arrays").symlink_to(made("image").out / "arrays")

    with pytest.raises(RoboCacheError, match=r"robocache\.json: arrays are malformed|voxels"):
        read_arrays(tmp_path, "voxels")
