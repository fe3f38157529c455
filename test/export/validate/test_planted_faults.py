"""The validation finds each of the planted faults, but for those that a dataset cannot reveal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.formats.registry import WRITERS
from robocache_ros.formats.validate import validate
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.sensor_recording import sensor_recording, sensor_spec
from test.export.validate.conftest import without_checksums
from test.export.validate.planted_faults import FAULTS, ROWS

from ..readers import sensor_recording as sensor_recording_module

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "validate_a_dataset.md"
SECTION = "## What a dataset cannot reveal"
LIBRARIES = {"robomimic": "h5py", "rlds": "google_crc32c", "delta": "deltalake"}
STORED = tuple(dict.fromkeys(fault.format for fault in FAULTS))  # a format, and how its images are stored
FEW = ("lerobot", "lerobot image", "lerobot21", "rlds", "mcap")  # of them are damaged where tests are not slow


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Three episodes with three tasks in each format, made once."""
    folder = tmp_path_factory.mktemp("planted")
    recordings = [sensor_recording(folder / f"recording_{seed}", seed, ROWS / 50) for seed in range(3)]
    options = DatasetOptions(task_topic="/task", robot_type="arm")
    made: dict[str, Path] = {}

    def dataset(stored: str) -> Path:
        name, _, media = stored.partition(" ")
        if media not in made:
            formats = tuple(name for name in WRITERS if find_spec(LIBRARIES.get(name, "pyarrow")))
            chosen = replace(options, formats=formats if not media else (name, "lerobot21"), media=media or "video")
            out = export(recordings, sensor_spec(outcomes=True), folder / f"out {media}", chosen, report=False).out
            made[media] = out
        if not (made[media] / name).is_dir():
            pytest.skip(f"{LIBRARIES[name]} is not installed")
        return made[media] / name

    return dataset


@pytest.mark.parametrize("stored", STORED)
def test_nothing_is_found_without_a_fault(stored: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    (findings,) = validate(without_checksums(exported(stored), tmp_path / "set"), decode=True)
    assert findings.found == []


@pytest.mark.parametrize(
    ("actions", "options"),
    [
        (False, DatasetOptions(task="lift")),
        (False, DatasetOptions(action="next-delta", action_offset=2)),
        (True, DatasetOptions(action_offset=3)),
        (True, DatasetOptions(visibility="deployed", on_invalid="mask", media="none", split_s=0.2)),
    ],
)
def test_nothing_is_found_whatever_the_actions_are(actions: bool, options: DatasetOptions, tmp_path: Path) -> None:
    spec = sensor_spec(actions=actions)
    changed: dict[str, dict[str, Any]] = {
        "state": {"name": "state_with_the_name_" + "of_its_topic_" * 4},
        "force": {"latency_ms": 3},
        "color": {"latency_ms": 7},
        "depth": {"align": "nearest"},
    }
    spec = replace(spec, streams=tuple(replace(s, **changed.get(s.name, {})) for s in spec.streams))
    formats = tuple(name for name in WRITERS if find_spec(LIBRARIES.get(name, "pyarrow")))
    recording = sensor_recording(tmp_path / "recording", 0, 0.6)
    out = export([recording], spec, tmp_path / "out", replace(options, formats=formats), report=False).out
    assert {str(finding) for findings in validate(out, decode=True) for finding in findings.found} == set()


@pytest.mark.parametrize("media", ["video", "image"])
def test_nothing_is_found_if_the_clock_starts_at_0(media: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensor_recording_module, "START_NS", 0)
    formats = tuple(name for name in WRITERS if find_spec(LIBRARIES.get(name, "pyarrow")))
    recording = sensor_recording(tmp_path / "recording", 0, 0.6)
    out = export([recording], sensor_spec(), tmp_path / "out", DatasetOptions(formats=formats, media=media)).out
    assert {str(finding) for findings in validate(out, decode=True) for finding in findings.found} == set()


@pytest.mark.parametrize("stored", [s if s in FEW else pytest.param(s, marks=pytest.mark.slow) for s in STORED])
def test_each_fault_that_the_dataset_reveals_is_found(
    stored: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    missed = {}
    for fault in [fault for fault in FAULTS if fault.format == stored]:
        dataset = without_checksums(exported(stored), tmp_path / "set")
        fault.plant(dataset)
        (findings,) = validate(dataset, decode=fault.decode)
        texts = [str(finding) for finding in findings.found]
        wanted = fault.finds.split("|")
        right = any(part in text for part in wanted for text in texts) if fault.finds else not texts
        if not right:
            missed[fault.name] = texts[:3]
        shutil.rmtree(dataset)
    assert missed == {}


def test_the_page_lists_what_a_dataset_cannot_reveal() -> None:
    text = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^- `([a-z_0-9]+)`: (.+?)\.$", re.sub(r"\n  ", " ", text), re.MULTILINE))
    hidden: dict[str, list[str]] = {}
    for fault in FAULTS:
        if not fault.finds:
            hidden.setdefault(fault.format, []).append(fault.name)
    assert listed == {stored: "; ".join(names) for stored, names in hidden.items()}


def test_there_are_120_kinds_of_faults() -> None:
    assert len({(fault.format, fault.name) for fault in FAULTS}) == len(FAULTS) >= 120
