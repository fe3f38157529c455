"""Small datasets of robomimic and Diffusion Policy, written by hand and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import robomimic as check
from robocache_ros.formats.check import stamps_disagree
from robocache_ros.formats.validate import validate
from test.export.validate.conftest import found

ROWS = 6
ENV_ARGS = json.dumps({"env_name": "lift", "type": 2, "env_kwargs": {}})


@pytest.fixture
def robomimic(tmp_path: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "lift.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"], data.attrs["total"] = ENV_ARGS, 2 * ROWS
        for name in ("demo_0", "demo_1"):
            demo = data.create_group(name)
            demo.attrs["num_samples"] = ROWS
            state = np.arange(2 * ROWS, dtype=np.float64).reshape(ROWS, 2)
            demo["actions"] = np.linspace(-1, 1, ROWS)[:, None]
            demo["obs/state"], demo["next_obs/state"] = state, np.concatenate([state[1:], state[-1:]])
            demo["obs/front"] = np.zeros((ROWS, 4, 4, 3), np.uint8)
        file["mask/train"], file["mask/valid"] = np.array([b"demo_0"]), np.array([b"demo_1"])
    return path


def change(path: Path, name: str, **attributes: Any) -> Any:
    """Change attributes of a group or a dataset of an HDF5 file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        file[name].attrs.update(attributes)


def test_nothing_is_found_in_a_robomimic_file(robomimic: Path) -> None:
    assert found(robomimic, decode=True) == []


