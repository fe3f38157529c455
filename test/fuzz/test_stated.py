"""A loss is stated where the user looks: in the output, in the report and in the provenance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")
pytest.importorskip("pyarrow", reason="needs the `export` extra")

from robocache_ros.bags.reader import CHECKED, UNCHECKED, Bag
from robocache_ros.bags.storage import mcap
from robocache_ros.errors import printable
from test.fuzz.recordings import fusion_spec, make

NOTE = "lift.mcap: 1 of 7 chunks are damaged; 20 of 140 messages could not be read"


@pytest.fixture
def lift(tmp_path: Path) -> Path:
    """A recording whose fourth chunk is damaged."""
    recording = make("mcap", tmp_path / "bag")
    data = bytearray(recording.data)
    chunks = [stop for op, _, stop in mcap.records(recording.data, len(mcap.MCAP_MAGIC)) if op == mcap.CHUNK]
    data[chunks[3] - 1] ^= 1
    recording.file.write_bytes(data)
    return recording.file


def test_an_export_states_what_was_lost(lift: Path, tmp_path: Path) -> None:
    from robocache_ros.exporter.job import export

    result = export([lift], fusion_spec(), tmp_path / "out")
    assert result.recordings[0].notes == (NOTE,)
    provenance = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text(encoding="utf-8"))
    assert provenance["recordings"][0]["notes"] == [NOTE]
    assert NOTE in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_info_states_what_was_lost(lift: Path) -> None:
    typer_testing = pytest.importorskip("typer.testing", reason="needs the `cli` extra")
    from robocache_ros.cli.commands import app

    done = typer_testing.CliRunner().invoke(app, ["info", str(lift)])
    assert done.exit_code == 0
    assert NOTE in " ".join(done.output.split())


def test_notes_on_the_working_folder_have_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("mcap", tmp_path / "lift")
    monkeypatch.chdir(tmp_path / "lift")
    with Bag(".") as bag:
        assert bag.notes == ["lift: has no metadata.yaml, as after a crash of the recorder; its files were read"]


@pytest.mark.parametrize("name", ["n[red]x", "n\x1b[31m", "n\nFATAL: forged"])
def test_info_escapes_the_name_of_a_recording(name: str, tmp_path: Path) -> None:
    typer_testing = pytest.importorskip("typer.testing", reason="needs the `cli` extra")
    from robocache_ros.cli.commands import app

    make("mcap", tmp_path / name)
    done = typer_testing.CliRunner().invoke(app, ["info", str(tmp_path / name)])
    assert done.exit_code == 0
    assert done.output.startswith(printable(name))
    assert "\x1b" not in done.output
    assert not any(line.startswith("FATAL") for line in done.output.splitlines())


@pytest.mark.parametrize(("variant", "integrity"), [("mcap", CHECKED), ("sqlite3", UNCHECKED)])
def test_output_report_and_provenance_say_whether_messages_have_checksums(
    variant: str, integrity: str, tmp_path: Path
) -> None:
    typer_testing = pytest.importorskip("typer.testing", reason="needs the `cli` extra")
    from robocache_ros.cli.commands import app
    from robocache_ros.exporter.job import export

    recording = make(variant, tmp_path / "bag")
    export([recording.path], fusion_spec(), tmp_path / "out")
    done = typer_testing.CliRunner().invoke(app, ["info", str(recording.path)])

    provenance = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text(encoding="utf-8"))
    assert [recording["integrity"] for recording in provenance["recordings"]] == [integrity]
    assert integrity in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    # Of recordings without checksums, which are most, the table of `info` does not speak; its --json does.
    assert (f"integrity: {integrity}" in " ".join(done.output.split())) == (integrity == CHECKED)
    as_json = typer_testing.CliRunner().invoke(app, ["info", str(recording.path), "--json"])
    assert json.loads(as_json.output)["recordings"][0]["integrity"] == integrity
    assert "note" not in done.output
