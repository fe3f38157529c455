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

from robocache_ros.bags.reader import CHECKED, UNCHECKED, Bag
from robocache_ros.bags.storage import mcap
from robocache_ros.errors import printable
from robocache_ros.formats.registry import FORMATS, READERS
from test.exporting import export
from test.fuzz import datasets, recordings
from test.fuzz.outcomes import outcomes
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
        recordings.Case("sqlite3, zstd file", "bits flipped", 22),  # as it is opened
        recordings.Case("sqlite3, zstd file", "block zeroed", 26),  # as its times are read
        recordings.Case("sqlite3, zstd messages", "bit flipped in the summary", 11),
    ],
    ids=str,
)
def test_a_damaged_database_is_refused_with_one_advice(judge: recordings.Judge, case: recordings.Case) -> None:
    outcome, text = judge(case)
    assert outcome == "refused"
    assert text.count(" again") == 1


@pytest.mark.parametrize("variant", recordings.VARIANTS)
def test_damage_changes_nothing_or_is_stated(judge: recordings.Judge, variant: str) -> None:
    outcomes = [(case, *judge(case)) for case in recordings.cases(SAMPLE) if case.variant == variant]
    assert [found for found in outcomes if found[1] in recordings.BAD] == []
    assert {outcome for _, outcome, _ in outcomes} - set(recordings.BAD)


# A sample of damaged datasets; `python -m test.fuzz --datasets 4000` tries many more.

KINDS = len(datasets.HOW) * len(datasets.DAMAGED)  # of damage, over all formats


def test_every_registered_reader_has_a_dataset_that_is_damaged() -> None:
    missing = (
        set(READERS)
        - {*datasets.EXPORTED, *datasets.WRITTEN}
        - ({"delta"} if find_spec("deltalake") is None else set())
    )
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
    found = list(outcomes(datasets.Judge, datasets.cases(times * KINDS)))
    assert [(*case, said) for *case, said in found if case[1] in datasets.BAD] == []
    assert {case.format for case, outcome, _ in found if outcome == "refused"} == set(datasets.DAMAGED)


# A loss is stated where the user looks: in the output, in the report and in the provenance.

NOTE = "lift.mcap: 1 of 7 chunks are damaged; 20 of 140 messages could not be read"


def info(path: Path, *options: str) -> str:
    """The output of `robocache info`."""
    typer_testing = pytest.importorskip("typer.testing", reason="needs the `cli` extra")
    from robocache_ros.cli.commands import app

    done = typer_testing.CliRunner().invoke(app, ["info", str(path), *options])
    assert done.exit_code == 0
    return str(done.output)


def exported(recording: Path, out: Path) -> tuple[dict[str, Any], str]:
    """What the provenance of an export states of the recording, and the report."""
    export([recording], fusion_spec(), out)
    provenance = json.loads((out / "meta" / "robocache.json").read_text(encoding="utf-8"))
    (stated,) = provenance["recordings"]
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


def test_notes_on_the_working_folder_have_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("mcap", tmp_path / "lift")
    monkeypatch.chdir(tmp_path / "lift")
    with Bag(".") as bag:
        assert bag.notes == ["lift: has no metadata.yaml, as after a crash of the recorder; its files were read"]


@pytest.mark.parametrize("name", ["n[red]x", "n\x1b[31m", "n\nFATAL: forged"])
def test_info_escapes_the_name_of_a_recording(name: str, tmp_path: Path) -> None:
    make("mcap", tmp_path / name)
    output = info(tmp_path / name)
    assert output.startswith(printable(name))
    assert "\x1b" not in output
    assert not any(line.startswith("FATAL") for line in output.splitlines())


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
