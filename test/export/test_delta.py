"""Delta Lake tables: their rows, appends, queries and validation."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.dataset as arrow
import pytest

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.delta import log
from robocache_ros.formats.delta.log import TransactionLog, append_dataset
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROOT, contents, dry_run, found, lerobot_rows, without_checksums, written
from test.export.delta_tables import (
    OPTIONS,
    append_together,
    assert_complete,
    deltalake,
    numbers,
    small_dataset,
    stacked,
    table,
)
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

# Exports as Delta Lake tables, beside the same recordings as LeRobot.

Exports = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def sensors(tmp_path_factory) -> list[Path]:
    """Recordings with windows, depth and outcomes, in which some streams are silent for a while."""
    folder = tmp_path_factory.mktemp("sensors")
    return [sensor_recording(folder / f"recording_{seed}", seed) for seed in range(2)]


@pytest.fixture(scope="session")
def exports(bags, spec, sensors, tmp_path_factory) -> Exports:
    """The folder with the formats delta and lerobot, by the recordings and how images are stored."""
    folder = tmp_path_factory.mktemp("exports")
    sources = {"lift": (bags, spec), "sensors": (sensors, sensor_spec(outcomes=True))}

    def made(source: str, media: str) -> Path:
        out = folder / f"{source}-{media}"
        if not out.exists():
            given = {"task": "lift the cube", "robot_type": "panda", "media": media}
            export(*sources[source], out, DatasetOptions(formats=("delta", "lerobot"), **given))
        return out

    return made


# The rows of ticks, compared with those of the LeRobot export.


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
            assert np.concatenate(vectors[role], axis=1).tobytes() == numbers(rows[name]).astype(np.float32).tobytes()
    for name in ("reward", "success"):
        if f"next.{name}" in rows.column_names:
            assert ticks[f"next_{name}"].to_pylist() == rows[f"next.{name}"].to_pylist()
        else:
            assert ticks[f"next_{name}"].null_count == len(ticks)


@pytest.mark.parametrize("source", ["lift", "sensors"])
def test_every_value_is_that_of_the_lerobot_export(source, exports, spec):
    assert_rows_are_those_of_lerobot(exports(source, "image"), spec if source == "lift" else sensor_spec(outcomes=True))


@pytest.mark.parametrize("name", ["crazyflie", "husky_ur_sim"])
def test_every_value_of_a_real_recording_is_that_of_the_lerobot_export(real, name, tmp_path):
    (tmp_path / "spec.yaml").write_text(first_spec(describe(real / name)).text, encoding="utf-8")
    spec = load_spec(tmp_path / "spec.yaml")
    options = DatasetOptions(formats=("delta", "lerobot"), media="none", min_valid=0.0)
    export([real / name], spec, tmp_path / "out", options)
    assert_rows_are_those_of_lerobot(tmp_path / "out", spec)


def test_a_row_names_the_frame_of_a_video_and_the_file_of_lerobot_has_the_same_bytes(exports):
    out = exports("lift", "video")
    front = table(out / "delta", "ticks")["front"].to_pylist()
    (path,) = {place["path"] for place in front}
    assert [place["row"] for place in front] == list(range(len(front)))
    assert (out / "delta" / path).read_bytes() == next(out.glob("lerobot/videos/*front/*/*.mp4")).read_bytes()


# The rows of episodes, and the files of the tables.


@pytest.fixture(scope="module")
def lift(exports) -> Path:
    return exports("lift", "none") / "delta"


def test_an_episode_states_its_recording_task_robot_and_times(lift, bags):
    episodes, ticks = table(lift, "episodes").to_pylist(), table(lift, "ticks")
    for number, row in enumerate(episodes):
        of = np.array(ticks["tick_ns"])[np.array(ticks["episode"]) == number]
        stated = {
            "episode": number, "recording": str(bags[number // 2]), "recording_episode": number % 2,
            "task": "lift the cube", "robot": "panda", "success": None, "rate_hz": 50,
            "start_ns": of[0], "stop_ns": of[-1], "length": len(of),
        }  # fmt: skip
        assert {name: row[name] for name in stated} == stated
        assert row["start"].timestamp() == pytest.approx(of[0] / 1e9, abs=1e-5)


def test_quality_is_counted_from_the_ticks(exports):
    dataset = exports("sensors", "image") / "delta"
    ticks = table(dataset, "ticks")
    valid = ticks["valid"].combine_chunks()
    names, inputs = [field.name for field in valid.type], slice(0, 6)  # without reward and success
    for row in table(dataset, "episodes").to_pylist():
        of = stacked(valid)[np.array(ticks["episode"]) == row["episode"]]
        assert row["invalid"] == dict(zip(names, (of == 0).mean(axis=0), strict=True))
        assert row["aligned"] == dict(zip(names, (of == 1).mean(axis=0), strict=True))
        assert row["quality"]["complete"] == (of[:, inputs] > 0).all(axis=1).mean() < 1
        assert row["quality"]["held"] == (of[:, inputs] == 2).mean(axis=0).mean()


def test_delays_and_counters_are_those_of_the_recording(lift, bags):
    row = table(lift, "episodes").to_pylist()[0]
    provenance = json.loads(next(lift.glob("appends/*/robocache.json")).read_text())
    with Bag(bags[0]) as bag:
        times = [(log_ns, data) for _, log_ns, data in bag.messages(["/panda/command"], None, None)]
    assert row["delay_ms"]["action"] is None  # a Float64MultiArray has no stamp
    assert 0 < row["delay_ms"]["joint_position"]["median"] <= row["delay_ms"]["joint_position"]["max"] < 100
    counted = {(c["stream"], c["counter"]): c["count"] for c in row["counters"]}
    assert counted["action", "received"] == len(times)
    reported = provenance["recordings"][0]["counters"]
    assert counted == {(stream, name): count for stream, of in reported.items() for name, count in of.items()}


def test_equal_exports_have_equal_bytes_also_of_the_logs(bags, spec, tmp_path, lift):
    options = DatasetOptions(formats=("delta",), task="lift the cube", robot_type="panda", media="none")
    out = export(bags, spec, tmp_path / "out", options, report=False).out
    other = {"SHA256SUMS", ".robocache-dataset"}  # of the whole export
    found, wanted = ({n: data for n, data in contents(folder).items() if n not in other} for folder in (out, lift))
    provenance = [name for name in found if name.endswith("robocache.json")]  # states the formats of the export
    assert [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)] == provenance


def test_a_range_of_episodes_is_a_partition(bags, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(log, "RANGE_EPISODES", 3)
    monkeypatch.setattr(log, "FILE_MB", 0)  # a file for each episode
    export(bags, spec, tmp_path / "out", DatasetOptions(formats=("delta",), media="none"), report=False)
    found = deltalake.DeltaTable(tmp_path / "out" / "ticks")
    assert sorted(partition["episode_range"] for partition in found.partitions()) == ["0", "3"]
    files = found.to_pyarrow_table(filters=[("episode_range", "=", 3)])
    assert set(files["episode"].to_pylist()) == {3}
    assert len(found.file_uris()) == 4


def test_names_of_values_become_names_without_quotes(bags, tmp_path):
    pose = {"topic": "/panda/ee_pose", "type": "geometry_msgs/msg/PoseStamped", "on_invalid": "mask"}
    streams = {"pose": {**pose, "field": ["pose.position.x", "pose.orientation.x"]}}
    spec = load_spec({"robocache": 1, "actions": "none", "streams": streams})
    export(bags, spec, tmp_path / "out", DatasetOptions(formats=("delta",)))
    ticks = table(tmp_path / "out", "ticks")
    assert [field.name for field in ticks.schema.field("pose").type] == ["pose_position_x", "pose_orientation_x"]


# Appends to the tables, also by several processes at the same time.


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[Path]:
    """Datasets of one recording each; tests append copies of them."""
    folder = tmp_path_factory.mktemp("made")
    return [small_dataset(folder, seed) for seed in range(2)]


@pytest.fixture
def copies(small, tmp_path) -> list[Path]:
    """Without checksums, which appends would make wrong."""
    return [without_checksums(each, tmp_path / each.name) for each in small]


@pytest.mark.slow
def test_eight_processes_that_append_at_once_lose_nothing(tmp_path):
    copies = [small_dataset(tmp_path / "made", seed) for seed in range(8)]
    out = tmp_path / "out"
    assert sorted(append_together(copies, str(out))) == list(range(8))
    assert_complete(table(out, "ticks"), table(out, "episodes"), copies)
    assert {entry.name for entry in out.iterdir()} == {".robocache-dataset", "appends", "episodes", "ticks"}


def test_an_append_is_one_commit_of_the_rows_and_files_of_an_export_and_keeps_old_versions(copies, small, tmp_path):
    out = copies[0]
    append_dataset(copies[1], out)
    ticks = deltalake.DeltaTable(out / "ticks")
    assert (ticks.version(), deltalake.DeltaTable(out / "episodes").version()) == (1, 2)  # numbers, and then rows
    old = deltalake.DeltaTable(out / "ticks", version=0).to_pyarrow_table()
    assert old.sort_by("tick_ns").to_pylist() == table(small[0], "ticks").to_pylist()
    rows = table(out, "ticks").to_pylist()
    exported = [row for each in small for row in table(each, "ticks").to_pylist()]
    assert [row | {"episode": 0} for row in rows] == [row | {"episode": 0} for row in exported]
    for path in {row["color"]["path"] for row in rows}:
        assert (out / path).read_bytes() in [(each / path).read_bytes() for each in small if (each / path).exists()]
    assert found(out) == []
    ticks.optimize.compact()
    assert found(out) == []


@pytest.mark.parametrize("commits", range(3))  # numbers, ticks, episodes
def test_a_stopped_append_is_found_and_completed_by_the_same_one(commits, copies, small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    append_dataset(copies[1], out)
    commit, done = TransactionLog._committed, []

    def stopped(*arguments: Any) -> bool:
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(1)
        return commit(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TransactionLog, "_committed", stopped)
        with pytest.raises(KeyboardInterrupt):
            append_dataset(copies[0], out)
    text = "episodes: 1 episodes of ticks are not in it: an append runs, or was stopped; run it again"
    assert found(out) == ([text] if commits == 2 else [])
    append_dataset(Path(shutil.copytree(small[0], tmp_path / "again")), out)
    assert_complete(table(out, "ticks"), table(out, "episodes"), copies[:2])
    assert table(out, "episodes")["episode"].to_pylist() == [0, 1]


def test_two_appends_of_one_dataset_at_once_add_it_once(small, tmp_path):
    copies = [Path(shutil.copytree(small[0], tmp_path / f"{name}_0")) for name in "ab"]
    append_together(copies, str(tmp_path / "out"))
    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), copies[:1])


@pytest.mark.parametrize(
    ("spec", "column"),
    [(sensor_spec(outcomes=True), r"\w+"), (replace(sensor_spec(), rate_hz=25), "tick_ns")],
    ids=["columns", "rate"],
)
def test_rows_of_other_columns_or_rates_are_refused(spec, column, copies, tmp_path):
    other = export([sensor_recording(tmp_path / "other", 1, 0.3)], spec, tmp_path / "with", OPTIONS).out
    with pytest.raises(RoboCacheError, match=rf"its column {column} in ticks is not that of this export; use the spec"):
        append_dataset(other, copies[0])


@pytest.mark.parametrize("run", [export, dry_run])
def test_what_is_not_delta_is_not_appended_to(run, tmp_path):
    recording = sensor_recording(tmp_path / "recording", 1, 0.3)
    with pytest.raises(RoboCacheError, match="append: not for the format lerobot; use --format delta"):
        run([recording], sensor_spec(), tmp_path / "out", replace(OPTIONS, formats=("lerobot",)), append=True)
    written(tmp_path, "", "data/file")
    with pytest.raises(RoboCacheError, match="is not a Delta Lake dataset; choose another folder"):
        run([recording], sensor_spec(), tmp_path / "data", OPTIONS, append=True)


def test_another_delay_is_not_another_column(copies, tmp_path):
    spec = replace(sensor_spec(), delay_ms=80)
    other = export([sensor_recording(tmp_path / "other", 9, 0.3)], spec, tmp_path / "made", OPTIONS).out
    assert append_dataset(other, copies[0]).episodes == 1


def test_recordings_are_appended_by_an_export(tmp_path):
    recordings = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.3) for seed in range(2)]
    out = tmp_path / "out"
    results = [export([each], sensor_spec(), out, OPTIONS, append=True) for each in (*recordings, recordings[0])]
    assert [result.notes[-1].partition(";")[0] for result in results] == [
        "episodes 0 to 0 were appended",
        "episodes 1 to 1 were appended",
        "recordings that are in the dataset, and were not appended: 1",
    ]
    assert_complete(table(out, "ticks"), table(out, "episodes"), recordings)
    assert len(list(out.glob("appends/*/report.html"))) == 2
    assert not list(out.glob(".robocache-[al]*"))  # of appends, and the lock


def test_an_appended_dataset_can_be_replaced(copies, tmp_path):
    append_dataset(copies[0], tmp_path / "out")
    recording = sensor_recording(tmp_path / "recording_5", 5, 0.3)
    export([recording], sensor_spec(), tmp_path / "out", OPTIONS, overwrite=True, report=False)
    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), [recording])


# The tables in deltalake, DuckDB and Polars: their filters find what is in the rows.

duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
TABLES = ("ticks", "episodes")


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Iterator[Path]:
    """Tables with a file for each of some episodes, of which some succeed and others have no depth.

    At 30 Hz, ticks are between two milliseconds, to which the log rounds times.
    """
    folder = tmp_path_factory.mktemp("several")
    recordings = [sensor_recording(folder / f"recording_{seed}", seed, 0.2 + 0.3 * seed) for seed in range(3)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "FILE_MB", 0)
        yield export(recordings, replace(sensor_spec(outcomes=True), rate_hz=30), folder / "out", OPTIONS).out


def values(rows: Any) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The path and the values of every column and every field of a struct."""
    waiting = [((field.name,), rows[field.name].combine_chunks()) for field in rows.schema]
    while waiting:
        path, column = waiting.pop()
        if pyarrow.types.is_struct(column.type):
            waiting += [((*path, each.name), part) for each, part in zip(column.type, column.flatten(), strict=True)]
        elif not pyarrow.types.is_list(column.type):
            yield path, column.to_pylist()


