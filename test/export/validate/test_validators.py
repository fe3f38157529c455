from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from robocache_ros.cli.commands import main
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.formats import registry
from robocache_ros.formats.check import MAX_FINDINGS, Findings
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions


def test_a_folder_with_several_datasets_is_validated_as_a_whole(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    options = DatasetOptions(formats=("lerobot", "lerobot21"), media="none")
    out = export(bags[1:], spec, tmp_path / "out", options).out
    (out / "other").mkdir()
    checked = validate(out)
    assert [findings.title for findings in checked] == ["LeRobot v3.0", "LeRobot v2.1"]
    assert all(findings.found == [] for findings in checked)
    assert checked[-1].unchecked[-1] == "other: not a dataset of a known format"


def test_nothing_is_found_in_an_export_to_every_format(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    for library in ("h5py", "google_crc32c"):
        pytest.importorskip(library)
    names = tuple(name for name in registry.WRITERS if name != "delta" or find_spec("deltalake"))
    out = export(bags[1:], spec, tmp_path / "out", DatasetOptions(formats=names, media="image")).out
    assert {str(finding) for findings in validate(out, decode=True) for finding in findings.found} == set()


def test_the_exit_code_is_1_if_anything_is_wrong(
    made: Callable[[str], ExportResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = made("none").out
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(out)])
    assert ended.value.code == 0
    assert "nothing wrong found; checked" in capsys.readouterr().out

    damaged = tmp_path / "meta"
    damaged.mkdir()
    (damaged / "info.json").write_text('{"codebase_version": "v3.0"}')
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(tmp_path), "--json"])
    assert ended.value.code == 1
    document = json.loads(capsys.readouterr().out)
    (told,) = document["datasets"]
    assert (document["command"], document["exit_code"], len(document["errors"])) == ("validate", 1, 1)
    assert told["findings"] == [{"where": "meta/info.json", "what": "fps is None; it must be a positive number"}]


def test_a_recording_that_was_changed_after_the_export(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    bag = Path(shutil.copytree(bags[1], tmp_path / "bag"))
    out = export([bag], spec, tmp_path / "out", DatasetOptions(media="none")).out
    (findings,) = validate(out, recordings=True)
    assert (findings.found, findings.counted["files of recordings"]) == ([], 1)
    (file,) = bag.glob("*.mcap")
    with file.open("ab") as opened:
        opened.write(b"more")
    (findings,) = validate(out, recordings=True)
    assert [finding.what for finding in findings.found] == [f"{file.name}: was changed after the export"]
    shutil.rmtree(bag)
    (findings,) = validate(out, recordings=True)
    assert findings.unchecked[-1].endswith("is not on this machine")


def test_what_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RoboCacheError, match=r"does not exist|not a dataset that can be validated"):
            validate(path)


def test_the_number_of_findings_is_bounded(tmp_path: Path) -> None:
    findings = Findings(tmp_path, "")
    for number in range(MAX_FINDINGS + 7):
        findings.add(f"file {number}", "is\nwrong")
    assert (len(findings.found), findings.more) == (MAX_FINDINGS, 7)
    assert str(findings.found[0]) == "file 0: is\\nwrong"


def declare(check: registry.Validator, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare a format with a validator, as an installed package does."""
    point = SimpleNamespace(name="other", value="other:FORMAT", load=lambda: SimpleNamespace(validator=check))
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.syspath_prepend(site)


def test_a_format_of_another_package_brings_its_validator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Check:
        title = "other"

        def recognizes(self, dataset: Path) -> bool:
            return (dataset / "other.txt").exists()

        def check(self, findings: Findings) -> None:
            findings.add("other.txt", "is empty")

    declare(Check(), tmp_path, monkeypatch)
    (tmp_path / "other.txt").touch()
    (findings,) = validate(tmp_path)
    assert [str(finding) for finding in findings.found] == ["other.txt: is empty"]


def test_an_unexpected_error_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Check:
        title = "other"

        def recognizes(self, dataset: Path) -> bool:
            return True

        def check(self, findings: Findings) -> None:
            raise KeyError("shape")

    declare(Check(), tmp_path, monkeypatch)
    (findings,) = validate(tmp_path)
    assert str(findings.found[0]).endswith("cannot be read further (KeyError: 'shape')")
