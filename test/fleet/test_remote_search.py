"""Recordings are found at URLs as in local folders, by few requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.recordings import find_recordings, load_manifest
from test.fleet.s3 import Bucket, Faults

FILES = (
    "day_1/lift_2/metadata.yaml",
    "day_1/lift_2/lift_2_0.mcap",
    "day_1/lift_10/metadata.yaml",
    "day_1/lift_10/lift_10_0.mcap",
    "day_2/a.mcap",
    "day_2/b.bag",
    "day_2/notes.txt",
    "split/split_0.db3",
    "split/split_1.db3",
    "split/.hidden.mcap",
)
FOUND = ["day_1/lift_2", "day_1/lift_10", "day_2/a.mcap", "day_2/b.bag", "split"]


def put_all(s3: Bucket) -> str:
    for name in FILES:
        s3.put(f"raw/{name}", b"x")
    return f"{s3.url}/raw"


@pytest.fixture(scope="module")
def raw(s3_of_file: Bucket) -> str:
    """The URL of a folder with all files."""
    return put_all(s3_of_file)


def names(found: tuple[Path, ...], root: str) -> list[str]:
    return [str(path).removeprefix(f"{root}/") for path in found]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", FOUND),
        ("/", FOUND),
        ("/**", FOUND),
        ("/day_?", FOUND[:4]),
        ("/*/*.mcap", ["day_2/a.mcap"]),
        ("/**/*_0.mcap", FOUND[:2]),
        ("/**/lift_[0-9]", FOUND[:1]),
        ("/day_2/b.bag", ["day_2/b.bag"]),
        ("/day_1/lift_2", ["day_1/lift_2"]),
    ],
)
def test_a_url_names_what_a_local_path_names(argument: str, expected: list[str], raw: str, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(find_recordings([raw + argument]), raw) == expected
    assert names(find_recordings([f"{tmp_path}{argument}"]), str(tmp_path)) == expected


def test_a_file_in_a_recording_that_is_named_too_is_not_another_one(raw: str) -> None:
    found = find_recordings([f"{raw}/split", f"{raw}/split/split_0.db3"])
    assert names(found, raw) == ["split"]


def test_a_folder_is_searched_by_a_request_for_a_thousand_files(faulty_s3: Bucket, faults: Faults) -> None:
    root = put_all(faulty_s3)
    find_recordings([f"{root}/**"])
    assert len([request for request in faults.requests if request.method == "GET"]) == 1


def test_the_target_of_an_export_is_not_searched(raw: str) -> None:
    found = find_recordings([raw], but=Path("/nowhere"))
    without = find_recordings([raw], but=f"{raw}/day_1")  # type: ignore[arg-type]
    assert len(found) - len(without) == 2


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("/raw/none.mcap", r"raw/none\.mcap: no such recording"),
        ("/raw/*.db3", "matches no recording"),
        ("/none/", "none: no such recording"),
        ("-none/raw/", r"-none/raw.*: no such bucket; correct the URL"),
    ],
)
def test_a_url_that_names_no_recording_is_one_line(argument: str, error: str, raw: str) -> None:
    with pytest.raises(RoboCacheError, match=error) as raised:
        find_recordings([raw.removesuffix("/raw") + argument])
    assert len(str(raised.value).splitlines()) == 1


def test_the_paths_of_a_manifest_are_relative_to_its_url(raw: str, s3: Bucket) -> None:
    url = s3.put("lists/some.csv", f"recording,task\n../raw/b.mcap,lift\n{raw}/split,push\n".encode())
    b = s3.put("raw/b.mcap", b"x")
    found = load_manifest(url)
    assert [(str(one.path), one.task) for one in found] == [(b, "lift"), (f"{raw}/split", "push")]


def test_a_local_manifest_may_name_urls(raw: str, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(f"- recording: {raw}/day_2/*\n")
    assert names(tuple(one.path for one in load_manifest(tmp_path / "some.yaml")), raw) == FOUND[2:4]


@pytest.mark.parametrize(
    "argument",
    ["/[z-a]*.mcap", "/[[]*", "/day_[!1]", "/[]d]ay_2/*", "/day_2/[a-b].*", "/**/**/a.mcap", "/split/**", "/day_[12"],
)
@pytest.mark.filterwarnings("error")
def test_a_pattern_of_a_url_is_that_of_a_local_path(argument: str, raw: str, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    def found(where: str) -> list[str]:
        try:
            return names(find_recordings([where + argument]), where)
        except RoboCacheError as error:
            return [str(error).partition("; ")[0].rpartition(": ")[2]]

    assert found(raw) == found(str(tmp_path))
