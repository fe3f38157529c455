"""LeRobot datasets, v3.0 and v2.1, read back: rows, arrays, statistics and outcomes."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.datasets import open_dataset
from robocache_ros.engine.frames import split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats import parquet as parquet_tables
from robocache_ros.formats import pieces
from robocache_ros.formats.lerobot import write
from robocache_ros.formats.lerobot.arrays import read_arrays, to_dense, to_sparse
from robocache_ros.formats.lerobot.openpi import write_chunk_norm_stats
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.formats.statistics import QUANTILES, Histogram, by_column, of_columns
from robocache_ros.formats.validate import validate
from robocache_ros.formats.video import encoder_of
from robocache_ros.ops import fixed_size_cloud
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.layout import Layout
from test.export.conftest import NO_MEDIA, START_NS, lerobot_rows, spec_of, written
from test.export.readers.environments import ffmpeg, needs, probe
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export


def columns(dataset: Path) -> dict[str, Any]:
    rows: dict[str, Any] = lerobot_rows(dataset).to_pydict()
    return rows


def of_stream(rows: dict[str, Any], result: ExportResult, stream: str, name: str) -> np.ndarray:
    """(T,) `valid`, `age_ns` or `stamp_ns` of a stream."""
    names = [stream.name for stream in result.recordings[0].spec.streams]
    return np.array(rows[f"robocache.{name}"])[:, names.index(stream)]


def meta(dataset: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta" / name).read_text())
    return found


@pytest.fixture(scope="module")
def frames(bags, spec) -> list[Any]:
    """What the engine gives for the first episode: the first recording until its joints fall silent."""
    kept = []
    with Bag(bags[0]) as bag:
        for part in BagRun(bag, spec).frames():
            complete = (part.valid > 0).all(axis=1)
            kept.append(part[: len(part) if complete.all() else int(complete.argmin())])
            if not complete.all():
                return kept
    raise AssertionError("the recording has no gap")


def test_row_of_a_live_frame_is_that_of_the_dataset(made, frames, spec):
    rows, layout = columns(made("image").out), Layout(spec)
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


def test_original_stamps_can_be_looked_up_in_the_recording_also_with_a_latency(bags, tmp_path, spec):
    with Bag(bags[0]) as bag:
        poses = list(bag.messages(["/panda/ee_pose"]))
    stamps = {int.from_bytes(m.data[4:8], "little") * 10**9 + int.from_bytes(m.data[8:12], "little") for m in poses}
    pose = {"topic": "/panda/ee_pose", "type": "geometry_msgs/msg/PoseStamped", "field": "pose.position"}
    raw = spec.to_dict() | {"actions": "none", "streams": {"plain": pose, "late": {**pose, "latency_ms": 30.0}}}
    result = export([bags[0]], load_spec(raw), tmp_path / "out", NO_MEDIA)
    rows = columns(result.out)
    for stream, latency_ns in (("plain", 0), ("late", 30_000_000)):
        ages, used = (of_stream(rows, result, stream, name) for name in ("age_ns", "stamp_ns"))
        assert (ages >= 0).all()
        assert np.array_equal(used, np.array(rows["robocache.tick_ns"]) - ages + latency_ns)
        assert len(set(used)) > 50
        assert set(used) <= stamps


def test_info_names_every_value(made, spec):
    info = meta(made("video").out, "info.json")
    features = info["features"]
    assert (info["codebase_version"], info["fps"]) == ("v3.0", 50)
    assert features["observation.state"]["names"][0] == "joint_position.panda_joint1"
    assert features["observation.state"]["shape"] == [23]
    assert features["action"]["names"] == [f"action.{k}" for k in range(7)]
    assert features["robocache.valid"]["names"] == [stream.name for stream in spec.streams]
    assert features["observation.images.front"]["info"]["video.fps"] == 50


def test_voxels_are_kept_next_to_the_tables_bit_for_bit(made, frames):
    path = "arrays/voxels/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    described = meta(made("image").out, "robocache.json")["arrays"]["voxels"]
    assert described == {"path": path, "shape": [64, 64, 64], "dtype": "bits"}
    ranges, stored = read_arrays(made("image").out, "voxels")
    grids = torch.cat([part.media["voxels"] for part in frames]).numpy()
    assert len(stored) < len(grids) / 4  # each distinct grid once
    assert ranges[0, 0] == 0
    assert ranges[-1, 1] == len(grids)
    for (start, stop), grid in zip(ranges, stored, strict=True):
        assert all(np.array_equal(grid, grids[frame]) for frame in range(start, stop))
    assert len(read_arrays(made("image").out, "voxels", episode=1)[1]) > 3


@pytest.mark.parametrize("shape", [[1 << 20, 1 << 20], [0], [-1, 8], "8"])
def test_arrays_that_are_not_there_or_of_a_shape_that_does_not_fit_are_refused(made, tmp_path, shape):
    with pytest.raises(RoboCacheError, match=r"front: .* has no arrays of it; it has those of voxels"):
        read_arrays(made("image").out, "front")
    provenance = meta(made("image").out, "robocache.json")
    provenance["arrays"]["voxels"]["shape"] = shape
    written(tmp_path, json.dumps(provenance), "meta/robocache.json")
    (tmp_path / "arrays").symlink_to(made("image").out / "arrays")
    with pytest.raises(RoboCacheError, match=r"robocache\.json: arrays are malformed|voxels"):
        read_arrays(tmp_path, "voxels")


@pytest.mark.parametrize(
    ("media", "stored"),
    [
        ("video", f"8-bit RGB as {encoder_of((224, 224)).codec} video (yuv420p), lossy"),
        ("image", "8-bit RGB as PNG, lossless"),
    ],
)
def test_a_dataset_says_how_to_make_it_again_and_how_its_images_are_stored(made, bags, spec, media, stored):
    reported = meta(made(media).out, "robocache.json")
    assert load_spec(reported["spec"]) == spec
    assert reported["options"]["visibility"] == "ideal"
    assert [recording["bag"] for recording in reported["recordings"]] == [str(bag) for bag in bags]
    file = next(bags[0].glob("*.mcap"))
    about = {"name": file.name, "size": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert reported["recordings"][0]["files"] == [about]
    front = reported["images"]["front"]
    assert (front["stored"], front["normalized"]) == (stored, False)
    assert front["normalize"] == {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def test_without_images_an_eager_robot_still_waits_for_its_cameras(bags, spec, tmp_path):
    eager = load_spec({**spec.to_dict(), "emit": "eager"})
    bare, full = (
        export([bags[0]], eager, tmp_path / media, DatasetOptions(media=media, visibility="deployed"))
        for media in ("none", "image")
    )
    assert columns(bare.out)["observation.state"] == columns(full.out)["observation.state"]
    assert "observation.images.front" not in columns(bare.out)


def test_row_groups_are_bounded_and_change_no_value(made, bags, spec, tmp_path, monkeypatch):
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


# Ticks at which a stream has no value, in a dataset.


def test_masked_ticks_are_stored_as_zeros_and_marked_and_do_not_count_into_the_statistics(bags, spec, tmp_path):
    result = export(bags[:1], spec, tmp_path / "out", DatasetOptions(media="none", on_invalid="mask"))
    rows = columns(result.out)
    states, joints = of_stream(rows, result, "joint_position", "valid"), np.array(rows["observation.state"])[:, :7]
    assert ((states == 0).sum(), (states == 2).sum()) == (5, 3)
    assert (joints[states == 0] == 0).all()
    assert (np.diff(rows["robocache.tick_ns"]) == 20_000_000).all()
    stats = meta(result.out, "stats.json")["observation.state"]
    assert stats["min"][:7] == joints[states > 0].min(0).tolist()
    assert stats["std"][:7] == pytest.approx(joints[states > 0].std(0).tolist(), rel=1e-6)


def test_held_ticks_repeat_the_last_value_with_its_age_and_a_late_command_is_not_aligned(bags, spec, tmp_path):
    streams = tuple(replace(s, max_age_ms=20.0) if s.name == "action" else s for s in spec.streams)
    options = DatasetOptions(media="none", on_invalid="hold")
    result = export(bags[:1], replace(spec, streams=streams), tmp_path / "out", options)
    rows = columns(result.out)
    held = np.flatnonzero(of_stream(rows, result, "joint_position", "valid") == 2)
    assert len(held) == 8  # 5 ticks more than within max_age_ms
    assert set(rows["episode_index"]) == {0}
    joints = np.array(rows["observation.state"])[held, :7]
    assert (joints == joints[0]).all()
    assert (np.diff(of_stream(rows, result, "joint_position", "age_ns")[held]) == 20_000_000).all()
    states, ages_ns = (of_stream(rows, result, "action", name) for name in ("valid", "age_ns"))
    assert set(states.tolist()) == {1, 2}
    assert ((states == 2) == (ages_ns > 20_000_000)).all()


# Windows of a recording, exported and read back.

NAMES = ["panda_joint1", "panda_joint2"]
JOINTS = {"topic": "/panda/joint_states", "type": "sensor_msgs/msg/JointState", "names": NAMES, "on_invalid": "mask"}


def spec_without_actions(**streams: Any) -> FusionSpec:
    return load_spec({"robocache": 1, "actions": "none", "streams": streams})


def test_a_window_is_stored_with_its_shape_mask_and_ages(bags, tmp_path):
    window, shape = {**JOINTS, "align": "window"}, (12, 2)
    effort = {**window, "samples": 30, "field": "velocity", "reduce": "rms"}
    windowed = spec_without_actions(arm=JOINTS, fast={**window, "samples": 12}, effort=effort)
    result = export(bags, windowed, tmp_path / "out", DatasetOptions())
    with Bag(bags[0]) as bag:
        parts = list(BagRun(bag, windowed).frames())
    fused = np.concatenate([part.fused.numpy() for part in parts])
    ages = np.concatenate([part.sample_age_ms for part in parts])
    table = parquet.read_table(next(result.out.glob("data/*/*.parquet")), filters=[("episode_index", "=", 0)])
    rows = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    stored = rows["observation.window.fast"].astype(np.float32)
    assert stored.shape == (len(fused), *shape)
    assert stored.tobytes() == fused[:, 2:26].tobytes()
    assert np.array_equal(rows["robocache.mask.fast"], ages >= 0)
    assert rows["robocache.sample_age_ms.fast"].astype(np.float32).tobytes() == ages.tobytes()
    assert (rows["robocache.mask.fast"].sum(axis=1) >= 9).mean() > 0.8  # 500 Hz on 50 Hz ticks
    assert rows["observation.state"].shape == (len(fused), 4)  # arm and effort

    features = meta(result.out, "info.json")["features"]
    assert features["observation.window.fast"] == {"dtype": "float32", "shape": [*shape], "names": NAMES}
    assert features["robocache.mask.fast"]["shape"] == [12]
    stats = meta(result.out, "stats.json")["observation.window.fast"]
    assert np.shape(stats["mean"]) == np.shape(stats["q50"]) == shape
    assert meta(result.out, "robocache.json")["layout"]["streams"]["fast"]["shape"] == [*shape]


def test_samples_that_did_not_fit_are_counted_in_the_report(bags, tmp_path):
    small = spec_without_actions(fast={**JOINTS, "align": "window", "samples": 4})
    result = export(bags[:1], small, tmp_path / "out")
    assert result.recordings[0].counters["fast"]["window_overflow"] > 300
    assert "window_overflow" in (result.out / "report.html").read_text()


# Voxels of a LeRobot dataset as coordinates and values, and as clouds of a fixed size.

GRID = {"origin_m": [-0.64, -0.64, 0.4], "size_m": 0.02, "shape": [64, 64, 64]}
CLOUD = {"topic": "/camera/front/points", "type": "sensor_msgs/msg/PointCloud2", "max_age_ms": 200}


@pytest.mark.parametrize(
    ("keys", "dtype", "features"),
    [({}, np.uint8, 1), ({"reduce": "mean", "features": ["x", "y", "z", "intensity"]}, np.float32, 4)],
    ids=["occupancy", "mean"],
)
def test_sparse_voxels_are_the_dense_ones(keys, dtype, features, bags, tmp_path):
    grid = {**GRID, "size_m": 0.08, "shape": [16, 16, 16], **keys}
    spec = spec_without_actions(voxels={**CLOUD, "voxels": grid})
    dense, sparse = (export(bags[:1], spec, tmp_path / how, DatasetOptions(voxels=how)) for how in ("dense", "sparse"))
    (ranges, grids), (sparse_ranges, sparse_grids) = (read_arrays(each.out, "voxels") for each in (dense, sparse))
    assert np.array_equal(ranges, sparse_ranges)
    assert (grids.dtype, grids.shape) == (sparse_grids.dtype, sparse_grids.shape)
    assert grids.tobytes() == sparse_grids.tobytes()
    (file,) = (sparse.out / "arrays" / "voxels").glob("*/*.parquet")
    row = {name: values[0] for name, values in parquet.read_table(file).to_pydict().items()}
    assert np.array(row["coords"]).tolist() == np.argwhere(grids[0].reshape(-1, 16, 16, 16).any(axis=0)).tolist()
    assert np.array(row["values"], dtype).shape == (len(row["coords"]), features)
    assert meta(sparse.out, "robocache.json")["arrays"]["voxels"]["layout"] == "sparse"
    ranges, grids = read_arrays(sparse.out, "voxels", episode=7)  # which there is not
    assert (ranges.shape, grids.shape[0], grids.shape[-3:]) == ((0, 2), 0, (16, 16, 16))


def test_a_stored_cloud_is_that_of_the_frame_on_the_robot(bags, tmp_path):
    mean = {**GRID, "reduce": "mean", "features": ["x", "y", "z", "intensity"]}
    spec = spec_without_actions(cloud={**CLOUD, "voxels": mean})
    out = export(bags[:1], spec, tmp_path / "out", DatasetOptions(points=512, voxels="sparse")).out
    ranges, clouds = read_arrays(out, "cloud")
    with Bag(bags[0]) as bag:
        grids = [grid for part in BagRun(bag, spec).frames() for grid in part.media["cloud"]]
    assert clouds.shape[1:] == (512, 4)
    for (start, stop), cloud in zip(ranges, clouds, strict=True):
        points, number = fixed_size_cloud(grids[start], 512)
        assert points.numpy().tobytes() == cloud.tobytes()
        assert (cloud.any(axis=1).sum(), int(number)) == (512, 512)
        assert np.array_equal(grids[start], grids[stop - 1])


def test_points_need_voxels_with_coordinates(bags, tmp_path):
    spec = spec_without_actions(voxels={**CLOUD, "voxels": GRID})
    with pytest.raises(RoboCacheError, match="points: no stream has voxels with the features x, y, z; add them"):
        export(bags[:1], spec, tmp_path / "out", DatasetOptions(points=512))
    with pytest.raises(RoboCacheError, match="points: -1 is not an integer from 0 to"):
        DatasetOptions(points=-1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
@pytest.mark.parametrize(("shape", "share"), [((4, 5, 6), 0.0), ((3, 4, 5, 6), 0.1), ((2, 1, 1, 257), 1.0)])
def test_a_grid_comes_back_bit_for_bit(dtype, shape, share):
    rng = np.random.default_rng(1)
    grid = (rng.normal(size=shape) * 9 * (rng.random(shape) < share)).astype(dtype)
    back = to_dense(*to_sparse(grid), shape)
    assert (back.dtype, back.tobytes()) == (grid.dtype, grid.tobytes())


# LeRobot v2.1 with GR00T's files.

CAMERAS = ("front", "wrist")
VIDEO = "videos/chunk-000/observation.images.{}/episode_{:06d}.mp4"


@pytest.fixture(scope="module")
def both(bags, spec, tmp_path_factory) -> tuple[Path, Path]:
    """LeRobot v3.0 and v2.1 from one pass, with two tasks."""
    tasks = zip((bags[0], *bags), ("lift the cube", "put it down", "lift the cube"), strict=True)
    recordings = [PlannedRecording(bag, task=task) for bag, task in tasks]
    options = DatasetOptions(formats=("lerobot", "lerobot21"), robot_type="panda")
    out = export(recordings, spec, tmp_path_factory.mktemp("both") / "out", options).out
    return out / "lerobot", out / "lerobot21"


def lines(dataset: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset / "meta" / name).read_text().splitlines()]


def test_the_rows_are_those_of_v3_and_each_task_has_an_index(both):
    new, old = map(columns, both)
    assert old.pop("annotation.human.action.task_description") == old["task_index"]
    assert old == new
    tasks, episodes = (lines(both[1], f"{name}.jsonl") for name in ("tasks", "episodes"))
    assert [line["task"] for line in tasks] == ["lift the cube", "put it down"]
    assert {episode["tasks"][0] for episode in episodes} == {"lift the cube", "put it down"}
    for row, index in zip(old["episode_index"], old["task_index"], strict=True):
        assert episodes[row]["tasks"] == [tasks[index]["task"]]
    assert all(findings.found == [] for findings in validate(both[1]))


def test_each_episode_is_in_files_of_its_own(both):
    v21 = both[1]
    episodes = lines(v21, "episodes.jsonl")
    assert len(episodes) == meta(v21, "info.json")["total_episodes"] > 1
    for index, episode in enumerate(episodes):
        assert episode == {"episode_index": index, "tasks": episode["tasks"], "length": episode["length"]}
        file = v21 / f"data/chunk-000/episode_{index:06d}.parquet"
        assert parquet.read_metadata(file).num_rows == episode["length"]
        for camera in CAMERAS:
            with av.open(str(v21 / VIDEO.format(camera, index))) as video:
                frames = list(video.decode(video=0))
                assert video.streams.video[0].codec_context.name == "h264"
            assert [frame.pts * frame.time_base * 50 for frame in frames] == list(range(episode["length"]))
            assert frames[0].key_frame


def test_modality_names_the_columns_of_each_stream(both, spec):
    modality = meta(both[1], "modality.json")
    labels = meta(both[1], "info.json")["features"]["observation.state"]["names"]
    for name, span in modality["state"].items():
        assert labels[span["start"] : span["end"]] == [f"{name}.{c}" for c in spec.stream(name).components]
    assert modality["action"] == {"action": {"start": 0, "end": 7}}
    assert modality["video"]["wrist"] == {"original_key": "observation.images.wrist"}
    task = {"human.action.task_description": {}, "human.task_description": {"original_key": "task_index"}}
    assert modality["annotation"] == task


def test_deltas_are_not_absolute_actions_and_a_single_column_is_a_list(bags, tmp_path):
    joint = {"topic": "/panda/joint_states", "type": "sensor_msgs/msg/JointState", "names": ["panda_joint1"]}
    spec = load_spec({"robocache": 1, "streams": {"joint": joint, "action": {**joint, "role": "action"}}})
    result = export(bags[1:], spec, tmp_path / "out", DatasetOptions(formats=("lerobot21",), action="delta"))
    assert np.array(columns(result.out)["observation.state"]).shape == (result.frames, 1)
    deltas = {"delta_action": {"start": 0, "end": 1, "absolute": False}}
    assert meta(result.out, "modality.json")["action"] == deltas


def test_images_are_typed_for_readers_without_info(bags, spec, tmp_path):
    out = export(bags[1:], spec, tmp_path / "out", DatasetOptions(formats=("lerobot21",), media="image")).out
    metadata = parquet.read_schema(next(out.glob("data/*/*.parquet"))).metadata
    typed = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert typed == {f"observation.images.{camera}": {"_type": "Image"} for camera in CAMERAS}
    assert meta(out, "modality.json")["video"] == {}
    assert meta(out, "info.json")["total_videos"] == 0


def test_a_thousand_episodes_fill_a_folder(bags, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(write.schema, "CHUNK_EPISODES", 1)
    result = export(bags, spec, tmp_path / "out", DatasetOptions(formats=("lerobot21",), media="none"))
    chunks = len(list(result.out.glob("data/chunk-*")))
    assert chunks == meta(result.out, "info.json")["total_chunks"] == result.episodes


# Statistics of columns and images, and openpi's file of them.


@pytest.mark.parametrize("width", [1, 5])
def test_columns_agree_with_numpy_however_the_rows_are_split(width):
    values = np.random.default_rng(0).normal(size=(30_001, width)).astype(np.float32)
    exact, stats = values.astype(np.float64), of_columns(values)
    # NumPy may change the order of sums; then a dataset's last digits change with it, and not more.
    assert stats["mean"] == pytest.approx(exact.mean(axis=0).tolist(), rel=1e-9)
    assert stats["std"] == pytest.approx(exact.std(axis=0).tolist(), rel=1e-12)
    for name, share in QUANTILES.items():
        assert stats[name] == pytest.approx(np.quantile(exact, share, axis=0).tolist())
    assert of_columns(values[:1], values[1:7000], values[7000:]) == stats
    shaped = by_column(values.T, (1, width), len(values))
    assert (shaped["q01"], shaped["count"]) == ([stats["q01"]], [30_001])


def test_one_row_is_enough_and_keeps_its_digits():
    stamp = 1_760_003_600_001_119_292
    stats = of_columns(np.array([stamp]))
    assert [stats[name] for name in ("min", "max", "std", "count")] == [[stamp], [stamp], [0.0], [1]]
    assert stats["mean"] == stats["q50"] == [float(stamp)]


def test_image_statistics_agree_with_numpy():
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    one, other = Histogram(), Histogram()
    for number, image in enumerate(images):
        (other if number else one).add(image)
    stats = (one + other).stats()
    for name in ("mean", "std", "min", "max"):
        assert np.ravel(stats[name]) == pytest.approx(getattr(images, name)((0, 2, 3)) / 255)
    assert np.ravel(stats["q50"]) == pytest.approx(np.quantile(images, 0.5, (0, 2, 3)) / 255, abs=1.5 / 255)
    assert stats["count"] == [4]


def test_statistics_do_not_depend_on_how_many_columns_are_read_at_once(made, bags, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "STATS_BYTES", 1)
    out = export(bags, spec, tmp_path / "out", NO_MEDIA).out
    assert (out / "meta/stats.json").read_text() == (made("none").out / "meta/stats.json").read_text()


# openpi's norm_stats.json.

HORIZON = 10


@pytest.fixture
def dataset(made, tmp_path) -> Path:
    return Path(shutil.copytree(made("none").out, tmp_path / "set"))


def chunks(dataset: Path, delta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The action chunks as openpi makes them of a dataset: by LeRobot's delta_timestamps, then DeltaActions."""
    rows = columns(dataset)
    made = []
    for row, episode in enumerate(rows["episode_index"]):
        last = max(k for k, other in enumerate(rows["episode_index"]) if other == episode)
        chunk = np.array([rows["action"][min(row + k, last)] for k in range(HORIZON)], np.float32)
        chunk -= np.where(delta, np.array(rows["observation.state"][row], np.float32)[: len(delta)], 0)
        made.append(chunk)
    return np.concatenate(made)


