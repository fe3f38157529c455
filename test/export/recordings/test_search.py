"""Recordings are found by paths, in folders and by globs, in an order that depends on their names alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import recordings
from robocache_ros.exporter.recordings import find_recordings


def files(root: Path, *names: str) -> Path:
    """Files with one byte."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def found(root: Path, *arguments: Path | str, but: Path | None = None) -> list[str]:
    return [path.relative_to(root).as_posix() for path in find_recordings(arguments or [root], but=but)]


def rosbag2(root: Path, name: str, *files_of: str) -> None:
    names = "".join(f"\n    - {file}" for file in files_of)
    files(root, *(f"{name}/{file}" for file in files_of))
    text = f"rosbag2_bagfile_information:\n  relative_file_paths:{names}\n"
    (root / name / "metadata.yaml").write_text(text)


def test_numbers_in_names_are_in_numeric_order(tmp_path: Path) -> None:
    files(tmp_path, "lift_10.mcap", "lift_2.mcap", "lift_1.bag", "Lift_3.db3")
    assert found(tmp_path) == ["Lift_3.db3", "lift_1.bag", "lift_2.mcap", "lift_10.mcap"]


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path) -> None:
    files(tmp_path, "b.mcap", "a.mcap")
    assert found(tmp_path, tmp_path / "b.mcap", tmp_path / "a.mcap") == ["a.mcap", "b.mcap"]


def test_a_recording_that_is_named_twice_is_found_once(tmp_path: Path) -> None:
    files(tmp_path, "day/a.mcap", "day/b.mcap")
    os.symlink(tmp_path / "day", tmp_path / "link")
    assert found(tmp_path, tmp_path / "day", tmp_path / "day" / "a.mcap", tmp_path / "link") == [
        "day/a.mcap",
        "day/b.mcap",
    ]


def test_a_folder_with_metadata_is_one_recording_and_is_not_searched(tmp_path: Path) -> None:
    rosbag2(tmp_path, "lift", "x.mcap", "y.mcap")
    files(tmp_path, "lift/more/z.mcap")
    assert found(tmp_path) == ["lift"]
    assert found(tmp_path, tmp_path / "lift") == ["lift"]


def test_a_storage_file_of_a_recording_is_not_another_recording(tmp_path: Path) -> None:
    rosbag2(tmp_path, "lift", "x.mcap", "y.mcap")
    assert found(tmp_path, tmp_path / "lift", tmp_path / "lift" / "x.mcap") == ["lift"]
    assert found(tmp_path, tmp_path / "lift" / "x.mcap") == ["lift/x.mcap"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("rec/rec_0.mcap", "rec/rec_1.mcap"), ["rec"]),
        (("rec/one.db3",), ["rec"]),
        (("rec/lift_0.mcap", "rec/lift_1.mcap"), ["rec/lift_0.mcap", "rec/lift_1.mcap"]),
        (("rec/rec_00.mcap", "rec/rec_01.mcap"), ["rec/rec_00.mcap", "rec/rec_01.mcap"]),
        (("rec/one.mcap", "rec/more/two.mcap"), ["rec/more", "rec/one.mcap"]),
        (("rec/a_2024-05-01-12-00-00_0.bag", "rec/a_2024-05-01-12-10-00_1.bag"), ["rec"]),
        (
            ("rec/2024-05-01-12-00-00.bag", "rec/2024-05-01-12-10-00.bag"),
            ["rec/2024-05-01-12-00-00.bag", "rec/2024-05-01-12-10-00.bag"],
        ),
    ],
)
def test_split_files_named_after_their_folder_are_one_recording(
    tmp_path: Path, names: tuple[str, ...], expected: list[str]
) -> None:
    assert found(files(tmp_path, *names)) == expected


def test_hidden_folders_and_other_files_are_left_out(tmp_path: Path) -> None:
    files(tmp_path, ".trash/a.mcap", "b.mcap.sha256", "._c.mcap", "notes.txt", "d/e.mcap.zstd")
    assert found(tmp_path) == ["d"]


def test_the_target_of_an_export_is_not_searched(tmp_path: Path) -> None:
    files(tmp_path, "a.mcap", "out/b.mcap")
    assert found(tmp_path, but=tmp_path / "out") == ["a.mcap"]


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    files(tmp_path, "day/a.mcap", "day/b.mcap")
    os.symlink(tmp_path, tmp_path / "day" / "up")
    assert found(tmp_path) == ["day/a.mcap", "day/b.mcap"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lift_*", ["lift_2", "lift_10"]),
        ("**/*.db3", ["lift_2"]),
        ("lift_1?/*", ["lift_10"]),
        ("loose/*.bag", ["loose/a.bag", "loose/b.bag"]),
        ("lo*", ["loose/a.bag", "loose/b.bag"]),
    ],
)
def test_a_glob_finds_recordings_and_whole_ones(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    rosbag2(tmp_path, "lift_2", "x_0.db3", "x_1.db3")
    rosbag2(tmp_path, "lift_10", "x_0.mcap")
    files(tmp_path, "loose/a.bag", "loose/b.bag", "loose/notes.txt")
    assert found(tmp_path, str(tmp_path / pattern)) == expected


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    files(tmp_path, "lift[1].mcap", "lift1.mcap")
    assert found(tmp_path, tmp_path / "lift[1].mcap") == ["lift[1].mcap"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nothing.mcap", "no such recording"),
        ("*.mcap", "matches no recording; correct the pattern"),
        ("empty", "no rosbag2 folders and no .mcap"),
        ("notes.txt", "neither a rosbag2 folder nor"),
    ],
)
def test_an_argument_that_names_no_recording_is_refused(tmp_path: Path, argument: str, message: str) -> None:
    files(tmp_path, "notes.txt", "empty/readme.md")
    with pytest.raises(RoboCacheError, match=message) as raised:
        find_recordings([tmp_path / argument])
    assert len(str(raised.value)) < 300


def test_searches_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, "a.mcap", "b/c/d.mcap")
    for name, limit in (("MAX_RECORDINGS", 1), ("MAX_ENTRIES", 2), ("MAX_DEPTH", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(recordings, name, limit)
            with pytest.raises(RoboCacheError, match=r"more than [12]|1 folders deep"):
                find_recordings([tmp_path])
