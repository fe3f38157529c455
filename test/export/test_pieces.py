"""Pieces: what decides their names and bytes, and folders of them that several exports share."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors as local
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.piece_store import LocalObjects, PieceFailure, PieceStore
from robocache_ros.exporter.piece_writer import WAITING, OrderedCalls
from robocache_ros.exporter.pieces import Checksums, Plan, make_pieces_of
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.exporter.recordings import load_manifest
from robocache_ros.formats import recording as recording_file
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import NO_MEDIA, ROBOCACHE, SPEC, contents, dry_run, named, written
from test.export.sensor_recording import CAMERAS, sensor_recording, sensor_spec
from test.exporting import export


def key(plan: Plan, recording: Path) -> str:
    with Checksums(recording) as checksums:
        return plan.key(PlannedRecording(recording), checksums.result())


@pytest.mark.parametrize("media", ["none", pytest.param("video", marks=pytest.mark.slow)])
def test_one_more_process_is_started_and_makes_equal_bytes(recordings, spec, undisturbed, tmp_path, media, monkeypatch):
    started: list[int] = []
    start, options = local._started, DatasetOptions(media=media)
    monkeypatch.setattr(local, "_started", lambda threads: started.append(threads) or start(threads))
    assert contents(export(recordings, spec, tmp_path / "set", options, jobs=2).out) == undisturbed(media)
    assert len(started) == 1
    export(recordings[:1], spec, tmp_path / "one", options, jobs=8)
    assert len(started) == 1  # no more processes than recordings


def test_a_recording_given_twice_is_converted_once_and_is_twice_in_the_dataset(bags, spec, tmp_path):
    seen: list[str] = []
    twice = export([bags[0]] * 2, spec, tmp_path / "twice", NO_MEDIA, progress=named(seen))
    calls = len(seen)
    assert twice.frames == 2 * export([bags[0]], spec, tmp_path / "once", NO_MEDIA, progress=named(seen)).frames
    assert len(seen) == 2 * calls


def test_a_key_covers_all_that_decides_a_piece_and_no_more(bags, spec, tmp_path):
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


def test_nothing_that_a_report_shows_is_lost_in_a_piece(bags, spec, tmp_path):
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


def test_recordings_with_images_of_two_sizes_are_not_one_dataset(tmp_path, monkeypatch):
    one = sensor_recording(tmp_path / "one", 1, 0.3)
    monkeypatch.setitem(CAMERAS, "color", ("rgb8", (16, 20)))
    other = sensor_recording(tmp_path / "other", 2, 0.3)
    with pytest.raises(RoboCacheError, match=r"streams\.color: .*23x31 .* in .*one, .*16x20 .* in .*other; give it"):
        export([one, other], sensor_spec(), tmp_path / "set")


def test_pieces_in_a_folder_are_counted_without_a_look_at_all_files(tmp_path, monkeypatch):
    store, (made, failed, neither) = PieceStore(tmp_path), (digit * 64 for digit in "abc")
    with store.drafts.new() as draft:
        (draft / "file").write_bytes(b"x")
        store.commit(draft, made)
    store.fail(failed, PieceFailure("recording", "error"))
    monkeypatch.delattr(LocalObjects, "listed")
    assert store.count() == 1
    ended = store.ended([made, failed, neither])
    ends = [(ended[key].done, ended[key].failed) for key in (made, failed, neither)]
    assert ends == [(True, False), (False, True), (False, False)]


# A folder of pieces that several exports use: what it saves, and what may be in it.


@pytest.fixture
def pieces(tmp_path) -> Path:
    return tmp_path / "pieces"


@pytest.fixture
def exported(spec, tmp_path, pieces) -> Callable[..., tuple[ExportResult, list[str]]]:
    """Exports with the shared folder; the result, and the recordings that were converted."""

    def run(bags: Any, name: str, options: DatasetOptions = NO_MEDIA, **more: bool) -> tuple[ExportResult, list[str]]:
        seen: list[str] = []
        done = export(bags, spec, tmp_path / name / "set", options, pieces=pieces, progress=named(seen), **more)
        return done, list(dict.fromkeys(seen))

    return run


@pytest.fixture
def command(bags, tmp_path, pieces) -> list[str]:
    """The same export as a command, whose folder of pieces exists."""
    pieces.mkdir()
    options = {"spec": SPEC, "media": "none", "out": tmp_path / "set", "jobs": 1}
    return [*ROBOCACHE, "export", *map(str, bags), "--pieces", str(pieces), *(f"--{k}={v}" for k, v in options.items())]


def test_an_appended_recording_costs_one_piece_and_gives_the_bytes_of_a_fresh_export(
    recordings, exported, undisturbed, spec, pieces, tmp_path
):
    exported(recordings[:3], "a")
    run = dry_run(planned(recordings), spec, tmp_path / "b", NO_MEDIA, pieces=pieces)
    assert run.converted == frozenset(planned(recordings[:3]))
    done, converted = exported(recordings, "a", overwrite=True)
    assert converted == [recordings[3].name]
    assert done.notes[0] == "3 of 4 recordings were converted by an earlier export and reused"
    assert contents(done.out) == undisturbed("none")
    assert PieceStore(pieces).count() == 4


def test_another_format_with_the_same_encodings_reads_no_recording(bags, exported, spec, tmp_path, monkeypatch):
    exported(bags, "a")
    zarr = replace(NO_MEDIA, formats=("diffusion_policy",))
    fresh = contents(export(bags, spec, tmp_path / "fresh" / "set", zarr).out)
    monkeypatch.setattr(Checksums, "_sha256", lambda *_: pytest.fail("reads a recording"))
    done, converted = exported(bags, "b", zarr)
    assert converted == []
    assert contents(done.out) == fresh


def test_a_split_converts_nothing_and_a_part_of_a_recording_is_another_piece(recordings, exported, spec, tmp_path):
    exported(recordings, "all")
    manifest = tmp_path / "some.yaml"
    for name, part in (("train", recordings[:3]), ("test", recordings[3:])):
        manifest.write_text("".join(f"- {{recording: {bag}, task: {name}}}\n" for bag in part))
        listed = list(load_manifest(manifest))
        done, converted = exported(listed, name)
        assert converted == []
        assert contents(done.out) == contents(export(listed, spec, tmp_path / "fresh" / name / "set", NO_MEDIA).out)
    ends = []
    for times in ("to: 0.5", "from: 0.5"):
        manifest.write_text(f"- {{recording: {recordings[0]}, {times}}}\n")
        done, converted = exported(list(load_manifest(manifest)), times)
        assert converted == [recordings[0].name]
        ends.append(done.recordings[0].episodes[-1].stop)
    assert ends[0] != ends[1]


def test_a_recording_with_other_contents_of_the_same_size_and_time_is_converted(bags, exported, tmp_path):
    bag = Path(shutil.copytree(bags[0], tmp_path / "lift"))
    exported([bag], "a")
    (file,) = bag.glob("*.mcap")
    before, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert exported([bag], "b")[1] == ["lift"]


def piece_folders(pieces: Path) -> list[Path]:
    """The folders with the files of the pieces."""
    return [done.parent / json.loads(done.read_bytes())["attempt"] for done in sorted(pieces.glob("*/done.json"))]


def test_a_damaged_piece_is_made_again_and_does_not_enter_the_dataset(bags, exported, pieces):
    clean = contents(exported(bags[1:], "clean", report=False)[0].out)
    (piece,) = piece_folders(pieces)
    names = [str(file.relative_to(piece)) for file in piece.rglob("*") if file.is_file() and file.stat().st_size]
    assert {"contents.json", "recording.json", "recording.npz", "fused"} <= {Path(n).name for n in names}
    texts = (b"", b"{}", b"[]", b'{"files": {}}', b'{"files": [1]}', b"[" * 100_000, b"\xff")
    damages = [*((name, None) for name in (*names, "../done.json")), *(("../done.json", text) for text in texts)]
    for number, (name, damage) in enumerate(damages):
        file = piece_folders(pieces)[0] / name
        data = file.read_bytes()
        at = len(data) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if damage is None else damage)
        done, converted = exported(bags[1:], f"after {number}", report=False)
        assert contents(done.out) == clean, (name, damage)
        assert converted == ["again"], (name, damage)
        if damage is None:
            assert done.notes == ("again: the piece that an earlier export made was damaged and made again",), name


def test_swapped_and_truncated_files_and_swapped_pieces_do_not_enter_the_dataset(bags, exported, pieces):
    clean = contents(exported(bags, "clean", report=False)[0].out)
    one, two = piece_folders(pieces)

    def swap(first: Path, second: Path) -> None:
        first.rename(pieces / "third")
        second.rename(first)
        (pieces / "third").rename(second)

    swap(one / "columns" / "fused", two / "columns" / "fused")
    assert contents(exported(bags, "swapped files", report=False)[0].out) == clean
    one, two = piece_folders(pieces)
    swap(one, two)
    assert contents(exported(bags, "swapped pieces", report=False)[0].out) == clean
    swap(one.parent, two.parent)
    assert contents(exported(bags, "swapped keys", report=False)[0].out) == clean
    one, two = piece_folders(pieces)
    os.truncate(one / "recording.npz", 100)
    (two / "more").touch()
    done, converted = exported(bags, "truncated, and one file more", report=False)
    assert contents(done.out) == clean
    assert converted == ["lift", "again"]
    assert done.notes == ("lift, again: their pieces were damaged and made again",)


def test_other_files_in_the_folder_stay(bags, exported, pieces):
    names = {"notes.txt", "draft-of-a-letter/text", "mine/done.json"}
    written(pieces, "[]", *names)
    exported(bags, "a")
    assert all((pieces / name).read_text() == "[]" for name in names)
    others = {entry.name for entry in pieces.iterdir() if len(entry.name) < 64}  # not the folders of pieces
    assert others == {".robocache-notes", "notes.txt", "draft-of-a-letter", "mine"}
    assert PieceStore(pieces).count() == 2
    assert exported(bags, "b")[1] == []


def test_the_draft_of_a_dead_process_is_removed_and_that_of_a_live_one_stays(bags, exported, pieces):
    dead = pieces / f"draft-{'0' * 16}"
    dead.mkdir(parents=True)
    with PieceStore(pieces, shared=True).drafts.new() as draft:
        (draft / "rows").touch()
        exported(bags, "a")
        assert (draft / "rows").exists()
    assert not dead.exists()
    assert not draft.exists()


def test_two_exports_share_the_folder_at_once(recordings, exported, undisturbed, pieces, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(exported, recordings), ("a", "b")))
    assert contents(tmp_path / "a" / "set") == contents(tmp_path / "b" / "set") == undisturbed("none")
    assert PieceStore(pieces).count() == 4


@pytest.mark.parametrize(("place", "reason"), [("file", "is a file"), ("out/set/p", "is in the folder of the dataset")])
def test_a_place_that_cannot_be_used_is_one_line(bags, spec, tmp_path, place, reason):
    (tmp_path / "file").touch()
    with pytest.raises(RoboCacheError, match=reason):
        export(bags, spec, tmp_path / "out" / "set", NO_MEDIA, pieces=tmp_path / place)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pieces_on_another_file_system_give_the_same_dataset(bags, spec, tmp_path, pieces, command, small_disk):
    code, text, errors = small_disk(pieces, "100m", command, f"ls {pieces} | wc -l")
    assert (code, errors) == (0, "")
    assert text.splitlines()[-1] == "2"  # without hidden entries
    fresh = export(sorted(bags), spec, tmp_path / "fresh" / "set", NO_MEDIA)
    assert contents(tmp_path / "set") == contents(fresh.out)


@pytest.mark.slow
def test_a_read_only_folder_is_one_line(tmp_path, pieces, command, small_disk):
    read_only = ["sh", "-c", f'mount -o remount,ro none {pieces} && exec "$@"', "sh", *command]
    code, _, errors = small_disk(pieces, "1m", read_only)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "Read-only file system; choose a folder that can be written" in errors
    assert not (tmp_path / "set").exists()


# Calls in a thread of their own.


def test_calls_that_wait_are_discarded_when_closed():
    calls, go, seen = OrderedCalls("test"), threading.Event(), list[int]()
    calls.add(lambda: (go.wait(), None)[1])
    for number in range(WAITING):
        calls.add(seen.append, number)
    closing = threading.Thread(target=calls.close)
    closing.start()
    while not calls._pool._shutdown:
        time.sleep(0)
    with calls._pool._shutdown_lock:
        go.set()  # held while the calls are discarded
    closing.join()
    assert not seen
