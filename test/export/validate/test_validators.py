from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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
    (reported,) = document["datasets"]
    assert (document["command"], document["exit_code"], len(document["errors"])) == ("validate", 1, 1)
    assert reported["findings"] == [{"where": "meta/info.json", "what": "fps is None; it must be a positive number"}]


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


def npy_header_of(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()


def damaged_npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(1000))
    data = bytearray(file.getvalue())
    data[60:300] = b"\xff" * 240
    return bytes(data)


@pytest.mark.parametrize(
    ("member", "data", "expected"),
    [
        ("0.state.npy", npy_header_of((10**12,)), "cannot be read (float64 (1000000000000,) in 128 bytes)"),
        ("0.depth.npz", damaged_npz(), "cannot be read (Error -3 while decompressing data"),
    ],
)
def test_a_damaged_array_is_a_finding_and_the_next_members_are_read(
    member: str, data: bytes, expected: str, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, contents in ((member, data), ("0.meta.json", b"{")):
            header = tarfile.TarInfo(name)
            header.size = len(contents)
            archive.addfile(header, io.BytesIO(contents))

    damaged, next_member = (str(finding) for finding in validate(tmp_path / "a.tar")[0].found)

    assert damaged.startswith(f"a.tar, {member}: {expected}")
    assert next_member.startswith("a.tar, 0.meta.json: cannot be read")
