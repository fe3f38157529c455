from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.datasets import DatasetError, RTXDataset, TimelineLoader, Window, dataset_statistics, open_dataset
from robocache_ros.errors import RoboCacheError
from test import forked
from test.datasets.small import episode, write_robomimic, write_tfds


@pytest.fixture
def folder(tmp_path) -> Path:
    """A dataset of one episode."""
    return write_tfds(tmp_path / "d", [episode(3)])


def stored(folder: Path) -> list[Path]:
    return list(folder.glob("robocache_statistics_*.json"))


def test_statistics_are_those_of_all_ticks(tmp_path):
    dataset = RTXDataset(write_tfds(tmp_path / "d", [episode(3), episode(4, 7.0)]))
    found = dataset_statistics(dataset)
    for key in ("proprio", "actions"):
        values = np.concatenate([dataset[k][key].numpy() for k in range(2)]).astype(np.float64)
        assert np.allclose(found[key]["mean"], values.mean(axis=0), rtol=1e-12)  # sums in another order
        assert np.allclose(found[key]["std"], values.std(axis=0), rtol=1e-12)
        assert found[key]["max"] == values.max(axis=0).tolist()
        assert found[key]["count"] == [len(values)]


def test_statistics_are_read_again_also_after_their_source_has_moved_and_replaced_if_damaged(folder, monkeypatch):
    first = dataset_statistics(RTXDataset(folder))
    (file,) = stored(folder)
    whole = file.read_text()
    file.write_text(whole.replace('"count": [', '"count": [1'))
    monkeypatch.setattr(type(RTXDataset(folder).source), "__module__", "robocache_ros.elsewhere")
    again = dataset_statistics(RTXDataset(folder, window=Window()))
    assert again["proprio"]["count"] == [int(f"1{first['proprio']['count'][0]}")]
    file.write_text(whole[:-9])
    assert dataset_statistics(RTXDataset(folder)) == first == json.loads(file.read_text())
    assert stored(folder) == [file]


@pytest.mark.parametrize("options", [{"target_hz": 40}, {"align": {"proprio": "hold"}}, {}], ids=str)
def test_statistics_are_computed_again_after_a_change(options, folder):
    dataset_statistics(RTXDataset(folder))
    if not options:
        os.utime(next(folder.glob("*.tfrecord*")), ns=(0, 0))
    dataset_statistics(RTXDataset(folder, **options))
    assert len(stored(folder)) == 2


def test_masks_of_a_file_have_statistics_of_their_own(tmp_path):
    path = write_robomimic(tmp_path, masks={"train": (0,), "valid": (1,)})
    first, second = (open_dataset("robomimic", path, mask=mask) for mask in ("train", "valid"))
    assert dataset_statistics(first)["actions"] != dataset_statistics(second)["actions"]


def test_a_folder_that_cannot_be_written_is_a_warning(folder, tmp_path):
    with pytest.warns(UserWarning, match="statistics are not stored"):
        assert dataset_statistics(RTXDataset(folder), tmp_path / "missing")["proprio"]["count"] == [21]


def test_a_dataset_that_cannot_be_written_has_its_statistics_in_the_cache(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_CACHE_DIR", str(tmp_path / "cache"))
    first = dataset_statistics(RTXDataset(folder))
    (file,) = stored(folder)
    file.unlink()
    file.mkdir()  # also root cannot write a file of this name
    again = dataset_statistics(RTXDataset(folder))
    assert again == first == json.loads((tmp_path / "cache" / "statistics" / file.name).read_text())


def test_the_number_of_processes_does_not_change_a_bit(tmp_path):
    episodes = [episode(2 + k % 3, 0.1 * k) for k in range(11)]
    dataset = RTXDataset(write_tfds(tmp_path / "d", episodes, shards=3))
    found = []
    for workers in (0, 2):
        (tmp_path / str(workers)).mkdir()
        found.append(dataset_statistics(dataset, tmp_path / str(workers), workers=workers))
    assert found[0] == found[1]


INTERRUPTED = """
import os, sys, threading
from robocache_ros.datasets import TimelineDataset, dataset_statistics
from robocache_ros.programs import run

class Waiting:
    def __len__(self):
        return 100

    def read(self, index):
        os.write(1, b"%d\\n" % os.getpid())
        threading.Event().wait()

if __name__ == "__main__":
    sys.exit(run("statistics", lambda: dataset_statistics(TimelineDataset(Waiting(), target_hz=50), workers=3)))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_an_ended_process_leaves_none_running(tmp_path, number):
    script = tmp_path / "statistics_of_waiting.py"
    script.write_text(INTERRUPTED)
    with forked.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as started:
        assert started.stdout
        reading = [int(started.stdout.readline()) for _ in range(3)]
        (os.killpg if number == signal.SIGINT else os.kill)(started.pid, number)
        _, errors = started.communicate(timeout=120)  # the end of the output: none of the processes has it open
    if number == signal.SIGINT:
        assert (started.returncode, errors) == (130, "")
        for pid in reading:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_invalid_ticks_do_not_count(exported):
    dataset = open_dataset("lerobot", exported("image") / "lerobot", modalities=("proprio",))
    parts, masks = [], []
    for index in range(len(dataset)):
        sample, streams = dataset[index], dataset.streams_of(index).streams.values()
        widths = [s.values.shape[1] if s.role == "observation" else 0 for s in streams]
        parts.append(sample["proprio"].numpy().astype(np.float64))
        masks.append(np.repeat(sample["valid"].numpy() > 0, widths, axis=1))
    values, valid = np.concatenate(parts), np.concatenate(masks)
    found = dataset_statistics(dataset, exported("image"))["proprio"]
    for column in range(values.shape[1]):
        kept = values[valid[:, column], column]
        assert found["max"][column] == kept.max()
        assert found["q01"][column] == pytest.approx(np.quantile(kept, 0.01), rel=1e-12)  # in another order
        assert found["q99"][column] == pytest.approx(np.quantile(kept, 0.99), rel=1e-12)
        assert found["mean"][column] == pytest.approx(kept.mean(), rel=1e-9, abs=1e-12)  # sums in another order


def test_episodes_that_cannot_be_read_are_left_out_and_stated(tmp_path):
    nan = episode(3)
    nan["observation/state"][1, 0] = np.nan
    dataset = RTXDataset(write_tfds(tmp_path / "d", [episode(3), nan]))
    separate = RTXDataset(write_tfds(tmp_path / "e", [episode(3)]))
    with pytest.raises(DatasetError, match=r"record 1: .* not finite"):
        dataset_statistics(dataset)
    with pytest.warns(UserWarning, match=r"statistics: without 1 episodes that cannot be read, the first: .*record 1"):
        found = dataset_statistics(dataset, on_error="skip")
    assert found == dataset_statistics(separate)


def test_a_loader_normalises_by_the_statistics_of_its_dataset(tmp_path):
    dataset = RTXDataset(write_tfds(tmp_path / "d", [episode(5), episode(4, 7.0)]))
    batches = list(TimelineLoader(dataset, 1, statistics="auto"))
    for key in ("proprio", "actions"):
        values = np.concatenate([batch[key][0] for batch in batches])
        assert np.allclose(values.mean(axis=0), 0, atol=1e-5)  # float32
        assert np.allclose(values.std(axis=0), 1, atol=1e-5)
    assert len(stored(tmp_path / "d")) == 1


def test_other_words_for_statistics_are_refused(folder):
    with pytest.raises(RoboCacheError, match="statistics: 'all' for a RTXDataset; 'auto' is for"):
        TimelineLoader(RTXDataset(folder), 1, statistics="all")
