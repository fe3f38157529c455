"""The synthetic dataset in every format, and the benchmark that reads them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import formats as batch_rates
from benchmarks import formats as bench
from benchmarks.__main__ import main as command
from benchmarks.episodes import mixed_rate_dataset
from benchmarks.formats import PEERS, READ, MeasuredLoaders
from benchmarks.loading import datasets
from benchmarks.make_data import DEFAULT, EXPORTED, make_sets
from benchmarks.training.measured import Row
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


def opened(name: str, path: Path) -> Any:
    if name == "diffusion_policy":
        pytest.importorskip("zarr")
    return open_for_training(path, file_format=name, rate_hz=30 if name == "calvin" else 50, window=WINDOW)


@pytest.mark.parametrize("name", [name for name in EXPORTED if name != "diffusion_policy"])
def test_an_export_has_the_values_of_the_streams(name: str, sets: dict[str, Path]) -> None:
    ours, original = opened(name, sets[name]), mixed_rate_dataset(sets["hdf5"], WINDOW)

    found, expected = ours[20], original[20]

    # Recordings begin at another time, so that the first tick may be another one; it is found by its values.
    shifts = [np.abs(found["proprio"].numpy() - original[k]["proprio"].numpy()).max() for k in range(17, 24)]
    assert min(shifts) < 1e-5  # weights of the same times, which are rounded to float32
    assert found["actions"].shape == expected["actions"].shape
    assert found["language"] == "follow the wave"


def test_the_trajectories_have_their_actions_without_roles(sets: dict[str, Path]) -> None:
    assert opened("hdf5", sets["hdf5"])[0]["actions"].shape == (4, 7)


def test_calvin_has_the_narrow_streams_at_its_rate(sets: dict[str, Path]) -> None:
    calvin, original = opened("calvin", sets["calvin"]), mixed_rate_dataset(sets["hdf5"], WINDOW)
    original.rate_hz = 30

    found, expected = calvin[20]["proprio"], original[20]["proprio"]

    assert found.shape == (2, 15)
    assert found[:, :14].equal(expected[:, 256:])
    assert len(calvin) == len(original)


def test_a_tfds_dataset_is_converted_with_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "RLDS_STEPS", 4)
    tfds = datasets.rlds(tmp_path / "tfds", episodes=2, shards=1)

    paths = make_sets(tmp_path / "new", (), episodes=1, bridge=tfds)

    episode = Hdf5Trajectories(paths["bridge"]).read(0)
    assert {name: stream.values.shape for name, stream in episode.streams.items()} == {
        "actions": (4, 7),
        "proprio": (4, 7),
        "vision/image": (4, 256, 256, 3),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": ("parquet",)}, "format: 'parquet' is not one of hdf5, calvin, lerobot"),
        ({"episodes": 0}, "episodes: 0 is not in 1..100,000"),
        ({"seed": -1}, "seed: -1 is not in 0"),
        ({"bridge": Path("/nowhere")}, "/nowhere: not a folder; give the folder of a dataset"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match=message):
        make_sets(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
    with pytest.raises(RoboCacheError, match="exists; give a new folder"):
        make_sets(tmp_path)
    with pytest.raises(RoboCacheError, match="No such file or directory; give another folder"):
        make_sets(Path("/proc/none/new"))


def test_the_command_lists_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command(["make-data", str(tmp_path / "new"), "--format", "hdf5", "--episodes", "1"])

    assert capsys.readouterr().out == f"hdf5: {tmp_path / 'new' / 'trajectories.hdf5'}\n"


def test_a_quick_run_measures_every_format(tmp_path: Path) -> None:
    assert bench.main(["--quick", "--out", str(tmp_path)]) == 0

    rows = json.loads((tmp_path / "formats.json").read_text())["rows"]
    assert {row["part"].partition(",")[0] for row in rows} == set(DEFAULT)
    assert all(row["value"] > 0 for row in rows)
    assert "| batch 16, DataLoader, 8 workers, np.interp |" in (tmp_path / "formats.md").read_text()


class Loaders:
    """Sources of batches that are empty."""

    def __init__(self) -> None:
        self.workers: dict[str, int] = defaultdict(int)
        self.asked: list[tuple[str, str, int]] = []
        self.ended = 0

    def start(self) -> None:
        pass

    def rest(self, *case: Any, last: bool) -> None:
        self.ended += last

    def batches(self, *case: Any) -> Iterator[None]:
        self.asked.append(case)
        return repeat(None)


def measured(loaders: Any, load: bench.Load = bench.QUICK) -> dict[bench.Case, Row]:
    order = bench.cases(("hdf5", "rlds"), bench.BATCHES)
    return dict(bench.measured(order, loaders, load, torch.device("cpu"), time.monotonic()))


def test_what_begins_too_late_is_left_out() -> None:
    rows = measured(Loaders(), bench.QUICK._replace(limit_s=-1.0))

    assert {row.note for row in rows.values()} == {"left out after -1 s"}


def test_batches_of_64_come_first_and_peers_after_the_formats() -> None:
    loaders = Loaders()

    measured(loaders)

    first, rest = loaders.asked[:6], loaders.asked[6:]
    assert first[:4] == [(name, form, 64) for name in ("hdf5", "rlds") for form in ("read", "cached")]
    assert [form in PEERS for _, form, _ in loaders.asked] == [False] * 4 + [True] * 2 + [False] * 8 + [True] * 4
    assert {size for *_, size in rest} == {16, 256}
    assert loaders.ended == 6  # each loader after its last size


def test_the_tables_have_the_order_of_the_sizes() -> None:
    names = [case.what for case in bench.cases(("rlds",), (16, 64))]

    assert names == ["batch 16, read", "batch 16, cached", "batch 64, read", "batch 64, cached"]


def test_a_set_that_cannot_be_read_fails_alone(sets: dict[str, Path]) -> None:
    with closing(MeasuredLoaders({"rlds": sets["hdf5"], "hdf5": sets["hdf5"]}, 0, torch.device("cpu"))) as loaders:
        rows = measured(loaders)

    assert {case.name: row.what == "failed" for case, row in rows.items()} == {"rlds": True, "hdf5": False}


def test_whole_waves_of_batches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr(batch_rates.time, "perf_counter", lambda: float(next(clock)))

    rate = batch_rates.measure(repeat(None), 5.0, 4, torch.device("cpu"))

    assert rate.batches_per_s == 1.0
    assert next(clock) == 1 + 8  # the begin, and two waves of four workers
    assert rate.batch_ms == (1000.0, 1000.0)


def test_a_loader_keeps_its_workers_when_the_size_of_its_batches_changes(sets: dict[str, Path]) -> None:
    with closing(MeasuredLoaders({"hdf5": sets["hdf5"]}, 1, torch.device("cpu"))) as loaders:
        loaders.start()
        pids = loaders.loader("hdf5", READ).worker_pids

        sizes = [len(next(loaders.batches("hdf5", READ, size))["index"]) for size in (8, 4)]

        assert sizes == [8, 4]
        assert loaders.loader("hdf5", READ).worker_pids == pids


def test_batches_of_another_size_follow_at_once(sets: dict[str, Path]) -> None:
    with closing(MeasuredLoaders({"hdf5": sets["hdf5"]}, 1, torch.device("cpu"))) as loaders:
        for size in (8, 4):
            assert {len(batch["index"]) for batch in islice(loaders.batches("hdf5", READ, size), 5)} == {size}
            loaders.rest("hdf5", READ, last=size == 4)