@pytest.mark.parametrize("name", TABLES)
def test_every_filter_finds_the_rows_with_the_value(name, several):
    files = deltalake.DeltaTable(several / name).to_pyarrow_dataset()
    lazy = polars.scan_delta(str(several / name))
    counted, counts, wanted = [], [], []
    for path, stored in values(table(several, name)):
        of_polars = polars.col(path[0])
        for part in path[1:]:
            of_polars = of_polars.struct.field(part)
        distinct = sorted({value for value in stored if value is not None})
        for value in (*distinct[:: max(1, len(distinct) // 3)], None):
            field = arrow.field(*path)
            counted.append(files.count_rows(filter=field.is_null() if value is None else field == value))
            counts.append(lazy.filter(of_polars.eq_missing(value)).select(polars.len()))
            wanted.append(sum(other == value for other in stored))
    assert counted == wanted
    assert [frame.item() for frame in polars.collect_all(counts)] == wanted


@pytest.mark.parametrize("name", TABLES)
def test_duckdb_and_polars_read_the_rows_of_deltalake(name, several):
    rows = table(several, name)
    files = deltalake.DeltaTable(several / name).to_pyarrow_dataset()
    order = "episode, tick" if name == "ticks" else "episode"
    of_duckdb = duckdb.from_arrow(files).order(order).to_arrow_table()
    of_polars = polars.scan_delta(str(several / name)).sort(order.split(", ")).collect()
    for column in rows.column_names:
        assert of_duckdb[column].to_pylist() == rows[column].to_pylist()
        assert of_polars[column].to_list() == rows[column].to_pylist()


def test_a_query_of_one_episode_opens_its_file_only(several):
    files = deltalake.DeltaTable(several / "ticks").to_pyarrow_dataset()
    assert len(list(files.get_fragments())) == 3
    assert len(list(files.get_fragments(filter=arrow.field("episode") == 1))) == 1


# The code blocks of the how-to on SQL run as they are there.

PAGE = (ROOT / "docs" / "how-to" / "query_datasets_with_sql.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"```(python|sql)\n(.*?)```", re.DOTALL)


def test_the_page_shows_the_queries_that_run(exports, tmp_path, monkeypatch):
    (tmp_path / "lift").symlink_to(exports("lift", "video") / "delta")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    results = []
    for kind, block in BLOCKS.findall(PAGE):
        if kind == "python":
            exec(compile(block, "page", "exec"), names)
        else:
            episodes, ticks = names["episodes"], names["ticks"]  # as DuckDB finds them
            results.append(duckdb.sql(block).to_arrow_table().to_pylist())
            assert episodes is not ticks
    assert len(names["samples"]) == 4
    assert (tmp_path / "strongest_command.png").stat().st_size
    rows = table(tmp_path / "lift", "episodes").to_pylist()
    by_quality, to_train, delays, losses, joined, held = results
    assert [row["aligned"] for row in by_quality] == sorted(row["quality"]["aligned"] for row in rows)
    good = [r["length"] for r in rows if r["quality"]["complete"] == 1 and r["quality"]["aligned"] > 0.95]
    assert to_train == [{"episodes": len(good), "share": sum(good) / sum(r["length"] for r in rows)}]
    (delay,) = delays
    assert (delay["robot"], str(delay["week"].date()), delay["recordings"]) == ("panda", "2025-10-06", 2)
    medians = sorted(row["delay_ms"]["front"]["median"] for row in rows if row["recording_episode"] == 0)
    assert delay["median_ms"] == sum(medians) / 2
    assert {row["counter"] for row in losses} >= {"duplicate"}
    assert [row["episode"] for row in joined] == [0, 1, 2, 3]
    assert held
    assert all(0 <= row["seconds"] < 2 for row in held)
