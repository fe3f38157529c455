"""Samples of damaged recordings and datasets, and where a loss is stated; `python -m test.fuzz` tries many more."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")
pytest.importorskip("h5py", reason="needs the `datasets` extra")
pytest.importorskip("pyarrow", reason="needs the `datasets` extra")

from robocache_ros.bags.reader import CHECKED, UNCHECKED
from robocache_ros.bags.storage import mcap
from robocache_ros.formats.registry import FORMATS, READERS
from test.exporting import export
from test.fuzz import datasets, recordings
from test.fuzz.outcomes import Case, cases, outcomes
from test.fuzz.recordings import fusion_spec, make

# A sample of damaged recordings; `python -m test.fuzz --recordings 4000` tries many more.

SAMPLE = 144  # every kind of damage 3 times for each variant


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> recordings.Judge:
    return recordings.Judge(tmp_path_factory.mktemp("hostile"))


def test_every_variant_gives_the_same_undamaged(judge: recordings.Judge) -> None:
    readings = judge.undamaged
    first = readings["mcap"]
    assert len(first.messages) == 140
    assert {(reading.messages, reading.frames) for reading in readings.values()} == {(first.messages, first.frames)}
    assert {reading.notes for reading in readings.values()} == {()}
    checked = {variant for variant, reading in readings.items() if reading.integrity == CHECKED}
    assert checked == set(recordings.MCAP_VARIANTS)


@pytest.mark.parametrize(
    "case",
    [
        Case("sqlite3, zstd file", "bits flipped", 22),  # as it is opened
        Case("sqlite3, zstd file", "block zeroed", 26),  # as its times are read
        Case("sqlite3, zstd messages", "bit flipped in the summary", 11),
    ],
    ids=str,
)
def test_a_damaged_database_is_refused_with_one_advice(judge: recordings.Judge, case: Case) -> None:
    outcome, text = judge(case)
    assert outcome == "refused"
    assert text.count(" again") == 1


@pytest.mark.parametrize("variant", recordings.VARIANTS)
def test_damage_changes_nothing_or_is_stated(judge: recordings.Judge, variant: str) -> None:
    wanted = [case for case in cases(SAMPLE, recordings.VARIANTS, recordings.DAMAGES) if case.kind == variant]
    found = [(case, *judge(case)) for case in wanted]
    assert len(found) == SAMPLE / len(recordings.VARIANTS)
    assert [each for each in found if each[1] in recordings.BAD] == []


# A sample of damaged datasets; `python -m test.fuzz --datasets 4000` tries many more.


def test_every_registered_reader_has_a_dataset_that_is_damaged() -> None:
    missing = set(READERS) - {*datasets.EXPORTED, *datasets.WRITTEN}
    missing -= {"delta"} if find_spec("deltalake") is None else set()
    assert not missing, f"{missing}: give the format a writer, or add a small dataset to test/fuzz/datasets.py"


def test_a_format_that_is_registered_is_damaged_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "another", replace(FORMATS["mcap"], name="another"))
    assert "export: another" in run_path(str(Path(__file__).with_name("datasets.py")))["DAMAGED"]


def test_every_format_is_read_undamaged_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = datasets.Judge(tmp_path / "a").undamaged, datasets.Judge(tmp_path / "b").undamaged
    assert first == second
    assert (first["RLDS"], first["robomimic"]) == (first["RLDS, gzip"], first["robomimic, gzip"])
    assert all(len(set(episodes)) == len(episodes) > 1 for episodes in first.values())
    assert not [text for episodes in first.values() for text in episodes if text.startswith("refused")]


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_damage_is_refused_or_changes_nothing_that_a_checksum_covers(times: int) -> None:
    count = times * len(datasets.HOW) * len(datasets.DAMAGED)  # each damage of each format
    found = list(outcomes(datasets.Judge, cases(count, datasets.DAMAGED, datasets.HOW)))
    assert [each for each in found if each[1] in datasets.BAD] == []
    assert {case.kind for case, outcome, _ in found if outcome == "refused"} == set(datasets.DAMAGED)


# A loss is stated where the user looks: in the output, in the report and in the provenance.

NOTE = "lift.mcap: 1 of 7 chunks are damaged; 20 of 140 messages could not be read"


def info(path: Path, *options: str) -> str:
    """The output of `robocache info`."""
    testing = pytest.importorskip("typer.testing", reason="needs the `cli` extra")
    from robocache_ros.cli.commands import app

    done = testing.CliRunner().invoke(app, ["info", str(path), *options])
    assert done.exit_code == 0
    return str(done.output)


def exported(recording: Path, out: Path) -> tuple[dict[str, Any], str]:
    """What the provenance of an export states of the recording, and the report."""
    export([recording], fusion_spec(), out)
    (stated,) = json.loads((out / "meta" / "robocache.json").read_text(encoding="utf-8"))["recordings"]
    return stated, (out / "report.html").read_text(encoding="utf-8")


def test_a_damaged_chunk_is_stated(tmp_path: Path) -> None:
    recording = make("mcap", tmp_path / "bag")
    data = bytearray(recording.data)
    chunks = [stop for op, _, stop in mcap.records(recording.data, len(mcap.MCAP_MAGIC)) if op == mcap.CHUNK]
    data[chunks[3] - 1] ^= 1
    recording.file.write_bytes(data)
    stated, report = exported(recording.file, tmp_path / "out")
    assert stated["notes"] == [NOTE]
    assert NOTE in report
    assert NOTE in " ".join(info(recording.file).split())


@pytest.mark.parametrize(("variant", "integrity"), [("mcap", CHECKED), ("sqlite3", UNCHECKED)])
def test_output_report_and_provenance_say_whether_messages_have_checksums(
    variant: str, integrity: str, tmp_path: Path
) -> None:
    recording = make(variant, tmp_path / "bag")
    stated, report = exported(recording.path, tmp_path / "out")
    assert stated["integrity"] == integrity
    assert integrity in report
    # Of recordings without checksums, which are most, the table of `info` does not speak; its --json does.
    output = info(recording.path)
    assert (f"integrity: {integrity}" in " ".join(output.split())) == (integrity == CHECKED)
    assert "note" not in output
    assert json.loads(info(recording.path, "--json"))["recordings"][0]["integrity"] == integrity
