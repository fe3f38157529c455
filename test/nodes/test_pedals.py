"""Foot pedals: edges, unplugging, and what is refused."""

from __future__ import annotations

import errno
import re

import pytest

pytest.importorskip("evdev", reason="needs the pedals extra")
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import pedals
from robocache_ros.nodes.pedals import Pedal, read_keys
from test.nodes.rig import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """A pedal that is out is tried again soon."""
    monkeypatch.setattr(pedals, "AGAIN_S", 0.01)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def pedal(plug, heard):
    keys = {"KEY_A": "start", "KEY_B": "success"}
    pedal = Pedal("/dev/pedal", keys, lambda *edge: heard.append(edge), lambda: heard.append("lost"))
    yield pedal
    pedal.close()


@pytest.mark.usefixtures("pedal")
def test_a_key_counts_once_while_it_is_held(plug, heard):
    plug.send("KEY_A", 1, 2, 2, 2, 0)
    plug.send("KEY_C", 1, 0)  # not mapped
    plug.send("KEY_B", 1)
    until(lambda: len(heard) == 3, "the keys")
    assert heard == [("start", True), ("start", False), ("success", True)]


@pytest.mark.usefixtures("pedal")
def test_a_pedal_that_is_unplugged_works_again_when_it_is_back(plug, heard, caplog):
    plug.pull()
    until(lambda: "lost" in heard, "the pedal to be missed")
    plug.is_in = True
    until(lambda: plug.opened == 2, "the pedal to be opened again")
    plug.send("KEY_A", 1)
    until(lambda: ("start", True) in heard, "the key")
    assert "parameter pedal: /dev/pedal: unplugged (No such device)" in caplog.text


def test_a_failing_action_does_not_end_the_pedal(plug, caplog):
    heard = []

    def fail(action: str, pressed: bool) -> None:
        heard.append(pressed)
        raise ValueError("broken")

    pedal = Pedal("/dev/pedal", {"KEY_A": "start"}, fail)
    plug.send("KEY_A", 1, 0)
    until(lambda: heard == [True, False], "both edges")
    pedal.close()
    assert "broken" in caplog.text


@pytest.mark.parametrize(
    ("error", "key", "words"),
    [
        (errno.ENOENT, "KEY_A", "cannot be opened (No such file or directory); the devices are in /dev/input/by-id"),
        (errno.EACCES, "KEY_A", "cannot be opened (Permission denied); add yourself to the group input"),
        (0, "KEY_Z", "has no KEY_Z; change pedal_keys"),
    ],
)
def test_a_device_that_cannot_be_opened_or_does_not_have_the_key_is_refused(plug, error, key, words):
    plug.is_in, plug.error = not error, error
    with pytest.raises(RoboCacheError, match=re.escape(words)):
        Pedal("/dev/pedal", {key: "start"}, lambda *_: None)


def test_a_file_that_is_not_a_device_is_refused():
    with pytest.raises(RoboCacheError, match="cannot be opened"):
        Pedal(__file__, {"KEY_A": "start"}, lambda *_: None)


@pytest.mark.parametrize("text", ["jump=KEY_A", "start", "start=A", "start=KEY_NONE", "", "start=EV_KEY"])
def test_keys_that_are_not_known_are_refused(text):
    with pytest.raises(RoboCacheError, match="parameter pedal_keys: "):
        read_keys(text, ("start", "success"))


def test_keys_are_read_with_their_actions():
    found = read_keys("start=KEY_A, success=BTN_LEFT", ("start", "success"))
    assert found == {"KEY_A": "start", "BTN_LEFT": "success"}
