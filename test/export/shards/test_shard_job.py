"""An export that is divided into shards: the same dataset, written once, whatever happens to its shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import Output, export
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.exporter.target import new_dataset
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import export_shard, named

NO_MEDIA = DatasetOptions(media="none")
Run = Callable[..., ShardResult]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture
def recordings(bags: list[Path], tmp_path: Path) -> list[Path]:
    """Three recordings."""
    copy = Path(shutil.copytree(bags[1], tmp_path / "raw" / "third"))
    return [*bags, copy]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A recording that cannot be converted."""
    file = tmp_path / "raw" / "damaged.mcap"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    return file


@pytest.fixture
def run(recordings: list[Path], spec: FusionSpec, tmp_path: Path) -> Run:
    """Runs a shard, by default of three recordings in three shards."""

    def one(index: int, count: int = 3, bags: list[Path] = recordings, **more: Any) -> ShardResult:
        out, pieces = tmp_path / "out" / "set", tmp_path / "pieces"
        outputs = [Output("", spec, NO_MEDIA)]
        return export_shard(bags, outputs, out, f"{index}/{count}", **{"pieces": pieces, **more})

    return one


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "set"


@pytest.fixture
def fresh(recordings: list[Path], spec: FusionSpec, tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """The dataset of an export that is not divided."""

    def make(**more: Any) -> dict[str, bytes]:
        return contents(export(recordings, spec, tmp_path / "fresh" / "set", NO_MEDIA, **more).out)

    return make


def test_the_last_shard_writes_the_dataset_of_an_export_that_is_not_divided(
    run: Run, out: Path, fresh: Callable[..., dict[str, bytes]]
) -> None:
    reported = []
    for index in (2, 0, 1):
        reported.append(run(index))
        assert out.exists() == (index == 1)
    assert [(r.own, r.converted, r.total, r.written) for r in reported] == [
        (1, 1, 3, "waiting"),
        (1, 2, 3, "waiting"),
        (1, 3, 3, "here"),
    ]
    assert contents(out) == fresh()


def test_a_shard_without_recordings_converts_nothing(run: Run) -> None:
    seen: list[str] = []
    reported = run(4, 5, progress=named(seen))
    assert (reported.own, reported.converted, reported.written, seen) == (0, 0, "waiting", [])


def test_a_shard_that_runs_again_converts_nothing_and_leaves_the_dataset(run: Run, out: Path) -> None:
    for index in range(3):
        run(index)
    before = (out / "meta" / "info.json").stat().st_mtime_ns
    seen: list[str] = []
    for overwrite in (False, True):
        assert run(0, overwrite=overwrite, progress=named(seen)).written == "before"
    assert (seen, (out / "meta" / "info.json").stat().st_mtime_ns) == ([], before)


def test_a_dataset_of_other_recordings_in_the_target_stops_a_shard_before_it_converts(
    run: Run, recordings: list[Path], spec: FusionSpec, out: Path
) -> None:
    export(recordings[:1], spec, out, NO_MEDIA)
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="exists; choose another folder"):
        run(0, progress=named(seen))
    assert seen == []


def test_shards_replace_a_dataset_when_all_recordings_are_converted(
    run: Run, recordings: list[Path], spec: FusionSpec, out: Path, fresh: Callable[..., dict[str, bytes]]
) -> None:
    before = contents(export(recordings[:1], spec, out, NO_MEDIA).out)
    for index in range(3):
        assert contents(out) == before
        run(index, overwrite=True)
    assert contents(out) == fresh()


def test_an_export_that_is_not_divided_writes_the_dataset_from_the_pieces(
    run: Run, recordings: list[Path], spec: FusionSpec, out: Path, tmp_path: Path
) -> None:
    run(0), run(1)
    seen: list[str] = []
    done = export(recordings, spec, out, NO_MEDIA, pieces=tmp_path / "pieces", progress=named(seen))
    assert done.notes[0] == "2 of 3 recordings were converted by an earlier export and reused"
    assert len(set(seen)) == 1


def test_a_shard_whose_dataset_another_export_writes_leaves_it_to_that_one(run: Run, out: Path) -> None:
    run(0), run(1)
    with new_dataset(out) as new:
        assert run(2).written == "elsewhere"
        (new.folder / "meta").mkdir()
    assert [entry.name for entry in out.iterdir()] == ["meta"]


def test_a_recording_that_fails_keeps_the_dataset_from_being_written(run: Run, bags: list[Path], damaged: Path) -> None:
    recordings = [bags[0], damaged, bags[1]]
    with pytest.raises(RoboCacheError, match=r"no dataset, because 1 of 1 recording of shard 2/3 failed"):
        run(2, bags=recordings)
    run(0, bags=recordings)
    reported = run(1, bags=recordings)
    assert (reported.converted, reported.failed, reported.total, reported.written) == (2, 1, 3, "blocked")


def test_a_recording_that_fails_is_left_out_with_on_error_skip(
    run: Run, bags: list[Path], damaged: Path, spec: FusionSpec, out: Path, tmp_path: Path
) -> None:
    recordings = [bags[0], damaged, bags[1]]
    reported = [run(index, bags=recordings, on_error="skip") for index in (2, 0, 1)]
    assert [len(result.losses) for result in reported] == [1, 0, 0]
    assert reported[-1].written == "here"
    fresh = export(recordings, spec, tmp_path / "fresh" / "set", NO_MEDIA, on_error="skip").out
    assert contents(out) == contents(fresh)


def test_a_recording_that_failed_is_converted_when_it_is_repaired(
    run: Run, bags: list[Path], damaged: Path, out: Path
) -> None:
    recordings = [bags[0], damaged]
    run(1, 2, bags=recordings, on_error="skip")
    damaged.write_bytes(next(bags[1].glob("*.mcap")).read_bytes())
    assert run(1, 2, bags=recordings).written == "waiting"
    assert run(0, 2, bags=recordings).written == "here"


def test_several_formats_and_datasets_are_written_together(
    recordings: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    outputs = [
        Output("fast", spec, DatasetOptions(media="none", formats=("lerobot", "robomimic"))),
        Output("slow", spec, DatasetOptions(media="none", rate_hz=10)),
    ]
    for again in (False, True):
        reported = [
            export_shard(recordings, outputs, tmp_path / "sets", f"{index}/2", pieces=tmp_path / "pieces")
            for index in range(2)
        ]
        assert [result.written for result in reported] == (["before"] * 2 if again else ["waiting", "here"])
    assert (tmp_path / "sets" / "fast" / "robomimic" / "SHA256SUMS").exists()
