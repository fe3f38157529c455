"""Appends to the tables, also by several processes at the same time."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.delta import log as module
from robocache_ros.formats.delta.log import TransactionLog, append_dataset
from test.export.conftest import dry_run
from test.export.delta.delta_rows import deltalake, table
from test.export.delta.small_datasets import OPTIONS, append_together, assert_complete, small_dataset
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

COUNT = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of one recording each; tests append copies of them."""
    folder = tmp_path_factory.mktemp("made")
    return [small_dataset(folder, seed) for seed in range(COUNT)]


@pytest.fixture
def datasets(made: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(each, tmp_path / each.name)) for each in made]


def without_paths(rows: Any) -> list[dict[str, Any]]:
    """The rows, with the contents of the folders of appends, and without numbers of episodes."""
    return [{name: value for name, value in row.items() if name != "episode"} for row in rows.to_pylist()]


@pytest.mark.slow
def test_eight_processes_that_append_at_once_lose_nothing(datasets: list[Path], tmp_path: Path) -> None:
    firsts = append_together(datasets, str(tmp_path / "out"))

    assert sorted(firsts) == list(range(COUNT))
    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), datasets)
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [
        ".robocache-dataset",
        "appends",
        "episodes",
        "ticks",
    ]


def test_appended_rows_are_those_of_the_export(datasets: list[Path], made: list[Path], tmp_path: Path) -> None:
    for dataset in datasets[:2]:
        append_dataset(dataset, tmp_path / "out")

    ticks = table(tmp_path / "out", "ticks")
    assert without_paths(ticks) == [row for each in made[:2] for row in without_paths(table(each, "ticks"))]
    places = {row["color"]["path"] for row in ticks.to_pylist()}
    for each in made[:2]:
        for file in each.glob("appends/*/*/*/*/*.parquet"):
            name = file.relative_to(each).as_posix()
            places.discard(name)
            assert (tmp_path / "out" / name).read_bytes() == file.read_bytes()
    assert not places


def test_an_append_is_one_commit_of_ticks_and_old_versions_stay_readable(datasets: list[Path], tmp_path: Path) -> None:
    out = datasets[0]
    before = table(out, "ticks")

    append_dataset(datasets[1], out)

    ticks = deltalake.DeltaTable(out / "ticks")
    assert (ticks.version(), deltalake.DeltaTable(out / "episodes").version()) == (1, 2)  # numbers, and then rows
    assert set(ticks.to_pyarrow_table()["episode"].to_pylist()) == {0, 1}
    old = deltalake.DeltaTable(out / "ticks", version=0).to_pyarrow_table()
    assert old.sort_by("tick_ns").to_pylist() == before.to_pylist()


def test_a_recording_is_appended_once(datasets: list[Path], made: list[Path], tmp_path: Path) -> None:
    append_dataset(datasets[0], tmp_path / "out")
    again = Path(shutil.copytree(made[0], tmp_path / "again"))

    done = append_dataset(again, tmp_path / "out")

    assert (done.episodes, done.known) == (0, 1)
    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), datasets[:1])


@pytest.mark.parametrize("commits", range(3))  # numbers, ticks, episodes
def test_an_append_that_is_stopped_is_completed_by_the_same_one(
    commits: int, datasets: list[Path], made: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    append_dataset(datasets[1], out)
    commit, done = TransactionLog._committed, []

    def stopped(*arguments: Any) -> bool:
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(1)
        return commit(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TransactionLog, "_committed", stopped)
        with pytest.raises(KeyboardInterrupt):
            append_dataset(datasets[0], out)
    append_dataset(Path(shutil.copytree(made[0], tmp_path / "again")), out)

    assert_complete(table(out, "ticks"), table(out, "episodes"), datasets[:2])
    assert table(out, "episodes")["episode"].to_pylist() == [0, 1]


def test_two_appends_of_one_dataset_at_once_add_it_once(made: list[Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(made[0], tmp_path / f"{name}_0")) for name in "ab"]

    append_together(copies, str(tmp_path / "out"))

    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), copies[:1])


