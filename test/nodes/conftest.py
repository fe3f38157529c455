"""Nodes over real DDS."""

from __future__ import annotations

import gc
import os
import tempfile
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from test.nodes.rig import JOINT_SPEC, Rig

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "config" / "panda_lift.yaml"

# The profile for nodes, with less shared memory, which each participant fills with zeros, and more announcements: tests
# wait for nodes that join. Before rclpy is imported.
_folder = tempfile.TemporaryDirectory(prefix="rc")
_profile = Path(_folder.name, "fastdds.xml")
_text = (ROOT / "config" / "fastdds.xml").read_text()
for _setting, _value in (
    ("<segment_size>67108864<", "<segment_size>16777216<"),
    ("<leaseAnnouncement><sec>1</sec><nanosec>0<", "<leaseAnnouncement><sec>0</sec><nanosec>200000000<"),
):
    assert _setting in _text
    _text = _text.replace(_setting, _value)
_profile.write_text(_text)
os.environ["FASTDDS_DEFAULT_PROFILES_FILE"] = str(_profile)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ros)


@pytest.fixture(autouse=True)
def _no_participants_of_earlier_tests(monkeypatch):
    # A node is in a reference cycle: until Python looks, its participant lives on, with threads and shared memory.
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
    # Nodes in this process leave frozen what was frozen before the first test.
    for name in ("freeze_gc", "unfreeze_gc") if find_spec("rclpy") else ():
        monkeypatch.setattr(import_module("robocache_ros.nodes.process"), name, lambda: None)


@pytest.fixture
def rig(tmp_path):
    pytest.importorskip("rclpy")
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def panda_spec():
    """The example spec, with subscriptions that lose nothing."""
    spec: dict[str, Any] = yaml.safe_load(SPEC.read_text())
    for stream in spec["streams"].values():
        stream["qos"] = {"reliability": "reliable", "depth": 5000}  # seconds, for a machine that stalls
    return spec


@pytest.fixture
def joint_spec():
    return deepcopy(JOINT_SPEC)


@pytest.fixture
def tf_as_bytes(monkeypatch):
    """tf2_msgs is not on PyPI. Its messages are received as bytes, so any class will do that both sides name."""
    from std_msgs.msg import String

    from robocache_ros.nodes import middleware
    from robocache_ros.spec import TF_TYPE

    load = middleware.load_message_class
    monkeypatch.setattr(middleware, "load_message_class", lambda name: String if name == TF_TYPE else load(name))


@pytest.fixture
def plug(monkeypatch):
    """Where a foot pedal without hardware is plugged in."""
    from test.nodes.pedal import Plug  # needs evdev

    plug = Plug()
    monkeypatch.setattr("evdev.InputDevice", plug)
    return plug


@pytest.fixture
def own_sockets(monkeypatch):
    """A folder for the sockets of this test, with a short name: the path of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="rc") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)
