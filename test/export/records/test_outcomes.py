"""Rewards and success as each format stores them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.sensor_recording import MS, START_NS
from test.export.records.conftest import FORMATS

TICKS = 20
FLOAT, BOOL = "std_msgs/msg/Float32", "std_msgs/msg/Bool"
TYPES = {"/state": FLOAT, "/command": FLOAT, "/reward": FLOAT, "/done": BOOL}
SPEC = load_spec(
    {
        "robocache": 1,
        "streams": {
            "state": {"topic": "/state", "type": FLOAT, "align": "hold"},
            "command": {"topic": "/command", "type": FLOAT, "align": "hold", "role": "action"},
            "reward": {"topic": "/reward", "type": FLOAT, "align": "hold", "role": "reward"},
            "done": {"topic": "/done", "type": BOOL, "align": "hold", "role": "success"},
        },
    }
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings: one that succeeds at its end, one that does not."""
    folder = tmp_path_factory.mktemp("outcomes")
    bags = []
    for name, succeeds in (("good", True), ("bad", False)):
        messages: list[tuple[str, int, bytes]] = []
        for tick in range(TICKS + 1):
            at = START_NS + tick * 20 * MS
            messages += [(topic, at, b"\0\1\0\0" + struct.pack("<f", tick)) for topic in ("/state", "/command")]
            messages.append(("/reward", at, b"\0\1\0\0" + struct.pack("<f", tick / 4)))
            messages.append(("/done", at, b"\0\1\0\0" + struct.pack("<?", succeeds and tick >= TICKS - 2)))
        bags.append(write_bag(folder / name, TYPES, messages))
    return export(bags, SPEC, folder / "out", DatasetOptions(formats=FORMATS), report=False).out


def rewards(length: int) -> list[float]:
    return [tick / 4 for tick in range(length)]


def test_rlds_has_rewards_and_ends_in_a_terminal_step_after_success(out: Path) -> None:
    good, bad = TfdsDataset(out / "rlds" / "robocache" / "1.0.0").episodes("train")
    for episode, success in ((good, 1), (bad, 0)):
        length = len(episode["steps/reward"])
        assert episode["steps/reward"].tolist() == rewards(length)
        assert episode["episode_metadata/success"].tolist() == success
        assert episode["steps/is_terminal"].tolist() == [False] * (length - 1) + [bool(success)]
        assert episode["steps/observation/state"].shape == (length, 1)  # neither the reward nor the outcome


def test_webdataset_has_rewards_and_success(out: Path) -> None:
    found: dict[int, list[dict[str, Any]]] = {}
    with tarfile.open(out / "webdataset" / "train-000000.tar") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name.endswith("meta.json"):
                meta = json.loads(data)
                found.setdefault(meta["episode"], []).append(meta)
            elif member.name.endswith("state.npy"):
                assert np.load(io.BytesIO(data)).shape == (1,)
    for episode, success in ((0, True), (1, False)):
        assert [meta["reward"] for meta in found[episode]] == rewards(len(found[episode]))
        assert {meta["success"] for meta in found[episode]} == {success}


def test_mcap_has_the_reward_of_each_tick(out: Path) -> None:
    for episode in (0, 1):
        with Bag(out / "mcap" / f"episode_{episode:06d}") as bag:
            found = [struct.unpack_from("<f", m.data, 4)[0] for m in bag.messages(["/robocache/episode/reward"])]
        assert found == rewards(len(found))