def test_an_export_has_the_statistics_of_its_rows(dataset):
    stats, found = meta(dataset, "stats.json"), meta(dataset, "openpi/norm_stats.json")["norm_stats"]
    for key, feature in (("state", "observation.state"), ("actions", "action")):
        assert found[key] == {name: stats[feature][name] for name in ("mean", "std", "q01", "q99")}


@pytest.mark.parametrize("mask", [[], [True] * 6 + [False]])
def test_action_chunks_are_counted_as_openpi_counts_them(dataset, mask):
    before = meta(dataset, "openpi/norm_stats.json")["norm_stats"]
    wanted = chunks(dataset, np.array(mask or [False] * 7)).astype(np.float64)
    write_chunk_norm_stats(dataset, HORIZON, mask)
    found = meta(dataset, "openpi/norm_stats.json")["norm_stats"]
    assert found["state"] == before["state"]
    assert found["actions"]["mean"] == pytest.approx(wanted.mean(axis=0).tolist())
    assert found["actions"]["std"] == pytest.approx(wanted.std(axis=0).tolist())
    assert [str(finding) for finding in validate(dataset)[0].found] == []
    assert found["actions"]["q01"] == pytest.approx(np.quantile(wanted, 0.01, axis=0).tolist())


@pytest.mark.parametrize(("horizon", "mask"), [(0, []), (5, [True] * 30)])
def test_chunks_that_do_not_fit_the_dataset_are_refused(dataset, tmp_path, horizon, mask):
    with pytest.raises(RoboCacheError, match="do not fit 23 states and 7 actions"):
        write_chunk_norm_stats(dataset, horizon, mask)
    with pytest.raises(RoboCacheError, match="give the folder of a LeRobot dataset"):
        write_chunk_norm_stats(tmp_path, 5)


