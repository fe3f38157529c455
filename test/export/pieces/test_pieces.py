"""Pieces: what decides their names, and what does not decide the bytes of a dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors as local
from robocache_ros.exporter.job import export
from robocache_ros.exporter.piece_store import LocalObjects, PieceFailure, PieceStore
from robocache_ros.exporter.pieces import Checksums, Plan, make_pieces_of
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.formats import recording as recording_file
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import named
from test.export.pieces.conftest import Contents, contents

NO_MEDIA = DatasetOptions(media="none")


def key(plan: Plan, recording: Path) -> str:
    with Checksums(recording) as checksums:
        return plan.key(PlannedRecording(recording), checksums.result())


@pytest.mark.parametrize("media", ["none", pytest.param("video", marks=pytest.mark.slow)])
def test_two_processes_make_the_bytes_of_one_and_one_of_them_is_started(
    recordings: list[Path],
    spec: FusionSpec,
    undisturbed: Callable[[str], Contents],
    tmp_path: Path,
    media: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    start = local._started
    monkeypatch.setattr(local, "_started", lambda threads: started.append(threads) or start(threads))
    out = export(recordings, spec, tmp_path / "set", DatasetOptions(media=media), jobs=2).out
    assert contents(out) == undisturbed(media)
    assert len(started) == 1


def test_the_order_in_which_pieces_are_made_changes_no_byte(
    recordings: list[Path],
    spec: FusionSpec,
    undisturbed: Callable[[str], Contents],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backwards(plans: dict[str, Plan], store: PieceStore, executor: object, progress: object) -> dict[str, Any]:
        made = [make_pieces_of(task, [plans[""]], store)[0] for task in reversed(plans[""].distinct)]
        return {"": {outcome.recording: outcome for outcome in made}}

    monkeypatch.setattr("robocache_ros.exporter.datasets.make_pieces", backwards)
    assert contents(export(recordings, spec, tmp_path / "set", NO_MEDIA).out) == undisturbed("none")


def test_a_recording_given_twice_is_converted_once_and_is_twice_in_the_dataset(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    seen: list[str] = []
    twice = export([bags[0]] * 2, spec, tmp_path / "twice", NO_MEDIA, progress=named(seen))
    once = export([bags[0]], spec, tmp_path / "once", NO_MEDIA, progress=named(seen))
    assert twice.frames == 2 * once.frames
    assert len(seen) % 2 == 0
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_key_covers_all_that_decides_a_piece_and_no_more(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    plan = Plan((PlannedRecording(bags[0]),), spec, NO_MEDIA, {})
    same = [
        plan,
        replace(plan, recordings=planned([bags[1], bags[0]])),
        replace(plan, options=replace(NO_MEDIA, task="another", robot_type="another")),
    ]
    assert {key(each, bags[0]) for each in same} == {key(plan, bags[0])}
    copy = shutil.copytree(bags[0], tmp_path / bags[0].name)
    assert key(plan, copy) == key(plan, bags[0])

    others = [replace(plan, spec=replace(spec, rate_hz=25)), replace(plan, options=replace(NO_MEDIA, min_frames=3))]
    assert key(plan, bags[0]) not in {key(each, bags[0]) for each in others}
    file = next(copy.glob("*.mcap"))
    file.write_bytes(file.read_bytes() + b"\0")
    assert key(plan, copy) != key(plan, bags[0])


def test_a_piece_that_lacks_a_byte_is_made_again(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    plan, store = Plan((PlannedRecording(bags[0]),), spec.without_cameras(), NO_MEDIA, {}), PieceStore(tmp_path)
    (first,) = make_pieces_of(PlannedRecording(bags[0]), [plan], store)
    assert first.piece
    whole = contents(first.piece)
    data = first.piece / "columns" / "fused"
    data.write_bytes(data.read_bytes()[:-1])

    assert store.find(first.piece.parent.name) is None
    (again,) = make_pieces_of(PlannedRecording(bags[0]), [plan], store, resumed=True)

    assert (again.reused, again.replaced) == (False, True)
    assert again.piece
    assert contents(again.piece) == whole
    assert not first.piece.exists()


def test_nothing_that_a_report_shows_is_lost_in_a_piece(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    plan = Plan((PlannedRecording(bags[0]),), spec, DatasetOptions(media="image"), {"front": ("png",)})
    made: list[Any] = []
    save = recording_file.save_recording
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_file, "save_recording", lambda *reported: (made.append(reported[1]), save(*reported)))
        piece = make_pieces_of(PlannedRecording(bags[0]), [plan], PieceStore(tmp_path))[0].piece
    assert piece
    loaded, files = recording_file.load_recording(piece, bags[0], spec, "ideal")
    (original,) = made
    assert [file["name"] for file in files] == [file.name for file in bags[0].glob("*.mcap")]
    for name, value in vars(original).items():
        found = getattr(loaded, name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(found, value)
            assert found.dtype == value.dtype
        elif name == "topics":
            assert repr(found) == repr(value)
            assert list(found) == list(value)
            for topic, stats in value.items():
                assert np.array_equal(found[topic].intervals_ms, stats.intervals_ms)
                assert np.array_equal(found[topic].delays_ms, stats.delays_ms)
        elif name == "thumbnails":
            assert found.images == value.images
        else:
            assert found == value, name


def test_recordings_with_images_of_two_sizes_are_not_one_dataset(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([(224, 224), (112, 112)])

    def resized(plans: dict[str, Plan], store: PieceStore, executor: object, progress: object) -> dict[str, Any]:
        outcomes, plan = {}, plans[""]
        for task in plan.distinct:
            front = plan.spec.stream("front")
            assert front.image
            other = replace(front, image=replace(front.image, size=next(sizes)))
            streams = tuple(other if stream.name == "front" else stream for stream in plan.spec.streams)
            each = replace(plan, spec=replace(plan.spec, streams=streams))
            (outcomes[task],) = make_pieces_of(task, [each], store)
        return {"": outcomes}

    monkeypatch.setattr("robocache_ros.exporter.datasets.make_pieces", resized)
    with pytest.raises(RoboCacheError, match=r"streams\.front: 224x224 .* in .*lift, 112x112 .* in .*again; give it"):
        export(bags, spec, tmp_path / "set")


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_process_is_an_error(bags: list[Path], spec: FusionSpec, tmp_path: Path, jobs: int) -> None:
    with pytest.raises(RoboCacheError, match=f"jobs: {jobs} is not an integer from 1 to"):
        export(bags, spec, tmp_path / "set", jobs=jobs)


def test_more_processes_than_recordings_are_not_started(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_started", lambda *_: pytest.fail("a process was started"))
    export(bags[:1], spec, tmp_path / "set", NO_MEDIA, jobs=8)


def test_pieces_in_a_folder_are_counted_without_a_look_at_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (made, failed, neither) = PieceStore(tmp_path), (digit * 64 for digit in "abc")
    with store.draft() as draft:
        (draft / "file").write_bytes(b"x")
        store.commit(draft, made)
    store.fail(failed, PieceFailure("recording", "error"))
    monkeypatch.delattr(LocalObjects, "listed")

    assert store.count() == 1
    ended = store.ended([made, failed, neither])
    assert [(ended[key].done, ended[key].failed) for key in (made, failed, neither)] == [
        (True, False),
        (False, True),
        (False, False),
    ]
