"""`robocache validate`: the faults of a dataset that it finds, and what it refuses."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robocache_ros.cli.commands import main
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import registry
from robocache_ros.formats import robomimic as check
from robocache_ros.formats.check import MAX_FINDINGS, Findings, stamps_disagree
from robocache_ros.formats.registry import WRITERS
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.small import picture
from test.export import sensor_recording as sensor_recording_module
from test.export.conftest import ROOT, found, without_checksums, written
from test.export.planted_faults import FAULTS, ROWS, cut_off, hdf5, meta, pop_at
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export
from test.fuzz.datasets import write_rlds, write_robomimic

# The validation finds each of the planted faults, but for those that a dataset cannot reveal.

PAGE = ROOT / "docs" / "how-to" / "validate_a_dataset.md"
SECTION = "## What a dataset cannot reveal"
LIBRARIES = {"robomimic": "h5py", "rlds": "google_crc32c", "delta": "deltalake"}
STORED = tuple(dict.fromkeys(fault.format for fault in FAULTS))  # a format, and how its images are stored


# The formats whose libraries are installed.
INSTALLED = tuple(name for name in WRITERS if find_spec(LIBRARIES.get(name, "pyarrow")))


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Callable[[str], Path]:
    """Three episodes with three tasks in each format, made once."""
    folder = tmp_path_factory.mktemp("planted")
    recordings = [sensor_recording(folder / f"recording_{seed}", seed, ROWS / 50) for seed in range(3)]

    @cache
    def make(media: str) -> Path:
        chosen = {"formats": ("lerobot", "mcap"), "media": media} if media else {"formats": INSTALLED}
        options = DatasetOptions(task_topic="/task", robot_type="arm", **chosen)
        return export(recordings, sensor_spec(outcomes=True), folder / f"out {media}", options, report=False).out

    def dataset(stored: str) -> Path:
        name, _, media = stored.partition(" ")
        if not (make(media) / name).is_dir():
            pytest.skip(f"{LIBRARIES[name]} is not installed")
        return make(media) / name

    return dataset


@pytest.mark.parametrize("stored", STORED)
def test_nothing_is_found_without_a_fault(stored, exported, tmp_path):
    (findings,) = validate(without_checksums(exported(stored), tmp_path / "set"), decode=True)
    assert findings.found == []


@pytest.mark.parametrize(
    ("actions", "options"),
    [
        (False, {"task": "lift"}),
        (False, {"action": "next-delta", "action_offset": 2}),
        (True, {"action_offset": 3}),
        (True, {"visibility": "deployed", "on_invalid": "mask", "media": "none", "split_s": 0.2}),
    ],
)
def test_nothing_is_found_whatever_the_actions_are(actions, options, tmp_path):
    changed: dict[str, dict[str, Any]] = {
        "state": {"name": "state_with_the_name_" + "of_its_topic_" * 4},
        "force": {"latency_ms": 3},
        "color": {"latency_ms": 7},
        "depth": {"align": "nearest"},
    }
    spec = sensor_spec(actions=actions)
    spec = replace(spec, streams=tuple(replace(s, **changed.get(s.name, {})) for s in spec.streams))
    recording = sensor_recording(tmp_path / "recording", 0, 0.6)
    assert findings_of_an_export(tmp_path, recording, spec, **options) == set()


@pytest.mark.parametrize("media", ["video", "image"])
def test_nothing_is_found_if_the_clock_starts_at_0(media, tmp_path, monkeypatch):
    monkeypatch.setattr(sensor_recording_module, "START_NS", 0)
    recording = sensor_recording(tmp_path / "recording", 0, 0.6)
    assert findings_of_an_export(tmp_path, recording, sensor_spec(), media=media) == set()


def test_nothing_is_found_in_an_export_of_voxels(bags, spec, tmp_path):
    assert findings_of_an_export(tmp_path, bags[1], spec, media="image") == set()


def findings_of_an_export(folder: Path, recording: Path, spec: FusionSpec, **options: Any) -> set[str]:
    out = export([recording], spec, folder / "out", DatasetOptions(formats=INSTALLED, **options), report=False).out
    return {str(finding) for findings in validate(out, decode=True) for finding in findings.found}


# Each fault takes a validation: the quick run has every fourth, but none of the slowest formats.
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a fourth", "the rest"])
@pytest.mark.parametrize(
    "stored", [pytest.param(s, marks=pytest.mark.slow) if s in ("webdataset", "delta") else s for s in STORED]
)
def test_each_fault_that_the_dataset_reveals_is_found(stored, rest, exported, tmp_path):
    missed = {}
    faults = [fault for fault in FAULTS if fault.format == stored]
    for fault in [fault for number, fault in enumerate(faults) if (number % 4 > 0) == rest]:
        dataset = without_checksums(exported(stored), tmp_path / "set")
        fault.plant(dataset)
        (findings,) = validate(dataset, decode=fault.decode)
        texts = [str(finding) for finding in findings.found]
        wanted = fault.finds.split("|")
        if texts if not fault.finds else not any(part in text for part in wanted for text in texts):
            missed[fault.name] = texts[:3]
        shutil.rmtree(dataset)
    assert missed == {}


def test_the_page_lists_what_a_dataset_cannot_reveal():
    text = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^- `([a-z_0-9]+)`: (.+?)\.$", re.sub(r"\n  ", " ", text), re.MULTILINE))
    hidden: dict[str, list[str]] = {}
    for fault in FAULTS:
        if not fault.finds:
            hidden.setdefault(fault.format, []).append(fault.name)
    assert listed == {stored: "; ".join(names) for stored, names in hidden.items()}
    assert len({(fault.format, fault.name) for fault in FAULTS}) == len(FAULTS) >= 120


def test_a_folder_with_several_datasets_is_validated_as_a_whole(bags, spec, tmp_path):
    options = DatasetOptions(formats=("lerobot", "lerobot21"), media="none")
    out = export(bags[1:], spec, tmp_path / "out", options).out
    (out / "other").mkdir()
    checked = validate(out)
    assert [findings.title for findings in checked] == ["LeRobot v3.0", "LeRobot v2.1"]
    assert all(findings.found == [] for findings in checked)
    assert checked[-1].unchecked[-1] == "other: not a dataset of a known format"


def test_the_exit_code_is_1_if_anything_is_wrong(made, tmp_path, capsys):
    out = made("none").out
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(out)])
    assert ended.value.code == 0
    assert "nothing wrong found; checked" in capsys.readouterr().out
    written(tmp_path, '{"codebase_version": "v3.0"}', "meta/info.json")
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(tmp_path), "--json"])
    assert ended.value.code == 1
    document = json.loads(capsys.readouterr().out)
    (reported,) = document["datasets"]
    assert (document["command"], document["exit_code"], len(document["errors"])) == ("validate", 1, 1)
    assert reported["findings"] == [{"where": "meta/info.json", "what": "fps is None; it must be a positive number"}]


@pytest.mark.parametrize(
    ("format_", "title"), [("lerobot", "LeRobot v3.0"), ("delta", "Delta Lake tables of ticks and episodes")]
)
def test_a_recording_that_was_changed_after_the_export(format_, title, bags, spec, tmp_path):
    bag = Path(shutil.copytree(bags[1], tmp_path / "bag"))
    out = export([bag], spec, tmp_path / "out", DatasetOptions(formats=(format_,), media="none")).out
    (findings,) = validate(out, recordings=True)
    assert findings.title == title
    assert (findings.found, findings.counted["files of recordings"]) == ([], 1)
    (file,) = bag.glob("*.mcap")
    with file.open("ab") as opened:
        opened.write(b"more")
    (findings,) = validate(out, recordings=True)
    assert [finding.what for finding in findings.found] == [f"{file.name}: was changed after the export"]
    shutil.rmtree(bag)
    (findings,) = validate(out, recordings=True)
    assert findings.unchecked[-1].endswith("is not on this machine")


def test_what_is_not_a_dataset_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RoboCacheError, match=r"does not exist|not a dataset that can be validated"):
            validate(path)


def test_the_number_of_findings_is_bounded(tmp_path):
    findings = Findings(tmp_path, "")
    for number in range(MAX_FINDINGS + 7):
        findings.add(f"file {number}", "is\nwrong")
    assert (len(findings.found), findings.more) == (MAX_FINDINGS, 7)
    assert str(findings.found[0]) == "file 0: is\\nwrong"


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda findings: findings.add("other.txt", "is empty"), "other.txt: is empty"),
        (lambda findings: {}["shape"], "cannot be read further (KeyError: 'shape')"),
    ],
)
def test_a_format_of_another_package_brings_its_validator_whose_errors_are_findings(check, text, tmp_path, monkeypatch):
    validator = SimpleNamespace(title="other", recognizes=lambda dataset: (dataset / "other.txt").exists(), check=check)
    point = SimpleNamespace(name="other", value="other:FORMAT", load=lambda: SimpleNamespace(validator=validator))
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.syspath_prepend(tmp_path)  # entry points are looked for again
    (tmp_path / "other.txt").touch()
    (findings,) = validate(tmp_path)
    assert [str(finding).endswith(text) for finding in findings.found] == [True]


def npy(values: Any, save: Callable[..., None] = np.save) -> bytes:
    file = io.BytesIO()
    save(file, values)
    return file.getvalue()


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


HUGE = io.BytesIO()  # the header of an array without its values
np.lib.format.write_array_header_1_0(HUGE, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
NPZ = npy(np.arange(1000), np.savez_compressed)


@pytest.mark.parametrize(
    ("member", "data", "expected"),
    [
        ("0.state.npy", HUGE.getvalue(), "cannot be read (float64 (1000000000000,) in 128 bytes)"),
        ("0.depth.npz", NPZ[:60] + b"\xff" * 240 + NPZ[300:], "cannot be read (Error -3 while decompressing data"),
    ],
)
def test_a_damaged_array_is_a_finding_and_the_next_members_are_read(member, data, expected, tmp_path):
    tar(tmp_path / "a.tar", {member: data, "0.meta.json": b"{"})
    damaged, next_member = (str(finding) for finding in validate(tmp_path / "a.tar")[0].found)
    assert damaged.startswith(f"a.tar, {member}: {expected}")
    assert next_member.startswith("a.tar, 0.meta.json: cannot be read")


VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"


def test_damage_within_a_video_is_found_by_decoding(copy):
    dataset = copy("video")
    with (dataset / VIDEO).open("r+b") as file:
        file.seek((dataset / VIDEO).stat().st_size // 2)
        file.write(bytes(2000))
    assert found(dataset) == []
    assert any(text.startswith(VIDEO) for text in found(dataset, decode=True))


def test_an_altered_and_a_missing_file_by_the_checksums(made, tmp_path):
    dataset = Path(shutil.copytree(made("none").out, tmp_path / "set"))
    assert found(dataset) == []
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dataset, check=True)
    (dataset / "meta/info.json").write_bytes((dataset / "meta/info.json").read_bytes() + b"\n")
    assert found(dataset) == ["meta/info.json: its checksum is not that in SHA256SUMS: the file was changed"]
    (dataset / "meta/robocache.json").unlink()
    assert "meta/robocache.json: is missing; it is in SHA256SUMS" in found(dataset)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"codebase_version": "v3.0", "fps": 0, "features": {}}', "{"])
def test_an_unusable_info_is_one_line(copy, text):
    dataset = copy("none")
    (dataset / "meta/info.json").write_text(text)
    if '"v3.0"' in text:
        (line,) = found(dataset)
        assert line.startswith("meta/info.json: fps is 0")
    else:
        with pytest.raises(RoboCacheError, match="not a dataset that can be validated"):
            validate(dataset)


def test_large_robomimic_arrays_are_read_in_parts(exported, tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    dataset = without_checksums(exported("robomimic"), tmp_path / "set")
    with h5py.File(dataset / "dataset.hdf5", "r+") as file:
        for name in ("obs", "next_obs"):
            file[f"data/demo_0/{name}/state"][4 if name == "obs" else 3, 1] = np.nan
    name = "data/demo_0/obs/state"
    for array_bytes, lines in (
        (4000, [f"{name}: NaN or infinite in 1 rows, the first is row 4"]),  # some rows of an image
        (2 * 12, [f"{name}, from row 4: NaN or infinite in 1 rows, the first is row 0"]),  # two rows of obs/state
    ):
        monkeypatch.setattr(check, "ARRAY_BYTES", array_bytes)
        assert [text for text in found(dataset) if text.startswith(name)] == lines
    monkeypatch.setattr(check, "ARRAY_BYTES", 9)
    assert "data/demo_1/obs/state: a row has more than 0 MiB" in validate(dataset)[0].unchecked


@pytest.mark.parametrize("samples", ["000001_000003", "000001_.*"], ids=["one sample", "an episode"])
def test_samples_without_a_stream_are_reported_as_that_alone(samples, exported, tmp_path):
    dataset = without_checksums(exported("webdataset"), tmp_path / "set")
    meta(pop_at("valid", "state"), samples)(dataset)
    lines = [line for line in found(dataset) if not line.startswith("stats.json")]  # they are not in its numbers
    assert {line.partition(": ")[2] for line in lines} == {"valid: 7 names; the spec has 8"}


def test_a_compression_that_is_not_known_is_not_checked(exported, tmp_path):
    dataset = without_checksums(exported("diffusion_policy"), tmp_path / "set")
    path = dataset / "replay_buffer.zarr/data/state/.zarray"
    path.write_text(path.read_text().replace('"zstd"', '"blosc"'))
    (findings,) = validate(dataset)
    assert ["are not known" in str(finding) for finding in findings.found] == [True]  # for the statistics
    assert "values with the compression blosc" in findings.unchecked


def test_a_stamp_of_0_is_a_sample_only_if_the_clock_starts_at_0():
    valid = np.array([0, 1, 1], np.uint8)
    from_0, since_1970 = np.array([0, 0, 10**9]), np.array([0, 0, 1_760_000_000 * 10**9])
    assert stamps_disagree(from_0, valid).tolist() == [False, False, False]
    assert stamps_disagree(since_1970, valid).tolist() == [False, True, False]
    assert stamps_disagree(np.array([1, 1, 1]), valid).tolist() == [True, False, False]


# Datasets of other tools, which have no provenance.


PNG = picture(0)


def in_tar(**changed: bytes) -> Callable[[Path], object]:
    """Writes three samples with changed members, whose names have `_` for `.`."""
    members = {f"_00000{k}_{name}": data for k in range(3) for name, data in (("state_npy", npy([0.0])), ("png", PNG))}

    def write(dataset: Path) -> None:
        dataset.mkdir(exist_ok=True)
        found = {name.lstrip("_").replace("_", "."): data for name, data in (members | changed).items()}
        tar(dataset / "train-000000.tar", found)

    return write


lift = partial(hdf5, name="lift.hdf5")
RECORDS = "bridge-train.tfrecord-00000-of-00001"
OTHERS: dict[str, Callable[[Path], object]] = {"rlds": write_rlds, "robomimic": write_robomimic, "webdataset": in_tar()}
LISTED = {"shards": [{"name": "train-000000.tar", "samples": 4}, {"name": "train-000001.tar", "samples": 1}]}


@pytest.mark.parametrize(
    ("dataset", "damage", "texts"),
    [
        ("rlds", lambda _: None, []),
        ("rlds", lambda d: (d / RECORDS).write_bytes((d / RECORDS).read_bytes().replace(b"lift", b"left", 1)),
         [f"{RECORDS}: record 0: its checksum is wrong"]),
        ("rlds", cut_off(RECORDS), [RECORDS]),
        ("rlds", lambda d: (d / RECORDS).rename(d / "bridge-val.tfrecord-00000-of-00001"),
         [f"{RECORDS}: is missing", "no split of dataset_info.json has this file"]),
        ("robomimic", lift(lambda f: f["data/demo_0/actions"].write_direct(np.full((6, 3), 0.5))),
         ["data/demo_1/actions: "]),  # beyond 1
        ("robomimic", lift(lambda f: f["data"].attrs.update(total=99)), ["data: total is 99; the demonstrations"]),
        ("robomimic", lift(lambda f: f["data/demo_0"].attrs.update(num_samples=7)), ["rows; num_samples is 7"]),
        ("robomimic", lift(lambda f: f["data/demo_1/obs"].pop("front_image")), ["is in demo_0 and not in demo_1"]),
        ("robomimic", cut_off("lift.hdf5"), ["lift.hdf5: it ends early"]),
        ("webdataset", lambda _: None, []),
        ("webdataset", in_tar(_000001_state_npy=npy([np.inf])), ["000001.state.npy: NaN or infinite"]),
        ("webdataset", in_tar(_000001_png=b"no image"), ["000001.png: cannot be read"]),
        ("webdataset", in_tar(_000003_png=PNG), ["sample 000003 has other fields than the first: state.npy"]),
        ("webdataset", in_tar(_000003_state_npy=npy(0.0), _000000_left_png=PNG), ["000000 are not adjacent"]),
        ("webdataset", in_tar(_000002_state_npy=npy(np.array([{}], object))), ["000002.state.npy: cannot be read"]),
        ("webdataset", cut_off("train-000000.tar"), ["train-000000.tar"]),
        ("webdataset", lambda d: (d / "dataset.json").write_text(json.dumps({**LISTED, "episodes": [{"samples": 5}]})),
         ["train-000000.tar: 3 samples; dataset.json says 4", "train-000001.tar: is missing; it is in dataset.json"]),
    ],
)  # fmt: skip
def test_a_dataset_of_another_tool_is_checked(dataset, damage, texts, tmp_path):
    OTHERS[dataset](tmp_path / "set")
    damage(tmp_path / "set")
    lines = found(tmp_path / "set", decode=True)
    assert [text for text in texts if not any(text in line for line in lines)] == []
    assert texts or [line for line in lines if "numBytes is 0" not in line] == []  # which the writer does not state


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        # It really is so: the file holds two demonstrations, one with cameras.
        ("robomimic_lift/lift_two_demos.hdf5", 4, "image: is in demo_0 and not in demo_1"),
        # The file of one split is missing, and the episodes are cut off before their last step.
        ("rlds_bridge", 26, "is_last is true at steps []|train.tfrecord-00000-of-00001: is missing"),
        ("lerobot_v30_so101", 0, ""),
    ],
)
def test_the_findings_in_real_datasets_are_so(name, count, text, real):
    (findings,) = validate(real / name, decode=True)
    lines = [str(finding) for finding in findings.found]
    assert len(lines) == count
    assert all(any(part in line for part in text.split("|")) for line in lines)
    if not count:
        assert findings.counted["video frames"] == findings.counted["rows"] == 1782
        assert any("checksums" in text for text in findings.unchecked)
