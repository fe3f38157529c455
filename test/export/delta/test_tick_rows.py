"""The rows of ticks, compared with those of the LeRobot export."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.bags.describe import describe
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.exporter.job import export
from robocache_ros.formats.lerobot.arrays import read_arrays
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.delta.conftest import Exports
from test.export.delta.delta_rows import lerobot_rows, numbers, stacked, table
from test.export.readers.sensor_recording import sensor_spec

SOURCES = ("lift", "sensors")


def assert_rows_are_those_of_lerobot(out: Path, spec: FusionSpec) -> None:
    """Compare every value of a dataset in both formats."""
    ticks, rows = table(out / "delta", "ticks"), lerobot_rows(out / "lerobot")

    assert len(ticks) == len(rows) > 0
    for name, wanted in (("episode", "episode_index"), ("tick", "frame_index"), ("tick_ns", "robocache.tick_ns")):
        assert ticks[name].to_pylist() == rows[wanted].to_pylist()
    for name in ("valid", "age_ns", "stamp_ns"):
        assert np.array_equal(stacked(ticks[name].combine_chunks()), numbers(rows[f"robocache.{name}"]))
    vectors = {role: [] for role in ("observation", "action")}
    for stream in spec.vectors:
        column = ticks[stream.name].combine_chunks()
        if stream.rows:
            mask = numbers(rows[f"robocache.mask.{stream.name}"]) == 1
            assert [len(samples) for samples in column.to_pylist()] == mask.sum(axis=1).tolist()
            window = numbers(rows[f"observation.window.{stream.name}"]).astype(np.float32)[mask]
            assert stacked(column.flatten()).tobytes() == window.tobytes()
            ages = ticks["sample_age_ms"].combine_chunks().field(stream.name).flatten()
            assert np.array_equal(ages, numbers(rows[f"robocache.sample_age_ms.{stream.name}"])[mask])
        elif stream.role in vectors:
            vectors[stream.role].append(stacked(column))
    for role, name in (("observation", "observation.state"), ("action", "action")):
        if vectors[role]:
            stored = np.concatenate(vectors[role], axis=1)
            assert stored.tobytes() == numbers(rows[name]).astype(np.float32).tobytes()
    for name in ("reward", "success"):
        if f"next.{name}" in rows.column_names:
            assert ticks[f"next_{name}"].to_pylist() == rows[f"next.{name}"].to_pylist()
        else:
            assert ticks[f"next_{name}"].null_count == len(ticks)


@pytest.mark.parametrize("source", SOURCES)
def test_every_value_is_that_of_the_lerobot_export(source: str, exports: Exports, spec: FusionSpec) -> None:
    of_source = spec if source == "lift" else sensor_spec(outcomes=True)

    assert_rows_are_those_of_lerobot(exports(source, "image"), of_source)


@pytest.mark.parametrize("name", ["crazyflie", "husky_ur_sim"])
def test_every_value_of_a_real_recording_is_that_of_the_lerobot_export(name: str, tmp_path: Path) -> None:
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    recording = Path(folder) / name
    path = tmp_path / "spec.yaml"
    path.write_text(suggest_spec(describe(recording)), encoding="utf-8")
    spec = load_spec(path)

    export(
        [recording], spec, tmp_path / "out", DatasetOptions(formats=("delta", "lerobot"), media="none", min_valid=0.0)
    )

    assert_rows_are_those_of_lerobot(tmp_path / "out", spec)


@pytest.mark.parametrize("source", SOURCES)
def test_a_value_is_null_where_a_stream_has_none(source: str, exports: Exports) -> None:
    ticks = table(exports(source, "image") / "delta", "ticks")
    valid = ticks["valid"].combine_chunks()

    for field in valid.type:
        column = ticks[field.name].combine_chunks()
        if field.name not in ("color", "gray", "front", "wrist", "force"):  # images of no value are black
            assert np.array_equal(np.array(column.is_null()), np.array(valid.field(field.name)) == 0)


def test_a_row_names_the_frame_of_a_video_and_the_file_of_lerobot_has_the_same_bytes(exports: Exports) -> None:
    out = exports("lift", "video")
    front = table(out / "delta", "ticks")["front"].to_pylist()
    (path,) = {place["path"] for place in front}

    assert [place["row"] for place in front] == list(range(len(front)))
    assert (out / "delta" / path).read_bytes() == next(out.glob("lerobot/videos/*front/*/*.mp4")).read_bytes()


@pytest.mark.parametrize(("source", "stream"), [("lift", "front"), ("sensors", "color"), ("sensors", "gray")])
def test_a_row_names_an_image_equal_to_that_of_lerobot(source: str, stream: str, exports: Exports) -> None:
    out = exports(source, "image")
    places = table(out / "delta", "ticks")[stream].to_pylist()
    images = {path: parquet.read_table(out / "delta" / path)["data"] for path in {p["path"] for p in places}}

    wanted = lerobot_rows(out / "lerobot")[f"observation.images.{stream}"].to_pylist()

    assert [images[place["path"]][place["row"]].as_py() for place in places] == [image["bytes"] for image in wanted]


@pytest.mark.parametrize(("source", "stream"), [("lift", "voxels"), ("sensors", "depth")])
def test_a_row_names_an_array_equal_to_that_of_lerobot(source: str, stream: str, exports: Exports) -> None:
    out = exports(source, "image")
    ticks = table(out / "delta", "ticks")
    for episode in sorted(set(ticks["episode"].to_pylist())):
        places = [row[stream] for row in ticks.to_pylist() if row["episode"] == episode]
        frames, arrays = read_arrays(out / "lerobot", stream, episode)
        for (start, stop), array in zip(frames, arrays, strict=True):
            (place,) = {tuple(place.values()) for place in places[start:stop]}
            data = parquet.read_table(out / "delta" / place[0])["data"][place[1]].as_py()
            found = np.frombuffer(data, array.dtype) if stream == "depth" else np.frombuffer(data, np.uint8)
            bits = array if stream == "depth" else np.packbits(array, bitorder="little")
            assert found.tobytes() == (bits if array.dtype == np.uint8 else array).tobytes()
        used = np.concatenate([np.arange(*span) for span in frames]) if len(frames) else []
        assert [row for row, place in enumerate(places) if place] == list(used)
