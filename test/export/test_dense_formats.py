"""robomimic and Diffusion Policy datasets without their readers: bytes, refusals, full disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pyarrow
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import diffusion_policy as zarr
from robocache_ros.formats.diffusion_policy import write_array
from robocache_ros.formats.robomimic import validation_split
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROOT, contents
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

OPTIONS = DatasetOptions(formats=("robomimic", "diffusion_policy"))
HDF5, ZARR = "robomimic/dataset.hdf5", "diffusion_policy/replay_buffer.zarr"


@pytest.fixture(scope="module")
def sensors(tmp_path_factory) -> list[Path]:
    """Two recordings; in the second, the command and the depth camera are silent for a while."""
    folder = tmp_path_factory.mktemp("sensors")
    return [sensor_recording(folder / f"recording_{seed}", seed, seconds) for seed, seconds in ((0, 0.4), (1, 0.8))]


@pytest.fixture(scope="module")
def out(sensors, tmp_path_factory) -> Path:
    return export(sensors, sensor_spec(), tmp_path_factory.mktemp("dense") / "set", OPTIONS).out


def test_no_object_of_the_hdf5_file_stores_a_time_and_images_of_next_obs_take_no_space(out):
    found = []
    with h5py.File(out / HDF5) as file:
        file.visititems(lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
        assert found
        assert not any(h5py.h5g.get_objinfo(item.id).mtime for item in found)
        demo = file["data/demo_0"]
        assert demo["next_obs/color"].is_virtual
        assert demo["next_obs/color"].id.get_storage_size() == 0
        assert demo["obs/color"].id.get_storage_size() == demo["obs/color"].nbytes


def test_ticks_with_one_image_share_a_file_and_a_masked_image_has_none(out):
    color, depth = (list((out / ZARR / "data" / name).glob("[0-9]*")) for name in ("color", "depth"))
    assert len({os.stat(chunk).st_ino for chunk in color}) < 0.6 * len(color)  # 25 Hz on 50 Hz ticks
    assert 0 < len(depth) < len(color)


def test_media_none_leaves_images_out_and_keeps_depth(sensors, tmp_path):
    result = export(sensors, sensor_spec(), tmp_path / "set", replace(OPTIONS, media="none"))
    assert result.frames
    with h5py.File(result.out / HDF5) as file:
        names = set(file["data/demo_0/obs"])
    assert names == {path.name for path in (result.out / ZARR / "data").iterdir() if path.name in names}
    assert not names & {"color", "gray"}


def test_without_h5py_robomimic_names_the_extra(sensors, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(RoboCacheError, match=r"h5py: not installed .*robocache_ros\[hdf5\]"):
        export(sensors, sensor_spec(), tmp_path / "out", DatasetOptions(formats=("robomimic",)))


WRITE = """
import sys
from pathlib import Path
from robocache_ros.formats.robomimic import new_hdf5
try:
    with new_hdf5(Path(sys.argv[1])) as (file, check):
        for name in "abc":
            file[name] = list(range(100_000))
            check()
except OSError as error:
    print(error)
"""


@pytest.mark.slow
def test_an_hdf5_file_on_a_full_disk_is_closed_and_raises_the_error(tmp_path):
    limited = ["prlimit", f"--fsize={1 << 20}", sys.executable, "-c", WRITE, str(tmp_path / "file")]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"[Errno 27] File too large: '{tmp_path / 'file'}'\n"


@pytest.mark.parametrize(
    ("recordings", "valid"),
    [("a", []), ("aa", [1]), ("aab", [2]), ("abc", [1]), ("abcdefghij", [5]), ("aabbccddee", [4, 5])],
)
def test_the_validation_split_holds_out_whole_recordings(recordings, valid):
    split = validation_split([Path(name) for name in recordings])
    assert split.get("valid", []) == valid
    assert sorted(split["train"] + valid) == list(range(len(recordings)))


def test_without_hard_links_repeated_images_are_copies(sensors, out, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    copied = export(sensors, sensor_spec(), tmp_path / "set", OPTIONS).out
    assert contents(copied / ZARR / "data") == contents(out / ZARR / "data")


def test_chunks_of_numbers_have_two_megabytes_at_most_and_are_filled_up_with_zeros(tmp_path, monkeypatch):
    write_array(tmp_path / "b", 10_000_000, (100,), "float32", [])
    rows, width = json.loads((tmp_path / "b" / ".zarray").read_text())["chunks"]
    assert (width, rows) == (100, zarr.CHUNK_BYTES // 400)
    monkeypatch.setattr(zarr, "CHUNK_BYTES", 16)
    write_array(tmp_path / "a", 3, (), "int64", [np.array([5]), np.array([6, 7])])
    assert pyarrow.decompress((tmp_path / "a" / "1").read_bytes(), 16, "zstd") == np.array([7, 0], "<i8").tobytes()
