"""Delta Lake tables that were appended to, compacted or damaged, as datasets."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.datasets import DatasetError, TimelineDataset, open_dataset
from robocache_ros.formats.delta.log import append_dataset
from test.export.delta_tables import deltalake, small_dataset

EVERYTHING = ("vision", "proprio", "language", "depth")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("made")
    return [small_dataset(folder, seed) for seed in range(3)]


@pytest.fixture
def grown(made: list[Path], tmp_path: Path) -> Path:
    """A dataset of three appends."""
    for each in made:
        append_dataset(Path(shutil.copytree(each, tmp_path / "new")), tmp_path / "grown")
        shutil.rmtree(tmp_path / "new")
    return tmp_path / "grown"


def opened(path: Path, **options: int) -> TimelineDataset:
    return open_dataset("delta", path, modalities=EVERYTHING, **options)


def assert_equal(dataset: TimelineDataset, others: list[TimelineDataset]) -> None:
    """Compare the episodes with those of other datasets, one after the other."""
    samples = [other[index] for other in others for index in range(len(other))]
    assert len(dataset) == len(samples)
    for index, sample in enumerate(samples):
        found = dataset[index]
        assert found.keys() == sample.keys()
        for key, value in sample.items():
            assert np.array_equal(found[key], value)


def test_appended_episodes_are_read_as_before(grown: Path, made: list[Path]) -> None:
    assert_equal(opened(grown), [opened(each) for each in made])


def test_an_older_version_has_the_episodes_of_then(grown: Path, made: list[Path]) -> None:
    assert_equal(opened(grown, version=4), [opened(each) for each in made[:2]])  # two versions for each append


def test_compacted_tables_are_read(grown: Path, made: list[Path]) -> None:
    for name in ("ticks", "episodes"):
        deltalake.DeltaTable(grown / name).optimize.compact()
        deltalake.DeltaTable(grown / name).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    assert len(list(grown.glob("ticks/*/*.parquet"))) == 1
    assert_equal(opened(grown), [opened(each) for each in made])


def test_a_pickled_dataset_is_read(made: list[Path]) -> None:
    dataset = opened(made[0])

    assert_equal(pickle.loads(pickle.dumps(dataset)), [dataset])


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no Delta Lake dataset is read"):
        opened(tmp_path)


def read_all(path: Path) -> None:
    dataset = opened(path)
    for index in range(len(dataset)):
        dataset[index]


@pytest.mark.parametrize("pattern", ["ticks/*/*.parquet", "appends/*/images/color/*/*.parquet"])
def test_a_missing_file_is_named(pattern: str, grown: Path) -> None:
    missing = next(grown.glob(pattern))
    missing.unlink()

    with pytest.raises(DatasetError, match=f"{missing.name[-12:]}: not there"):
        read_all(grown)


def test_a_damaged_image_is_named(grown: Path) -> None:
    path = next(grown.glob("appends/*/images/color/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(DatasetError, match=r"file-000.parquet: damaged"):
        read_all(grown)