def test_robomimic_actions_beyond_1(robomimic: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(robomimic, "r+") as file:
        file["data/demo_1/actions"][2] = 1.5
    assert found(robomimic) == ["data/demo_1/actions: 1.5 is outside -1 to 1, which robomimic's policies predict"]


def test_large_robomimic_arrays_are_read_in_parts(robomimic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(robomimic, "r+") as file:
        file["data/demo_0/obs/state"][4, 1] = np.nan
    monkeypatch.setattr(check, "ARRAY_BYTES", 2 * 16)  # two rows of obs/state
    assert found(robomimic) == [
        "data/demo_0/obs/state, from row 4: NaN or infinite in 1 rows, the first is row 0",
    ]
    monkeypatch.setattr(check, "ARRAY_BYTES", 9)
    (findings,) = validate(robomimic)
    assert "data/demo_1/obs/state: a row has more than 0 MiB" in findings.unchecked


def test_robomimic_values_that_do_not_fit(robomimic: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(robomimic, "r+") as file:
        file["data/demo_0/obs/state"][1, 0] = np.nan
        del file["data/demo_1/obs/front"]
    texts = found(robomimic)
    assert "data/demo_0/obs/state: NaN or infinite in 1 rows, the first is row 1" in texts
    assert "data/demo_0/next_obs/state: is not obs of the next row in 1 rows, the first is row 0" in texts
    assert "obs/front: is in demo_0 and not in demo_1" in texts


def test_robomimic_lengths_and_masks(robomimic: Path) -> None:
    h5py = pytest.importorskip("h5py")
    change(robomimic, "data", total=99)
    change(robomimic, "data/demo_0", num_samples=ROWS + 1)
    with h5py.File(robomimic, "r+") as file:
        del file["mask/valid"]
        file["mask/valid"] = np.array([b"demo_0", b"demo_9"])
    texts = found(robomimic)
    assert f"data/demo_0/actions: ({ROWS},) rows; num_samples is {ROWS + 1}" in texts
    assert "data: total is 99; the demonstrations have 13 rows" in texts
    assert "mask/valid: names demo_9, which is missing" in texts
    assert "mask: 1 demonstrations are in train and in valid" in texts


def test_a_link_to_another_file_is_not_followed(robomimic: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(robomimic, "r+") as file:
        file["data/demo_0/obs/other"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "/data")
    (text,) = found(robomimic)
    assert "data/demo_0/obs/other is a link" in text


def test_a_truncated_hdf5_file_is_one_line(robomimic: Path) -> None:
    os.truncate(robomimic, robomimic.stat().st_size // 2)
    (text,) = found(robomimic)
    assert text.startswith("lift.hdf5: it ends early")


def test_a_robomimic_dataset_of_another_tool() -> None:
    pytest.importorskip("h5py")
    recordings = os.environ.get("ROBOCACHE_RECORDINGS")
    if not recordings:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    texts = found(Path(recordings) / "robomimic_lift" / "lift_two_demos.hdf5")
    # It really is so: the file holds two demonstrations, one with cameras.
    assert len(texts) == 4
    assert all("image: is in demo_0 and not in demo_1" in text for text in texts)


@pytest.fixture
def zarr(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for group in ("data", "meta"):
        (root / group).mkdir(parents=True)
        (root / group / ".zgroup").write_text('{"zarr_format": 2}')
    write_array(root / "meta/episode_ends", np.array([4, ROWS]), ROWS)
    write_array(root / "data/action", np.linspace(-1, 1, ROWS, dtype=np.float32)[:, None], 4)
    return root


def write_array(folder: Path, values: np.ndarray[Any, Any], rows: int, compressor: str = "zstd") -> None:
    """Write an array of Zarr format 2, in chunks of some rows."""
    folder.mkdir()
    metadata = {"zarr_format": 2, "shape": values.shape, "chunks": [rows, *values.shape[1:]], "dtype": values.dtype.str}
    metadata.update({"compressor": {"id": compressor}, "fill_value": 0, "order": "C", "filters": None})
    (folder / ".zarray").write_text(json.dumps(metadata))
    for number, start in enumerate(range(0, len(values), rows)):
        chunk = np.zeros((rows, *values.shape[1:]), values.dtype)
        chunk[: len(values[start : start + rows])] = values[start : start + rows]
        data = pyarrow.Codec("zstd").compress(chunk.tobytes(), asbytes=True)
        (folder / ".".join([str(number)] + ["0"] * (values.ndim - 1))).write_bytes(data)


def test_nothing_is_found_in_a_replay_buffer(zarr: Path) -> None:
    assert found(zarr) == []


def test_a_missing_and_a_damaged_chunk(zarr: Path) -> None:
    (zarr / "data/action/0.0").unlink()
    damaged = zarr / "data/action/1.0"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    texts = found(zarr)
    assert "data/action: 1 chunks are missing: readers take zeros for them" in texts
    assert any(text.startswith("data/action/1.0: damaged") for text in texts)


def test_rows_that_belong_to_no_episode(zarr: Path) -> None:
    write_array(zarr / "data/state", np.full((ROWS + 2, 3), np.inf, np.float32), ROWS)
    texts = found(zarr)
    assert f"data/state: {ROWS + 2} rows; the episodes have {ROWS}" in texts
    assert any("NaN or infinite" in text for text in texts)


def test_a_compression_that_is_not_known_is_not_checked(zarr: Path) -> None:
    write_array(zarr / "data/state", np.zeros((ROWS, 3), np.float32), ROWS, "blosc")
    (findings,) = validate(zarr)
    assert findings.found == []
    assert "values with the compression blosc" in findings.unchecked


def test_unusable_metadata_is_one_line(zarr: Path) -> None:
    (zarr / "meta/episode_ends/.zarray").write_text('{"shape": [1e99], "chunks": [0], "dtype": "<i8"}')
    (text,) = found(zarr)
    assert text.startswith("meta/episode_ends/.zarray: ")
    with pytest.raises(RoboCacheError, match="does not exist"):
        validate(zarr / "missing")


def test_a_stamp_of_0_is_a_sample_only_if_the_clock_starts_at_0() -> None:
    valid = np.array([0, 1, 1], np.uint8)
    from_0, since_1970 = np.array([0, 0, 10**9]), np.array([0, 0, 1_760_000_000 * 10**9])
    assert stamps_disagree(from_0, valid).tolist() == [False, False, False]
    assert stamps_disagree(since_1970, valid).tolist() == [False, True, False]
    assert stamps_disagree(np.array([1, 1, 1]), valid).tolist() == [True, False, False]
