"""The commands take URLs of recordings, specs and manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from robocache_ros.bags.write import write_bag
from robocache_ros.cli.commands import main
from robocache_ros.storage.cache import VARIABLE, cache_folder
from test.fleet.s3_server import Bucket
from test.fleet.test_remote_recordings import SPEC, TYPES, messages


@pytest.fixture(scope="module")
def filled(s3_of_file: Bucket, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a bucket with two recordings, a spec and a manifest."""
    for name in ("lift_1", "lift_2"):
        s3_of_file.put(f"raw/{name}", write_bag(tmp_path_factory.mktemp("bags") / name, TYPES, messages()))
    s3_of_file.put("specs/arm.yaml", yaml.safe_dump(SPEC).encode())
    s3_of_file.put("raw/some.csv", b"recording,task\nlift_2,push\n")
    return s3_of_file.url


@pytest.fixture
def raw(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, of which nothing has been downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return filled


def run(*arguments: str) -> int:
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_info_describes_a_url(raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", f"{raw}/raw/lift_1", "--json") == 0

    (found,) = json.loads(capsys.readouterr().out)["recordings"]
    assert found["path"] == f"{raw}/raw/lift_1"
    assert [topic["messages"] for topic in found["topics"]] == [10, 100]


def test_info_lists_the_recordings_of_a_glob(raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", f"{raw}/**", "--json") == 0

    found = json.loads(capsys.readouterr().out)["recordings"]
    assert [one["path"] for one in found] == [f"{raw}/raw/lift_1", f"{raw}/raw/lift_2"]


def test_info_writes_a_spec_for_a_url(raw: str, tmp_path: Path) -> None:
    assert run("info", f"{raw}/raw/lift_1", "--write-spec", str(tmp_path / "first.yaml")) == 0

    assert "topic: /joints" in (tmp_path / "first.yaml").read_text()


def test_check_compares_urls(raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", f"{raw}/specs/arm.yaml", f"{raw}/raw/", "--json") == 0

    assert len(json.loads(capsys.readouterr().out)["recordings"]) == 2


def test_report_reads_a_url(raw: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"

    assert run("report", f"{raw}/raw/lift_1", "--spec", f"{raw}/specs/arm.yaml", "--out", str(out)) == 0

    assert "lift_1" in out.read_text()


def test_export_takes_a_glob_and_a_spec_at_a_url(raw: str, tmp_path: Path) -> None:
    arguments = ("--spec", f"{raw}/specs/arm.yaml", "--task", "lift", "--out", str(tmp_path / "out"), "--jobs", "1")

    assert run("export", f"{raw}/**", *arguments) == 0

    assert json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["total_episodes"] == 2


@pytest.mark.parametrize(("size", "kept"), [("1GB", 2), ("0", 1)])
def test_export_keeps_as_many_recordings_as_its_cache_holds(
    size: str, kept: int, raw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # which the command sets for its processes
    arguments = ("--spec", f"{raw}/specs/arm.yaml", "--task", "lift", "--out", str(tmp_path / "out"), "--jobs", "1")

    assert run("export", f"{raw}/**", *arguments, "--cache-bytes", size) == 0

    assert len(list(cache_folder("recordings").glob("*.mcap"))) == kept


def test_export_takes_a_manifest_at_a_url(raw: str, tmp_path: Path) -> None:
    arguments = ("--manifest", f"{raw}/raw/some.csv", "--out", str(tmp_path / "out"), "--jobs", "1")

    assert run("export", "--spec", f"{raw}/specs/arm.yaml", *arguments) == 0

    reported = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text())
    assert f"{raw}/raw/lift_2" in json.dumps(reported)


def test_a_spec_that_is_not_there_is_one_line(raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", f"{raw}/specs/none.yaml") == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert f"{raw}/specs/none.yaml: cannot be read (not there)" in line


@pytest.mark.parametrize("text", ["s3:/robot-data/lift", "s3:robot-data/lift"])
def test_a_url_without_two_slashes_is_not_taken_for_a_folder(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "raw/lift", "--spec", "arm.yaml", "--out", text, "--json") == 2

    (line,) = json.loads(capsys.readouterr().out)["errors"]
    assert line.endswith(f"{text} is not a URL; write s3://robot-data/lift")
