"""Recordings are found at URLs as in local folders, by few requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.recordings import find_recordings, load_manifest
from test.export.conftest import written

FILES = (
    *(f"day_1/lift_{n}/{name}" for n in (2, 10) for name in ("metadata.yaml", f"lift_{n}_0.mcap")),
    *("day_2/a.mcap", "day_2/b.bag", "day_2/notes.txt"),
    *("split/split_0.db3", "split/split_1.db3", "split/.hidden.mcap"),
)
FOUND = ["day_1/lift_2", "day_1/lift_10", "day_2/a.mcap", "day_2/b.bag", "split"]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """A local folder with all files."""
    return written(tmp_path_factory.mktemp("local"), "x", *FILES)


@pytest.fixture(scope="module")
def raw(s3_of_file, local) -> str:
    """The URL of a folder with all files."""
    return s3_of_file.put("raw", local)


def names(found: tuple[Path, ...], root: str) -> list[str]:
    return [str(path).removeprefix(f"{root}/") for path in found]


def found(where: str, argument: str) -> list[str]:
    """The names of recordings, or the reason of the error."""
    try:
        return names(find_recordings([where + argument]), where)
    except RoboCacheError as error:
        return [str(error).partition("; ")[0].rpartition(": ")[2]]


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
        *((pattern, None) for pattern in ("/[z-a]*.mcap", "/[[]*", "/day_[!1]", "/[]d]ay_2/*", "/day_2/[a-b].*")),
        *((pattern, None) for pattern in ("/**/**/a.mcap", "/split/**", "/day_[12")),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_url_names_what_a_local_path_names(argument, expected, raw, local):
    remote = found(raw, argument)
    assert remote == found(str(local), argument)
    assert expected in (None, remote)


def test_a_folder_is_searched_by_a_request_for_a_thousand_files(faulty_s3, faults, local):
    find_recordings([f"{faulty_s3.put('raw', local)}/**"])
    assert len([request for request in faults.requests if request.method == "GET"]) == 1


def test_the_target_of_an_export_and_files_of_a_recording_that_is_named_are_not_searched(raw):
    without = find_recordings([raw], but=f"{raw}/day_1")
    assert len(find_recordings([raw], but=Path("/nowhere"))) - len(without) == 2
    assert names(find_recordings([f"{raw}/split", f"{raw}/split/split_0.db3"]), raw) == ["split"]


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("/raw/none.mcap", r"raw/none\.mcap: no such recording"),
        ("/raw/*.db3", "matches no recording"),
        ("/none/", "none: no such recording"),
        ("-none/raw/", r"-none/raw.*: no such bucket; correct the URL"),
    ],
)
def test_a_url_that_names_no_recording_is_one_line(argument, error, raw):
    with pytest.raises(RoboCacheError, match=error) as raised:
        find_recordings([raw.removesuffix("/raw") + argument])
    assert len(str(raised.value).splitlines()) == 1


def test_the_paths_of_a_manifest_are_relative_to_its_url_and_a_local_one_may_name_urls(raw, s3, tmp_path):
    url = s3.put("lists/some.csv", f"recording,task\n../raw/b.mcap,lift\n{raw}/split,push\n".encode())
    b = s3.put("raw/b.mcap", b"x")
    found = load_manifest(url)
    assert [(str(one.path), one.task) for one in found] == [(b, "lift"), (f"{raw}/split", "push")]
    (tmp_path / "some.yaml").write_text(f"- recording: {raw}/day_2/*\n")
    assert names(tuple(one.path for one in load_manifest(tmp_path / "some.yaml")), raw) == FOUND[2:4]