def test_rows_of_other_columns_are_refused(datasets: list[Path], tmp_path: Path) -> None:
    spec = sensor_spec(outcomes=True)
    other = export([tmp_path.parent / sensor_recording(tmp_path / "other", 1, 0.3)], spec, tmp_path / "with", OPTIONS)
    append_dataset(datasets[0], tmp_path / "out")

    with pytest.raises(RoboCacheError, match=r"its column \w+ in ticks is not that of this export; use the spec"):
        append_dataset(other.out, tmp_path / "out")


def test_rows_at_another_rate_are_refused(datasets: list[Path], tmp_path: Path) -> None:
    recording = sensor_recording(tmp_path / "other", 1, 0.3)
    other = export([recording], replace(sensor_spec(), rate_hz=25), tmp_path / "slow", OPTIONS)

    with pytest.raises(RoboCacheError, match="its column tick_ns in ticks is not that of this export"):
        append_dataset(other.out, datasets[0])


def test_topics_of_another_robot_are_not_other_columns(datasets: list[Path], tmp_path: Path) -> None:
    recording = sensor_recording(tmp_path / "other", 9, 0.3)
    streams = tuple(replace(stream, unit=stream.unit) for stream in sensor_spec().streams)
    other = export([recording], replace(sensor_spec(), streams=streams, delay_ms=80), tmp_path / "made", OPTIONS)

    assert append_dataset(other.out, datasets[0]).episodes == 1


def test_recordings_are_appended_by_an_export(tmp_path: Path) -> None:
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


def test_an_appended_dataset_can_be_replaced(datasets: list[Path], tmp_path: Path) -> None:
    append_dataset(datasets[0], tmp_path / "out")
    recording = sensor_recording(tmp_path / "recording_5", 5, 0.3)

    export([recording], sensor_spec(), tmp_path / "out", OPTIONS, overwrite=True, report=False)

    assert_complete(table(tmp_path / "out", "ticks"), table(tmp_path / "out", "episodes"), [recording])


def test_another_format_is_not_appended_to(tmp_path: Path) -> None:
    recording = sensor_recording(tmp_path / "recording", 1, 0.3)

    with pytest.raises(RoboCacheError, match="append: not for the format lerobot; use --format delta"):
        export([recording], sensor_spec(), tmp_path / "out", replace(OPTIONS, formats=("lerobot",)), append=True)
    (tmp_path / "data").mkdir(parents=True)
    (tmp_path / "data" / "file").touch()
    with pytest.raises(RoboCacheError, match="is not a Delta Lake dataset; choose another folder"):
        export([recording], sensor_spec(), tmp_path / "data", OPTIONS, append=True)


def test_files_are_named_by_their_contents_after_an_append(datasets: list[Path], tmp_path: Path) -> None:
    for dataset in datasets[:2]:
        append_dataset(dataset, tmp_path / "out")

    for file in (tmp_path / "out").glob("*/episode_range=*/*"):
        assert file.name == f"part-{hashlib.sha256(file.read_bytes()).hexdigest()[:32]}.parquet"
    assert module.storage_options(str(tmp_path)) == {}


def test_a_dry_run_refuses_what_an_append_refuses(tmp_path: Path) -> None:
    recording = sensor_recording(tmp_path / "recording", 1, 0.3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()

    with pytest.raises(RoboCacheError, match="append: not for the format lerobot; use --format delta"):
        dry_run([recording], sensor_spec(), tmp_path / "out", replace(OPTIONS, formats=("lerobot",)), append=True)
    with pytest.raises(RoboCacheError, match="is not a Delta Lake dataset; choose another folder"):
        dry_run([recording], sensor_spec(), tmp_path / "data", OPTIONS, append=True)
