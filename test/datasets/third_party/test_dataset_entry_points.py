"""Dataset formats of other packages, found through their entry points."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from robocache_ros.datasets import DatasetError, open_dataset
from robocache_ros.formats.registry import READERS, known_readers

ENTRY_POINTS = """[robocache_ros.datasets]
one = one_episode_format:OneEpisode
empty = one_episode_format:not_a_source
broken = one_episode_format:NoSuchClass

[robocache_ros.formats]
written = one_episode_format:WRITTEN
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as pip installs it: the module, and what it declares."""
    declared = tmp_path / "site" / "one_episode_format-1.0.dist-info"
    declared.mkdir(parents=True)
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: one-episode-format\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(Path(__file__).with_name("one_episode_format.py"), tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("installed")
def test_a_format_of_another_package_is_aligned_to_the_timeline(tmp_path: Path) -> None:
    dataset = open_dataset("one", tmp_path, target_hz=20.0, steps=3)

    sample = dataset[0]

    assert sample["proprio"][:, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert sample["language"] == "lift"


@pytest.mark.usefixtures("installed")
def test_a_format_that_is_written_brings_its_reader(tmp_path: Path) -> None:
    assert len(open_dataset("written", tmp_path)) == 1


@pytest.mark.usefixtures("installed")
def test_known_formats_has_those_of_other_packages_last() -> None:
    assert known_readers() == (*READERS, "broken", "empty", "one", "written")


@pytest.mark.usefixtures("installed")
def test_a_format_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"format: broken of one_episode_format:NoSuchClass cannot be imported"):
        open_dataset("broken", tmp_path)


@pytest.mark.usefixtures("installed")
def test_what_is_not_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"format: empty returns list, not an EpisodeSource; reinstall it"):
        open_dataset("empty", tmp_path)


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"format: 'one' is not one of lerobot, .*mcap.* hdf5"):
        open_dataset("one", tmp_path)
