"""The synthetic dataset in every format, and the benchmark that reads them."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import formats as bench
from benchmarks.__main__ import main as command
from benchmarks.episodes import mixed_rate_dataset
from benchmarks.formats import MeasuredLoaders
from benchmarks.loading import datasets
from benchmarks.make_data import DEFAULT, EXPORTED, make_sets
from robocache_ros.datasets import Hdf5Trajectories, Window
from robocache_ros.errors import RoboCacheError
from robocache_ros.training.training_data import open_for_training

for module in ("h5py", "rosbags", "pyarrow"):
    pytest.importorskip(module)

WINDOW = Window(n_obs=2, horizon=4)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    formats = (*DEFAULT, "webdataset", "lerobot21", "diffusion_policy")
    return make_sets(tmp_path_factory.mktemp("sets") / "new", formats, episodes=2)


@pytest.mark.parametrize("name", [name for name in EXPORTED if name != "diffusion_policy"])
def test_an_export_has_the_values_of_the_streams(name, sets):
    rate_hz, original = 30 if name == "calvin" else 50, mixed_rate_dataset(sets["hdf5"], WINDOW)

    found = open_for_training(sets[name], file_format=name, rate_hz=rate_hz, window=WINDOW)[20]

    # Recordings begin at another time, so that the first tick may be another one; it is found by its values.
    shifts = [np.abs(found["proprio"].numpy() - original[k]["proprio"].numpy()).max() for k in range(17, 24)]
    assert min(shifts) < 1e-5  # weights of the same times, which are rounded to float32
    assert found["actions"].shape == original[20]["actions"].shape
    assert found["language"] == "follow the wave"


def test_a_tfds_dataset_is_converted_with_its_images(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "RLDS_STEPS", 4)
    tfds = datasets.rlds(tmp_path / "tfds", episodes=2, shards=1)

    paths = make_sets(tmp_path / "new", (), episodes=1, bridge=tfds)

    streams = Hdf5Trajectories(paths["bridge"]).read(0).streams
    shapes = {"actions": (4, 7), "proprio": (4, 7), "vision/image": (4, 256, 256, 3)}
    assert {name: stream.values.shape for name, stream in streams.items()} == shapes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": ("parquet",)}, "format: 'parquet' is not one of hdf5, calvin, lerobot"),
        ({"episodes": 0}, "episodes: 0 is not in 1..100,000"),
        ({"seed": -1}, "seed: -1 is not in 0"),
        ({"bridge": Path("/nowhere")}, "/nowhere: not a folder; give the folder of a dataset"),
    ],
)
def test_wrong_arguments_are_named(options, message, tmp_path):
    with pytest.raises(RoboCacheError, match=message):
        make_sets(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
    with pytest.raises(RoboCacheError, match="exists; give a new folder"):
        make_sets(tmp_path)
    with pytest.raises(RoboCacheError, match="No such file or directory; give another folder"):
        make_sets(Path("/proc/none/new"))


def test_the_command_lists_what_it_wrote(tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        command(["make-data", str(tmp_path / "new"), "--format", "hdf5", "--episodes", "1"])
    assert capsys.readouterr().out == f"hdf5: {tmp_path / 'new' / 'trajectories.hdf5'}\n"


def test_a_quick_run_measures_every_format(tmp_path):
    assert bench.main(["--quick", "--out", str(tmp_path)]) == 0

    rows = json.loads((tmp_path / "formats.json").read_text())["rows"]
    assert {row["part"].partition(",")[0] for row in rows} == set(DEFAULT)
    assert all(row["value"] > 0 for row in rows)
    assert "| batch 16, DataLoader, 8 workers, np.interp |" in (tmp_path / "formats.md").read_text()


@pytest.mark.slow
def test_a_set_that_cannot_be_read_fails_on_its_own(sets):
    order, device = bench.cases(("hdf5", "rlds"), bench.BATCHES), torch.device("cpu")
    with closing(MeasuredLoaders({"rlds": sets["hdf5"], "hdf5": sets["hdf5"]}, 0, device)) as loaders:
        rows = dict(bench.measured(order, loaders, bench.QUICK, device, time.monotonic()))
    assert {case.name: row.what == "failed" for case, row in rows.items()} == {"rlds": True, "hdf5": False}
