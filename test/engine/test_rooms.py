"""Memory for messages: it is lent again when nobody refers to what was in it, and never before."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.engine import FusionEngine
from robocache_ros.engine import uplink as uplink_module
from robocache_ros.engine.rooms import Rooms
from robocache_ros.engine.uplink import LARGE, Uplink


@pytest.fixture
def rooms():
    return Rooms(lambda nbytes: np.zeros(nbytes, np.uint8), most=2)


def start(array):
    return array.ctypes.data


def test_memory_is_used_again(rooms):
    first = start(rooms.lend(100))
    assert start(rooms.lend(80)) == first
    assert rooms.nbytes == (100,)


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array[10:20],
        lambda array: array.data.toreadonly()[10:20],
        lambda array: np.frombuffer(array.data.toreadonly(), np.uint8, 5, 3)[1:],
        lambda array: torch.from_numpy(array[4:]),
    ],
)
def test_whoever_refers_to_a_part_keeps_the_whole(rooms, refer):
    lent = rooms.lend(100)
    at, part = start(lent), refer(lent)
    del lent
    other = rooms.lend(100)
    assert start(other) != at
    del part
    assert start(rooms.lend(100)) == at


def test_where_all_are_in_use_memory_is_lent_that_is_not_kept(rooms):
    lent = [rooms.lend(100) for _ in range(3)]
    assert len({start(array) for array in lent}) == 3
    assert rooms.nbytes == (100, 100)
    assert [rooms.address(array) is None for array in lent] == [False, False, True]


def test_blocks_that_are_too_small_make_room_for_larger_ones(rooms):
    kept = rooms.lend(10)
    del kept
    larger = [rooms.lend(100), rooms.lend(100)]
    assert len(larger) == 2
    assert rooms.nbytes == (100, 100)


def test_reserved_blocks_are_there(rooms):
    rooms.reserve(64)
    assert rooms.nbytes == (64, 64)
    rooms.reserve(32)
    assert rooms.nbytes == (64, 64)


def test_address_is_that_of_the_part(rooms):
    lent = rooms.lend(100)
    assert rooms.address(lent[30:40]) == start(lent) + 30
    assert rooms.address(np.zeros(10, np.uint8)) is None


def test_memory_that_a_copy_reads_is_not_lent_before_it_is_through(rooms, monkeypatch):
    through = False
    event = SimpleNamespace(record=lambda _: None, query=lambda: through, synchronize=lambda: None)
    copied = []
    monkeypatch.setattr(uplink_module, "pinned", lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8))
    monkeypatch.setattr(uplink_module, "new_event", lambda: event)
    monkeypatch.setattr(uplink_module, "new_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(uplink_module, "copy_async", lambda to, source, nbytes, _: copied.append((to, source, nbytes)))
    uplink = Uplink(torch.device("cpu"), 4096)
    room = rooms.lend(100)
    at, payload = start(room), room[8:58]
    ticket = uplink.send_from(rooms.address(payload), payload, 1234, LARGE)
    del room, payload
    uplink.retire()
    assert ticket == 0
    assert copied == [(1234, at + 8, 50)]
    other = rooms.lend(100)
    assert start(other) != at

    through = True
    uplink.retire()

    assert start(rooms.lend(100)) == at


def test_image_kept_by_the_cpu_backend_is_not_overwritten(mixture):
    rng = np.random.default_rng(3)
    engine = FusionEngine(mixture.spec())
    payload = next(m[3] for m in mixture.messages(rng, 400) if m[0] == "front" and m[3].data.size == 64 * 48 * 3)
    engine.advance(mixture.t0)
    reference = FusionEngine(mixture.spec())
    reference.advance(mixture.t0)
    for number in range(3):
        room = engine.room("front", payload.data.size)
        room[:] = payload.data + number
        stamp = mixture.t0 + number
        engine.push("front", stamp, stamp, type(payload)(room[:], payload.encoding, 64, 48, 192))
        copy = type(payload)(payload.data + number, payload.encoding, 64, 48, 192)
        reference.push("front", stamp, stamp, copy)
        del room
    now = mixture.t0 + 20 * mixture.ms
    assert torch.equal(engine.advance(now).media["front"], reference.advance(now).media["front"])
