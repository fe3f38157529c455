"""Datasets at URLs are those of the local files."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from robocache_ros.datasets import CALVINDataset, DatasetError, RoboMimicDataset, dataset_statistics, open_dataset
from robocache_ros.datasets.public_datasets import dataset_path
from robocache_ros.storage.errors import RemoteError
from robocache_ros.storage.paths import RemotePath
from test import forked
from test.datasets.small import episode, loader_of, same, samples, write_calvin, write_tfds
from test.shared import served

fsspec = pytest.importorskip("fsspec", reason="needs the `remote` extra")

FORMATS = ("lerobot", "lerobot21", "rlds", "robomimic", "webdataset", "diffusion_policy", "mcap")


@pytest.fixture
def memory() -> Iterator[Callable[[Path], str]]:
    """Copies a folder to fsspec's file system in memory; returns its URL."""
    system = fsspec.filesystem("memory")

    def copied(folder: Path) -> str:
        system.put(str(folder), f"/{folder.name}", recursive=True)
        return f"memory://{folder.name}"

    yield copied
    system.rm("/", recursive=True)


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[Path, str]]:
    """A folder, and its URL on a server of this machine."""
    pytest.importorskip("aiohttp", reason="needs the `remote` extra")
    folder = tmp_path / "served"
    folder.mkdir()
    with served(folder) as url:
        yield folder, url


@pytest.mark.parametrize(
    ("name", "media"), [*((name, "image") for name in FORMATS), ("lerobot", "video"), ("lerobot21", "video")]
)
def test_every_export_is_read_from_a_url(name, media, exported, memory, tmp_path):
    options = {"obs_modality": "image"} if name == "robomimic" else {}
    path = exported(media) / name
    remote = open_dataset(name, memory(path), cache_dir=tmp_path, **options)
    assert same(samples(remote), samples(open_dataset(name, path, **options)))


def test_names_that_leave_a_dataset_at_a_url_are_refused(exported, memory, tmp_path):
    url = memory(exported("image") / "lerobot")
    path = f"{url.removeprefix('memory:/')}/meta/info.json"
    system = fsspec.filesystem("memory")
    info = json.loads(system.cat_file(path))
    for number, name in enumerate(("../other", "%2e%2e/other", "memory://other/data", "a::memory://other")):
        system.pipe_file(path, json.dumps({**info, "data_path": name}).encode())
        with pytest.raises(DatasetError, match="not in the folder of the dataset"):
            open_dataset("lerobot", f"{url}{'/' * number}", cache_dir=tmp_path / str(number))[0]


@pytest.mark.parametrize("steps", [None, 4], ids=["cached", "small cache"])
def test_calvin_is_read_from_a_url(steps, memory, tmp_path):
    split = write_calvin(tmp_path / "calvin" / "training")
    size = (split / "episode_0000000.npz").stat().st_size
    options = {"cache_bytes": steps * size} if steps else {}
    remote = CALVINDataset(memory(tmp_path / "calvin"), cache_dir=tmp_path / "cache", **options)
    assert same(samples(remote), samples(CALVINDataset(tmp_path / "calvin")))


def test_a_folder_of_several_datasets_is_read_from_a_url(memory, tmp_path):
    for name in ("bridge", "taco_play"):
        write_tfds(tmp_path / "rtx" / name / "1.0.0", [episode(4), episode(3)], name=name, shards=2)
    remote = open_dataset("rlds", memory(tmp_path / "rtx"), cache_dir=tmp_path / "cache")
    assert same(samples(remote), samples(open_dataset("rlds", tmp_path / "rtx")))


def test_tasks_of_robomimic_are_found_at_a_url(exported, memory, tmp_path):
    folder = tmp_path / "robomimic"
    folder.mkdir()
    (folder / "lift.hdf5").write_bytes((exported("none") / "robomimic" / "dataset.hdf5").read_bytes())
    remote = RoboMimicDataset(memory(folder), tasks=["lift"], cache_dir=tmp_path / "cache")
    assert same(samples(remote), samples(RoboMimicDataset(folder, tasks=["lift"])))


@pytest.mark.parametrize("name", ["lerobot", "rlds", "webdataset"])
def test_datasets_are_read_over_http(name, exported, server):
    path, (folder, url) = exported("image") / name, server
    (folder / name).symlink_to(path)
    remote = open_dataset(name, f"{url}/{name}", cache_dir=folder.parent / "cache")
    assert same(samples(remote), samples(open_dataset(name, path)))


def test_a_file_that_is_not_on_the_server_is_named(server):
    with pytest.raises(DatasetError, match=r"dataset\.json: not there"):
        open_dataset("webdataset", f"{server[1]}/nothing", cache_dir=server[0].parent / "cache")


def test_workers_share_the_cache(exported, tmp_path):
    path = exported("none") / "webdataset"
    remote = open_dataset("webdataset", f"file://{path}", cache_dir=tmp_path)
    batches = [list(loader_of(remote, 1, workers=workers)) for workers in (0, 2)]
    assert same(*batches)


def test_a_damaged_file_elsewhere_is_named_by_its_url(exported, memory, tmp_path):
    url = memory(exported("none") / "webdataset")
    dataset = open_dataset("webdataset", url, cache_dir=tmp_path)
    fsspec.filesystem("memory").rm("/webdataset/train-000000.tar")
    with pytest.raises(DatasetError, match=r"memory://webdataset/train-000000\.tar: not there"):
        dataset[0]


def test_a_file_system_that_cannot_be_reached_is_named(memory, tmp_path, monkeypatch):
    write_calvin(tmp_path / "training")
    url = memory(tmp_path / "training")
    refuses = Mock(side_effect=RuntimeError("no route to the host"))
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuses)
    with pytest.raises(RemoteError, match=r"memory://training.*: cannot read: no route to the host; check the network"):
        CALVINDataset(url, cache_dir=tmp_path / "cache")


def test_statistics_are_stored_in_the_cache(exported, memory, tmp_path):
    dataset = open_dataset("webdataset", memory(exported("none") / "webdataset"), cache_dir=tmp_path)
    first = dataset_statistics(dataset)
    assert len(list(tmp_path.glob("robocache_statistics_*.json"))) == 1
    assert dataset_statistics(dataset) == first


def test_a_remote_path_can_be_pickled(memory, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("text")
    path = dataset_path(memory(tmp_path / "a"), cache_dir=tmp_path / "cache") / "b.txt"
    again = pickle.loads(pickle.dumps(path))
    assert isinstance(again, RemotePath)
    assert again == path
    assert again.read_text() == "text"


def test_a_url_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(RemoteError, match=r"nothing://x: .*nothing"):
        open_dataset("webdataset", "nothing://x", cache_dir=tmp_path)


def test_local_datasets_do_not_import_fsspec(exported):
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from robocache_ros.formats.registry import open_source\n"
        f"assert len(open_source('webdataset', {str(exported('none') / 'webdataset')!r})) == 2"
    )
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
