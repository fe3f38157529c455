"""Slots of the ring: who leases one, and when it is used again."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from robocache_ros import ipc
from test.ipc.conftest import frame


def test_leased_slot_is_not_used_again(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    with reader.latest() as lease:
        for tick in range(2, 50):
            writer.publish(tick, frame(tick))

        assert lease.tensors["fused"].unique().tolist() == [1]
        assert not lease.overwritten


def test_released_slot_is_used_again_under_its_tensors(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    lease = reader.latest()
    lease.release()
    for tick in range(2, 5):
        writer.publish(tick, frame(tick))

    assert lease.tensors["fused"].unique().tolist() == [4]


def test_forgotten_frames_give_their_slots_back(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 9):
        writer.publish(tick, frame(tick))
        assert reader.latest().tick_ns == tick
        gc.collect()

    assert writer.overwritten == 0


def test_slot_is_leased_as_long_as_a_tensor_views_it(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    row = reader.latest().tensors["fused"][0]
    gc.collect()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert row.tolist() == [1, 1, 1]


def test_slot_leased_twice_is_kept_until_both_are_released(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    first, second = reader.latest(), reader.latest()
    first.release()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert not second.overwritten


def test_slot_is_kept_for_the_second_of_two_readers(writer: ipc.Writer, reader: ipc.Reader, path: Path) -> None:
    other = ipc.Reader(path)
    writer.publish(1, frame(1))
    mine = reader.latest()
    theirs = other.latest()
    mine.release()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert theirs.tensors["fused"].unique().tolist() == [1]


def test_writer_goes_on_when_every_slot_is_leased(writer: ipc.Writer, reader: ipc.Reader) -> None:
    leases = []
    for tick in range(1, 4):
        writer.publish(tick, frame(tick))
        leases.append(reader.latest())
    writer.publish(4, frame(4))

    assert reader.latest().tick_ns == 4
    assert writer.overwritten == 1
    assert [one.overwritten for one in leases] == [True, False, False]  # the oldest is overwritten


def test_overwritten_reader_is_an_error_on_leaving(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    others = []

    def read_too_long() -> None:
        with reader.latest():
            for tick in range(2, 5):
                writer.publish(tick, frame(tick))
                others.append(reader.latest())

    with pytest.raises(ipc.OverwrittenError, match="tick 1: its slot was overwritten while it was leased"):
        read_too_long()


def test_error_of_the_reader_is_not_hidden_by_overwriting(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    others = []

    def fail() -> None:
        with reader.latest():
            for tick in range(2, 5):
                writer.publish(tick, frame(tick))
                others.append(reader.latest())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
