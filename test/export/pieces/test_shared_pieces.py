"""A folder of pieces that several exports use: what it saves, and what may be in it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.pieces import Checksums
from robocache_ros.exporter.planned_recording import planned
from robocache_ros.exporter.recordings import load_manifest
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROBOCACHE, ROOT, dry_run, named
from test.export.pieces.conftest import Contents, contents

NO_MEDIA = DatasetOptions(media="none")
SPEC = ROOT / "config" / "panda_lift.yaml"


def command(bags: list[Path], out: Path, pieces: Path) -> list[str]:
    options = ["--spec", str(SPEC), "--media", "none", "--out", str(out), "--pieces", str(pieces), "--jobs", "1"]
    return [*ROBOCACHE, "export", *map(str, bags), *options]


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    return tmp_path / "pieces"


@pytest.fixture
def exported(spec: FusionSpec, tmp_path: Path, pieces: Path) -> Callable[..., tuple[ExportResult, list[str]]]:
    """Exports with the shared folder; the result, and the recordings that were converted."""

    def run(
        bags: list[Path], name: str, options: DatasetOptions = NO_MEDIA, **more: bool
    ) -> tuple[ExportResult, list[str]]:
        seen: list[str] = []
        done = export(bags, spec, tmp_path / name / "set", options, pieces=pieces, progress=named(seen), **more)
        return done, list(dict.fromkeys(seen))

    return run


def test_an_appended_recording_costs_one_piece_and_gives_the_bytes_of_a_fresh_export(
    recordings: list[Path],
    exported: Callable[..., tuple[ExportResult, list[str]]],
    undisturbed: Callable[[str], Contents],
    pieces: Path,
) -> None:
    exported(recordings[:3], "a")
    done, converted = exported(recordings, "a", overwrite=True)
    assert converted == [recordings[3].name]
    assert done.notes[0] == "3 of 4 recordings were converted by an earlier export and reused"
    assert contents(done.out) == undisturbed("none")
    assert PieceStore(pieces).count() == 4


def test_another_format_with_the_same_encodings_converts_nothing(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], spec: FusionSpec, tmp_path: Path
) -> None:
    exported(bags, "a")
    zarr = replace(NO_MEDIA, formats=("diffusion_policy",))
    done, converted = exported(bags, "b", zarr)
    assert converted == []
    assert contents(done.out) == contents(export(bags, spec, tmp_path / "fresh" / "set", zarr).out)


def test_a_dataset_is_split_without_a_conversion(
    recordings: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], spec: FusionSpec, tmp_path: Path
) -> None:
    exported(recordings, "all")
    for name, part in (("train", recordings[:3]), ("test", recordings[3:])):
        manifest = tmp_path / f"{name}.yaml"
        manifest.write_text("".join(f"- {{recording: {bag}, task: {name}}}\n" for bag in part))
        listed = load_manifest(manifest)
        done, converted = exported(list(listed), name)
        assert converted == []
        assert contents(done.out) == contents(export(listed, spec, tmp_path / "fresh" / name / "set", NO_MEDIA).out)


def test_another_part_of_a_recording_is_another_piece(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], tmp_path: Path
) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(f"- {{recording: {bags[0]}, to: 0.5}}\n")
    second.write_text(f"- {{recording: {bags[0]}, from: 0.5}}\n")
    ends = exported(list(load_manifest(first)), "a")[0].recordings[0].episodes[-1].stop

    done, converted = exported(list(load_manifest(second)), "b")

    assert converted == [bags[0].name]
    assert done.recordings[0].episodes[-1].stop != ends


def test_a_dry_run_counts_the_pieces_of_the_folder(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], spec: FusionSpec, tmp_path: Path
) -> None:
    _, _ = exported(bags[:1], "a")
    run = dry_run(planned(bags), spec, tmp_path / "b", NO_MEDIA, pieces=tmp_path / "pieces")
    assert run.converted == frozenset(planned(bags[:1]))


def test_recordings_that_have_not_changed_are_not_read_again(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = exported(bags, "a")
    monkeypatch.setattr(Checksums, "_sha256", lambda *_: pytest.fail("reads a recording"))
    done, converted = exported(bags, "b")
    assert converted == []
    assert contents(done.out) == contents(first.out)


def test_a_recording_with_other_contents_of_the_same_size_and_time_is_converted(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], tmp_path: Path
) -> None:
    bag = Path(shutil.copytree(bags[0], tmp_path / "lift"))
    exported([bag], "a")
    (file,) = bag.glob("*.mcap")
    before, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert exported([bag], "b")[1] == ["lift"]


def flipped(data: bytes) -> bytes:
    """The data with one bit flipped in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def piece_folders(pieces: Path) -> list[Path]:
    """The folders with the files of the pieces."""
    return [done.parent / json.loads(done.read_bytes())["attempt"] for done in sorted(pieces.glob("*/done.json"))]


