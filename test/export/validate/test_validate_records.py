"""Small datasets of RLDS and WebDataset, written by hand and damaged."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robocache_ros.formats.rlds.tfrecord import BytesList, RecordWriter, encode_example
from test.export.validate.conftest import found

STEPS = 5
FILE = "lift-train.tfrecord-00000-of-00001"
Rlds = Callable[..., Path]


def png(height: int = 4, width: int = 6) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def step_features() -> dict[str, Any]:
    return {
        "action": {"tensor": {"shape": {"dimensions": ["2"]}, "dtype": "float32"}},
        "image": {"image": {"shape": {"dimensions": ["4", "6", "3"]}, "encodingFormat": "png"}},
        "is_first": {"tensor": {"shape": {}, "dtype": "bool"}},
        "is_last": {"tensor": {"shape": {}, "dtype": "bool"}},
    }


def step_values() -> dict[str, Any]:
    return {
        "action": np.ones((STEPS, 2), np.float32),
        "image": BytesList([png()] * STEPS),
        "is_first": np.arange(STEPS) == 0,
        "is_last": np.arange(STEPS) == STEPS - 1,
    }


@pytest.fixture
def rlds(tmp_path: Path) -> Rlds:
    """Writes a dataset of one episode, with changed values."""
    pytest.importorskip("google_crc32c")
    folder = tmp_path / "lift" / "1.0.0"

    def write(**values: Any) -> Path:
        folder.mkdir(parents=True)
        record = {f"steps/{name}": value for name, value in {**step_values(), **values}.items()}
        size, chunks = encode_example(record)
        writer = RecordWriter(folder / FILE)
        writer.write(size, chunks)
        writer.close()
        split = {"name": "train", "shardLengths": ["1"], "numBytes": str(size)}
        info = {"name": "lift", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        steps = {"sequence": {"feature": {"featuresDict": {"features": step_features()}}, "length": "-1"}}
        (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps}}}))
        return folder

    return write


def test_nothing_is_found_in_an_rlds_dataset(rlds: Rlds) -> None:
    folder = rlds()
    assert found(folder, decode=True) == found(folder.parents[1]) == []


def test_an_altered_byte_of_a_record(rlds: Rlds) -> None:
    path = rlds() / FILE
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert found(path.parent) == [f"{FILE}: record 0: its checksum is wrong; get the file again"]


def test_a_split_without_its_file(rlds: Rlds) -> None:
    folder = rlds()
    (folder / FILE).rename(folder / "lift-val.tfrecord-00000-of-00001")
    texts = found(folder)
    assert f"{FILE}: is missing" in texts
    assert any("no split of dataset_info.json has this file" in text for text in texts)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"action": np.full((STEPS, 2), np.nan, np.float32)}, "steps/action: NaN or infinite in 5 rows"),
        ({"action": np.ones(2 * STEPS - 1, np.float32)}, "9 numbers are not steps of shape [2]"),
        ({"is_last": np.zeros(STEPS - 1)}, "its features have different numbers of steps: [4, 5]"),
        ({"is_last": np.zeros(STEPS)}, "is_last is true at steps []; it must be true at [4] only"),
        ({"image": BytesList([png(8, 8)] * STEPS)}, "step 0 is 8x8; features.json says [4, 6]"),
        ({"image": BytesList([b"no image"] * STEPS)}, "steps/image: cannot be read"),
        ({"reward": np.zeros(STEPS, np.float32)}, "steps/reward is not in features.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_do_not_fit(rlds: Rlds, values: Mapping[str, Any], text: str) -> None:
    assert any(text in found_text for found_text in found(rlds(**values)))


def test_an_rlds_dataset_of_another_tool() -> None:
    pytest.importorskip("google_crc32c")
    recordings = os.environ.get("ROBOCACHE_RECORDINGS")
    if not recordings:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    texts = found(Path(recordings) / "rlds_bridge", decode=True)
    # It really is so: the file of one split is missing, and the episodes are cut off before their last step.
    assert texts[0] == "bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001: is missing"
    assert len(texts) == 26
    assert all("is_last is true at steps []" in text for text in texts[1:])


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def samples() -> dict[str, bytes]:
    state = npy(np.zeros(3, np.float32))
    return {f"00000{k}.{name}": data for k in range(3) for name, data in (("state.npy", state), ("front.png", png()))}


def test_nothing_is_found_in_a_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-000000.tar", samples())
    assert found(tmp_path, decode=True) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"000001.state.npy": npy(np.array([np.inf]))}, "000001.state.npy: NaN or infinite"),
        ({"000001.front.png": b"no image"}, "000001.front.png: cannot be read"),
        ({"000003.front.png": png()}, "sample 000003 has other fields than the first: state.npy"),
        ({"000003.state.npy": npy(0.0), "000000.left.png": png()}, "members of 000000 are not adjacent"),
        ({"000002.state.npy": npy(np.array([{}], object))}, "000002.state.npy: cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_samples_that_do_not_fit(tmp_path: Path, changed: Mapping[str, bytes], text: str) -> None:
    write_tar(tmp_path / "train-000000.tar", {**samples(), **changed})
    assert any(text in found_text for found_text in found(tmp_path, decode=True))


def test_a_truncated_shard(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "train-000000.tar", samples())
    os.truncate(path, 2000)
    assert any(text.startswith("train-000000.tar") for text in found(tmp_path))


def test_a_shard_with_fewer_samples_than_listed(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-000000.tar", samples())
    shards = [{"name": "train-000000.tar", "samples": 4}, {"name": "train-000001.tar", "samples": 1}]
    (tmp_path / "dataset.json").write_text(json.dumps({"shards": shards, "episodes": [{"samples": 5}]}))
    assert found(tmp_path) == [
        "train-000000.tar: 3 samples; dataset.json says 4",
        "train-000001.tar: is missing; it is in dataset.json",
    ]
