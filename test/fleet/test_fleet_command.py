"""`robocache fleet`: the state of a target, failures that are tried again, and leftovers that are removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.target import BucketTarget
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.fleet.conftest import NO_MEDIA, hidden, stopped_export


@pytest.fixture
def fleet(robocache) -> Callable[..., tuple[int, str]]:
    """Runs a command of `robocache fleet`; its exit code and its output."""

    def run(*arguments: object) -> tuple[int, str]:
        code, out, errors = robocache("fleet", *arguments)
        return code, out + errors

    return run


@pytest.fixture
def facts(fleet) -> Callable[..., dict[str, Any]]:
    """Runs a command with --json."""
    return lambda *arguments: json.loads(fleet(*arguments, "--json")[1])


def test_a_complete_dataset_has_exit_code_0_and_a_target_without_an_export_is_refused(s3, bags, spec, fleet):
    for no_plan in ("notes.json", "1.json", "-00001.json", f"{chr(0xB2) * 6}.json", "000001.json.txt"):
        s3.put(f"out/.robocache/plans/{no_plan}", b"mine")
    export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)
    assert fleet("status", f"{s3.url}/out") == (0, f"{s3.url}/out: complete\n")
    where = f"{s3.url}/nothing"
    assert fleet("status", where) == (2, f"robocache: {where}: no export; check the path, or name its --pieces\n")


def test_failures_have_exit_code_1_and_their_reasons_until_they_are_forgotten(s3, bags, spec, facts):
    with pytest.raises(ValueError, match="no 70 ticks"):
        export(bags, spec, f"{s3.url}/out", DatasetOptions(media="none", min_frames=70))
    reported = facts("status", f"{s3.url}/out")
    assert (reported["exit_code"], reported["state"], reported["done"], reported["needed"]) == (1, "failed", 0, 2)
    assert sorted(failure["path"] for failure in reported["failed"]) == sorted(map(str, bags))
    assert all("no 70 ticks in a row" in failure["reason"] for failure in reported["failed"])
    assert facts("retry", f"{s3.url}/out", "li*")["recordings"] == [str(bags[0])]
    assert [failure["path"] for failure in facts("status", f"{s3.url}/out")["failed"]] == [str(bags[1])]
    assert facts("retry", f"{s3.url}/out")["recordings"] == [str(bags[1])]
    assert facts("status", f"{s3.url}/out")["failed"] == []


def test_the_leftovers_of_a_stopped_export_are_listed_and_removed_when_they_are_old(s3, bags, spec, fleet, facts):
    out = f"{s3.url}/out"
    stopped_export(bags, spec, out)
    code, reported = fleet("status", out)
    assert code == 3
    assert " and was stopped\ndone: 1 of 2 recordings, " in reported

    lost = f".robocache/pieces/{'a' * 64}/0123456789abcdef/columns/ticks_ns"  # an attempt without a piece
    s3.put(f"out/{lost}", b"half")
    (done,) = (name for name in hidden(s3) if name.endswith("/done.json"))
    s3.put(f"out/{done.removesuffix('done.json')}0123456789abcdef/a", b"left")  # an attempt, and its piece
    status = facts("status", out)
    (half,) = status["in_progress"]
    assert (half["name"], half["size_bytes"]) == (f"{'a' * 64}/0123456789abcdef", 4)
    assert (status["done"], [each["size_bytes"] for each in status["left_over"]]) == (1, [4])

    collected = facts("gc", out)
    assert (collected["attempts"], collected["pieces"]) == (0, 0)
    assert lost in hidden(s3)
    collected = facts("gc", out, "--older-than", "0s")
    assert (collected["attempts"], collected["pieces"]) == (2, 1)
    assert not any("/pieces/" in name for name in hidden(s3))


def test_the_plan_of_a_killed_export_can_be_given_up(s3, bags, spec, fleet):
    BucketTarget(f"{s3.url}/out").begin("another plan", 2, overwrite=False)
    with pytest.raises(ValueError, match="fleet gc --give-up"):
        export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)
    assert fleet("gc", "--give-up", f"{s3.url}/out") == (0, "nothing to remove\n")
    export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)


def test_local_exports_have_a_state_too(tmp_path, bags, spec, facts):
    out, pieces = tmp_path / "out", tmp_path / "pieces"
    stopped_export(bags, spec, out, pieces=pieces)
    reported = facts("status", out, "--pieces", pieces)
    assert (reported["state"], reported["done"], reported["exit_code"]) == ("unfinished", 1, 3)
    export(bags, spec, out, NO_MEDIA, pieces=pieces)
    assert facts("status", out, "--pieces", pieces)["state"] == "complete"


def test_local_drafts_of_running_processes_are_kept(tmp_path, facts):
    (tmp_path / "draft-0123456789abcdef").mkdir()
    with PieceStore(tmp_path, shared=True).drafts.new() as running:
        reported = facts("status", tmp_path / "out", "--pieces", tmp_path)
        assert [each["name"] for each in reported["in_progress"]] == [running.name]
        assert [each["name"] for each in reported["left_over"]] == ["draft-0123456789abcdef"]
        assert facts("gc", tmp_path / "out", "--pieces", tmp_path)["attempts"] == 1
        assert running.exists()


def test_a_time_that_is_none_is_refused(fleet, tmp_path):
    reported = "robocache: --older-than: week is not a time; give one such as 30m, 12h or 7d\n"
    assert fleet("gc", tmp_path, "--older-than", "week") == (2, reported)


PLAN = {"digest": "a", "token": "0" * 16, "pieces": 1, "started": "2026", "replaces": [], "number": 1, "stopped": True}
CHANGES: tuple[dict[str, Any], ...] = (
    *({"replaces": value} for value in (3, ["../other"], [""])),
    *({"pieces": "many"}, {"token": "../other"}, {"started": None}),
)


def test_a_foreign_plan_is_one_line_that_names_it_and_nothing_is_deleted(s3, bags, fleet, spec):
    s3.put("other", b"of another program")
    changed = (json.dumps({**PLAN, **change}).encode() for change in CHANGES)
    for plan in (b"\xff", b"[1]", b"[" * 100_000, b"{}", *changed):
        s3.put("out/.robocache/plans/000001.json", plan)
        code, reported = fleet("status", f"{s3.url}/out")
        assert code == 2, plan[:99]
        (line,) = reported.splitlines()
        assert f"{s3.url}/out/.robocache/plans/000001.json: not a record of an export; " in line
        assert len(line) < 200
        with pytest.raises(RoboCacheError, match="not a record of an export"):
            export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA, overwrite=True)
        assert s3.read("other") == b"of another program"


def test_the_list_of_files_of_a_stopped_export_names_no_other_place(s3, bags, spec):
    s3.put("out/.robocache/plans/000001.json", json.dumps(PLAN).encode())
    s3.put("out/.robocache/plans/000001.files", b'{"../other/a": "0"}')
    s3.put("other/a", b"of another program")
    with pytest.raises(RoboCacheError, match=r"000001\.files: not a record of an export"):
        export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA, overwrite=True)
    assert s3.read("other/a") == b"of another program"