def test_a_piece_with_a_flipped_bit_in_any_file_is_made_again_and_does_not_enter_the_dataset(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], pieces: Path
) -> None:
    clean = contents(exported(bags[1:], "clean", report=False)[0].out)
    (piece,) = piece_folders(pieces)
    names = [str(file.relative_to(piece)) for file in piece.rglob("*") if file.is_file() and file.stat().st_size]
    assert {"contents.json", "recording.json", "recording.npz", "fused"} <= {Path(n).name for n in names}
    for number, name in enumerate([*names, "../done.json"]):
        file = piece_folders(pieces)[0] / name
        file.write_bytes(flipped(file.read_bytes()))
        done, converted = exported(bags[1:], f"after {number}", report=False)
        assert contents(done.out) == clean, name
        assert converted == ["again"], name
        assert done.notes == ("again: the piece that an earlier export made was damaged and made again",), name


def test_a_piece_with_a_damaged_done_json_is_made_again(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], pieces: Path
) -> None:
    clean = contents(exported(bags[1:], "clean", report=False)[0].out)
    (file,) = pieces.glob("*/done.json")
    for number, done in enumerate([b"", b"{}", b"[]", b'{"files": {}}', b'{"files": [1]}', b"[" * 100_000, b"\xff"]):
        file.write_bytes(done)
        result, converted = exported(bags[1:], f"after {number}", report=False)
        assert contents(result.out) == clean, done[:20]
        assert converted == ["again"], done[:20]


def test_swapped_and_truncated_files_and_swapped_pieces_do_not_enter_the_dataset(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], pieces: Path
) -> None:
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


def test_other_files_in_the_folder_stay(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], pieces: Path
) -> None:
    for name in ("notes.txt", "draft-of-a-letter/text", "mine/done.json"):
        (pieces / name).parent.mkdir(parents=True, exist_ok=True)
        (pieces / name).write_text("[]")
    exported(bags, "a")
    assert {entry.name for entry in pieces.iterdir() if len(entry.name) < 64} == {
        ".robocache-notes",
        "notes.txt",
        "draft-of-a-letter",
        "mine",
    }
    assert PieceStore(pieces).count() == 2
    assert exported(bags, "b")[1] == []


def test_the_draft_of_a_dead_process_is_removed_and_that_of_a_live_one_stays(
    bags: list[Path], exported: Callable[..., tuple[ExportResult, list[str]]], pieces: Path
) -> None:
    dead = pieces / f"draft-{'0' * 16}"
    dead.mkdir(parents=True)
    with PieceStore(pieces, shared=True).draft() as draft:
        (draft / "rows").touch()
        exported(bags, "a")
        assert (draft / "rows").exists()
    assert not dead.exists()
    assert not draft.exists()


def test_two_exports_share_the_folder_at_once(
    recordings: list[Path],
    exported: Callable[..., tuple[ExportResult, list[str]]],
    undisturbed: Callable[[str], Contents],
    pieces: Path,
    tmp_path: Path,
) -> None:
    both = [threading.Thread(target=exported, args=(recordings, name)) for name in ("a", "b")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert contents(tmp_path / "a" / "set") == contents(tmp_path / "b" / "set") == undisturbed("none")
    assert PieceStore(pieces).count() == 4


@pytest.mark.parametrize(("place", "reason"), [("file", "is a file"), ("out/set/p", "is in the folder of the dataset")])
def test_a_place_that_cannot_be_used_is_one_line(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RoboCacheError, match=reason):
        export(bags, spec, tmp_path / "out" / "set", NO_MEDIA, pieces=tmp_path / place)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pieces_on_another_file_system_give_the_same_dataset(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, pieces: Path, small_disk: Callable[..., tuple[int, str, str]]
) -> None:
    pieces.mkdir()
    out = tmp_path / "set"
    code, text, errors = small_disk(pieces, "100m", command(bags, out, pieces), f"ls {pieces} | wc -l")
    assert (code, errors) == (0, "")
    assert text.splitlines()[-1] == "2"  # without hidden entries
    assert contents(out) == contents(export(sorted(bags), spec, tmp_path / "fresh" / "set", NO_MEDIA).out)


@pytest.mark.slow
def test_a_read_only_folder_is_one_line(
    bags: list[Path], tmp_path: Path, pieces: Path, small_disk: Callable[..., tuple[int, str, str]]
) -> None:
    pieces.mkdir()
    run = command(bags, tmp_path / "set", pieces)
    read_only = ["sh", "-c", f'mount -o remount,ro none {pieces} && exec "$@"', "sh", *run]
    code, _, errors = small_disk(pieces, "1m", read_only)
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert "Read-only file system; choose a folder that can be written" in errors
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_finished_pieces_stay(
    bags: list[Path], tmp_path: Path, pieces: Path, small_disk: Callable[..., tuple[int, str, str]]
) -> None:
    pieces.mkdir()
    run = command(bags, tmp_path / "set", pieces)
    again = f"mount -o remount,size=100m none {pieces} && {shlex.join(run)}"
    code, text, errors = small_disk(pieces, "800k", run, again)
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert str(pieces)[:30] in errors
    assert "No space left on device; free some space" in errors
    assert "recordings were converted by an earlier export and reused" in text
