from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.datasets import RoboMimicDataset, RTXDataset, Window, dataset_statistics
from test.datasets.conftest import STEPS, episode, write_tfds


def test_statistics_are_those_of_all_ticks(tmp_path: Path) -> None:
    dataset = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(3), episode(4, 7.0)]))

    found = dataset_statistics(dataset)

    for key in ("proprio", "actions"):
        values = np.concatenate([dataset[k][key].numpy() for k in range(2)]).astype(np.float64)
        assert np.allclose(found[key]["mean"], values.mean(axis=0), rtol=1e-12)  # sums in another order
        assert np.allclose(found[key]["std"], values.std(axis=0), rtol=1e-12)
        assert found[key]["max"] == values.max(axis=0).tolist()
        assert found[key]["count"] == [len(values)]


def test_statistics_are_read_the_second_time(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(3)])
    first = dataset_statistics(RTXDataset(folder))
    stored = list(folder.glob("robocache_statistics_*.json"))
    stored[0].write_text(stored[0].read_text().replace('"count": [', '"count": [1'))

    again = dataset_statistics(RTXDataset(folder, window=Window()))

    assert len(stored) == 1
    assert again["proprio"]["count"] == [int(f"1{first['proprio']['count'][0]}")]


@pytest.mark.parametrize("change", ["rate", "align", "file"])
def test_statistics_are_computed_again_after_a_change(change: str, tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(3)])
    dataset_statistics(RTXDataset(folder))
    if change == "file":
        file = next(folder.glob("*.tfrecord*"))
        os.utime(file, ns=(0, 0))

    dataset_statistics(
        RTXDataset(
            folder, target_hz=40 if change == "rate" else 50, align={"proprio": "hold"} if change == "align" else None
        )
    )

    assert len(list(folder.glob("robocache_statistics_*.json"))) == 2


def test_masks_of_a_file_have_statistics_of_their_own(real: Path, tmp_path: Path) -> None:
    path = tmp_path / "lift.hdf5"
    shutil.copyfile(real / "robomimic_lift" / "lift_two_demos.hdf5", path)

    found = [dataset_statistics(RoboMimicDataset(path, mask=mask))["actions"] for mask in ("train", "valid")]

    assert found[0] != found[1]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    dataset = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(3)]))

    with pytest.warns(UserWarning, match="statistics are not stored"):
        assert dataset_statistics(dataset, tmp_path / "missing")["proprio"]["count"] == [21]