# Tasks, rewards and success that a recording states, in LeRobot and other datasets.

OUTCOMES = {
    "reward": {"topic": "/reward", "type": "std_msgs/msg/Float32", "role": "reward", "max_age_ms": 19},
    "done": {"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"},
}
EVENTS = {
    ("/episode", "std_msgs/msg/Empty"): [(5, 0)],
    ("/task", "std_msgs/msg/String"): [(0, "lift"), (5, "place")],
    ("/reward", "std_msgs/msg/Float32"): [(1, 0.5), (6, 2.0)],
    ("/done", "std_msgs/msg/Bool"): [(4, True), (9, False)],
}
FORMATS = ("lerobot", "lerobot21", "rlds", "webdataset", "diffusion_policy")
IN_FORMATS = DatasetOptions(
    formats=FORMATS, media="none", episode_topic="/episode", task_topic="/task", action="delta", robot_type="arm"
)
LEROBOT = DatasetOptions(formats=("lerobot", "lerobot21"), media="none", task="lift")
COLUMNS = ("next.reward", "next.done", "next.success")


def test_formats_have_the_task_the_rewards_and_the_success_of_each_episode(record, tmp_path):
    export([record(EVENTS)], spec_of(**OUTCOMES), tmp_path / "out", IN_FORMATS)
    for name in FORMATS:
        episodes = [open_dataset(name, tmp_path / "out" / name)[k] for k in range(2)]
        assert [(each["language"], int(each["success"])) for each in episodes] == [("lift", 1), ("place", 0)], name
        for each, second, reward in zip(episodes, (1, 6), (0.5, 2.0), strict=True):
            rows = np.flatnonzero(each["rewards"])
            assert each["tick_ns"][rows].tolist() == [START_NS + second * 10**9], name
            assert each["rewards"][rows].tolist() == [reward]
    rlds = TfdsDataset(tmp_path / "out" / "rlds" / "robocache" / "1.0.0").episodes("train")
    for episode, success in zip(rlds, (True, False), strict=True):  # a terminal step follows from success only
        terminal = episode["steps/is_terminal"]
        assert terminal.tolist() == [False] * (len(terminal) - 1) + [success]


