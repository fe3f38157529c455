"""The output and the exit codes of `robocache export --shard`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from test.cli.conftest import BAG, SPEC, Finished

Run = Callable[..., Finished]


@pytest.fixture
def shard(robocache: Run, tmp_path: Path) -> Run:
    """Runs a shard of two recordings."""
    manifest = tmp_path / "lifts.csv"
    (tmp_path / "other").symlink_to(BAG)
    manifest.write_text(f"recording,from,to\n{BAG},0,2\nother,2,4\n")

    def run(which: str, *more: object) -> Finished:
        told = ("--manifest", manifest, "-s", SPEC, "-o", tmp_path / "set", "--media", "none", "--jobs", 1)
        return robocache("export", *told, "--pieces", tmp_path / "pieces", "--shard", which, *more)

    return run


def test_shards_say_how_far_the_export_is(shard: Run, tmp_path: Path) -> None:
    told = shard("0/2")
    assert (told.code, told.out) == (0, "1 of 2 recordings are converted; the last shard writes the dataset\n")
    told = shard("1/2")
    assert told.code == 0
    assert told.out.startswith("2 of 2 recordings are converted\n")
    assert f"wrote {tmp_path / 'set'}" in told.out
    told = shard("1/2")
    assert (told.code, told.out.startswith("2 of 2 recordings are converted; ")) == (0, True)
    assert told.out.endswith("set is complete\n")


def test_a_shard_prints_one_document(shard: Run) -> None:
    told = json.loads(shard("0/2", "--json").out)
    assert {name: told[name] for name in ("exit_code", "shard", "own", "converted", "failed", "total", "written")} == {
        "exit_code": 0,
        "shard": "0/2",
        "own": 1,
        "converted": 1,
        "failed": 0,
        "total": 2,
        "written": "waiting",
    }
    assert json.loads(shard("1/2", "--json").out)["episodes"] == 2


def test_a_shard_that_leaves_out_a_recording_ends_with_1(shard: Run, tmp_path: Path) -> None:
    with (tmp_path / "lifts.csv").open("a") as manifest:
        manifest.write("damaged.mcap,,\n")
    (tmp_path / "damaged.mcap").write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    told = [shard(f"{index}/3", "--on-error", "skip") for index in (2, 1, 0)]
    assert [finished.code for finished in told] == [1, 0, 1]
    assert "note failed: " in told[0].out
    assert "0 of 3 recordings are converted, 1 failed; the last shard writes the dataset" in told[0].out
    assert "not in the dataset: " in told[2].out


@pytest.mark.parametrize(
    ("which", "more", "reason"),
    [
        ("2/2", (), "shard: 2/2 does not exist; the shards of 2 are 0/2 to 1/2"),
        ("0/2", ("--dry-run",), "--shard: not with --dry-run"),
    ],
)
def test_a_shard_that_cannot_be_is_one_line(shard: Run, which: str, more: tuple[str, ...], reason: str) -> None:
    told = shard(which, *more)
    assert (told.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert reason in told.err


def test_a_shard_needs_a_folder_of_pieces(robocache: Run, tmp_path: Path) -> None:
    told = robocache("export", BAG, "-s", SPEC, "-o", tmp_path / "set", "--shard", "0/2")
    assert (told.code, told.out) == (2, "")
    assert "add --pieces DIR" in told.err


def test_a_shard_says_that_recordings_of_others_failed(shard: Run, tmp_path: Path) -> None:
    (tmp_path / "lifts.csv").write_text(f"recording\n{BAG}\ndamaged.mcap\n")
    (tmp_path / "damaged.mcap").write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    told = shard("1/2")
    assert (told.code, told.out) == (2, "")
    assert "no dataset, because 1 of 1 recording of shard 1/2 failed" in told.err
    told = shard("0/2")
    line = "1 of 2 recordings are converted, 1 failed; repair those and run their shards again, or all with"
    assert (told.code, told.out) == (0, f"{line} --on-error skip\n")