@pytest.fixture(scope="module")
def sensors(tmp_path_factory) -> list[Path]:
    """Two recordings: the success stream is 0 in the first and 1 in the second."""
    folder = tmp_path_factory.mktemp("outcomes")
    return [sensor_recording(folder / f"seed_{seed}", seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def out(sensors, tmp_path_factory) -> Path:
    spec = sensor_spec(outcomes=True).without_cameras()
    return export(sensors, spec, tmp_path_factory.mktemp("out") / "set", LEROBOT, report=False).out


def by_episode(rows: Any, name: str) -> list[list[Any]]:
    episodes, values = np.array(rows["episode_index"]), np.array(rows[name].to_pylist())
    return [values[episodes == index].tolist() for index in np.unique(episodes)]


@pytest.mark.parametrize("name", LEROBOT.formats)
def test_rewards_and_success_of_streams_are_columns_with_statistics(out, name):
    rows = lerobot_rows(out / name)
    features = meta(out / name, "info.json")["features"]
    for column, dtype in zip(COLUMNS, ("float32", "bool", "bool"), strict=True):
        assert features[column] == {"dtype": dtype, "shape": [1], "names": None}
    rewards = by_episode(rows, "next.reward")
    assert [len(set(values)) for values in rewards] == [25, 25]  # the reward is held between two messages
    assert by_episode(rows, "next.done") == [[False] * (len(values) - 1) + [True] for values in rewards]
    assert by_episode(rows, "next.success") == [[False] * len(rewards[0]), [True] * len(rewards[1])]
    assert [str(finding) for finding in validate(out / name)[0].found] == []
    assert meta(out / name, "stats.json")["next.reward"]["max"] == [max(map(max, rewards))]


def exported(bags: Sequence[Path], out: Path, outcome: bool | None) -> Any:
    """The rows of a dataset without streams of outcomes, given the outcome of the first recording."""
    plan = [PlannedRecording(bags[0], success=outcome), *map(PlannedRecording, bags[1:])]
    options = replace(LEROBOT, formats=("lerobot",))
    return lerobot_rows(export(plan, sensor_spec().without_cameras(), out, options, report=False).out)


def test_a_success_next_to_the_recording_is_at_the_last_row_and_without_one_there_are_no_columns(sensors, tmp_path):
    rows = exported(sensors, tmp_path / "set", outcome=True)
    done = by_episode(rows, "next.done")
    assert by_episode(rows, "next.success") == [done[0], [False] * len(done[1])]  # the other outcome is not known
    assert by_episode(rows, "next.reward") == [np.array(done[0], float).tolist(), [0.0] * len(done[1])]
    assert not set(COLUMNS) & set(exported(sensors, tmp_path / "without", outcome=None).column_names)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in LEROBOT.formats])
def test_lerobot_reads_rewards_and_success(out, tmp_path, name):
    rows = columns(out / name)
    reported = probe(name, tmp_path, out / name, 0, 49, 99, **ffmpeg(name, tmp_path))
    for place, item in reported["items"].items():
        for column in COLUMNS:
            value = item[column]["value"]
            assert (value[0] if isinstance(value, list) else value) == rows[column][int(place)]
        assert item["next.done"]["dtype"] == "torch.bool"
    assert reported["stats"]["next.reward"]["max"] == [max(rows["next.reward"])]
