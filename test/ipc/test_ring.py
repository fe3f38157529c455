"""Frames within one process: what a slot holds, who may have it, when it is used again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError

FIELDS = (ipc.Field("fused", "float32", (2, 3)), ipc.Field("age_ns", "int64", (2,), host=True))

MakeWriter = Callable[..., ipc.Writer]


def frame(value: int) -> dict[str, object]:
    return {"fused": torch.full((2, 3), float(value)), "age_ns": np.full(2, 2**60 + value)}


@pytest.fixture
def writer(make_writer: MakeWriter) -> ipc.Writer:
    return make_writer(FIELDS, slots=3, meta="columns")


@pytest.fixture
def reader(writer: ipc.Writer, path: Path) -> ipc.Reader:
    return ipc.Reader(path)


def test_frame_arrives_whole(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))

    with reader.frame(20) as held:
        assert torch.equal(held.tensors["fused"], torch.full((2, 3), 5.0))
        assert held.host["age_ns"].tolist() == [2**60 + 5] * 2  # exact: no float has been near it


def test_tensors_view_the_writers_memory(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))
    held = reader.latest()
    for views in writer._views:
        views["fused"].fill_(8)

    assert held.tensors["fused"].unique().tolist() == [8]


def test_frame_is_not_to_be_had_before_it_is_announced(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))
    writer.fill(40, frame(6))
    assert reader.latest().tick_ns == 20
    assert reader.frame(40) is None

    writer.announce()

    assert torch.equal(reader.latest().tensors["fused"], torch.full((2, 3), 6.0))


def test_frame_that_was_never_announced_is_overwritten(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.fill(20, frame(5))
    for tick in range(40, 200, 20):
        writer.publish(tick, frame(tick))

    assert reader.latest().tick_ns == 180


def test_reader_that_knows_the_beat_rehearses_before_the_next_frame(writer: ipc.Writer, reader: ipc.Reader) -> None:
    rehearsed: list[int] = []
    waited: list[ipc.HeldFrame | None] = []

    def rehearse() -> None:
        rehearsed.append(len(waited))
        writer.publish(300_000_000, frame(7))

    for tick_ns in (100_000_000, 200_000_000):
        writer.publish(tick_ns, frame(5))
        waited.append(reader.wait(60.0, tick_ns - 1, rehearse))
    waited.append(reader.wait(60.0, 200_000_000, rehearse))  # a tenth of a second after the one before

    assert [held.tick_ns for held in waited if held] == [100_000_000, 200_000_000, 300_000_000]
    assert rehearsed == [2]


def test_reader_that_knows_no_beat_waits_as_ever(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))
    rehearsed: list[None] = []
    first = reader.wait(60.0, None, lambda: rehearsed.append(None))

    assert first
    assert reader.wait(0.01, first.tick_ns, lambda: rehearsed.append(None)) is None
    assert not rehearsed


def test_meta_reaches_the_reader(reader: ipc.Reader) -> None:
    assert reader.meta == "columns"


def test_nothing_is_there_before_the_first_frame(reader: ipc.Reader) -> None:
    assert reader.latest() is None


def test_latest_is_the_newest(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 8):
        writer.publish(tick, frame(tick))

    assert reader.latest().tick_ns == 7


def test_frame_of_a_tick_that_has_been_replaced_is_none(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 5):
        writer.publish(tick, frame(tick))

    assert reader.frame(1) is None


def test_latest_past_the_newest_is_none(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))

    assert reader.latest(after_ns=20) is None


def test_held_slot_is_not_used_again(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    with reader.frame(1) as held:
        for tick in range(2, 50):
            writer.publish(tick, frame(tick))

        assert held.tensors["fused"].unique().tolist() == [1]
        assert not held.overtaken


def test_released_slot_is_used_again(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    reader.frame(1).release()
    for tick in range(2, 5):
        writer.publish(tick, frame(tick))

    assert reader.frame(1) is None


def test_forgotten_frame_gives_its_slot_back(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    reader.frame(1)
    gc.collect()
    for tick in range(2, 5):
        writer.publish(tick, frame(tick))

    assert writer.overtaken == 0
    assert reader.frame(1) is None


def test_slot_is_held_as_long_as_a_tensor_views_it(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    row = reader.frame(1).tensors["fused"][0]
    gc.collect()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert row.tolist() == [1, 1, 1]


def test_slot_taken_twice_is_held_until_both_are_released(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    first, second = reader.frame(1), reader.frame(1)
    first.release()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert not second.overtaken


def test_two_readers_hold_slots_of_their_own(writer: ipc.Writer, reader: ipc.Reader, path: Path) -> None:
    other = ipc.Reader(path)
    writer.publish(1, frame(1))
    mine = reader.frame(1)
    theirs = other.frame(1)
    mine.release()
    for tick in range(2, 9):
        writer.publish(tick, frame(tick))

    assert theirs.tensors["fused"].unique().tolist() == [1]


def test_writer_goes_on_when_every_slot_is_held(writer: ipc.Writer, reader: ipc.Reader) -> None:
    held = []
    for tick in range(1, 4):
        writer.publish(tick, frame(tick))
        held.append(reader.frame(tick))
    writer.publish(4, frame(4))

    assert reader.latest().tick_ns == 4
    assert writer.overtaken == 1
    assert [one.overtaken for one in held] == [True, False, False]  # the oldest had to give way


def test_overtaken_reader_is_told_on_leaving(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    others = []

    def read_too_long() -> None:
        with reader.frame(1):
            for tick in range(2, 5):
                writer.publish(tick, frame(tick))
                others.append(reader.frame(tick))

    with pytest.raises(ipc.OvertakenError, match="tick 1: was overwritten while it was held"):
        read_too_long()


def test_error_of_the_reader_is_not_hidden_by_overtaking(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    others = []

    def fail() -> None:
        with reader.frame(1):
            for tick in range(2, 5):
                writer.publish(tick, frame(tick))
                others.append(reader.frame(tick))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()


def test_frame_that_was_not_finished_is_never_seen(writer: ipc.Writer, reader: ipc.Reader) -> None:
    def fail() -> None:
        with writer.slot(2) as views:
            views["fused"].fill_(-1)
            raise KeyError("half a frame")

    writer.publish(1, frame(1))
    with pytest.raises(KeyError):
        fail()

    assert reader.frame(2) is None
    assert reader.latest().tick_ns == 1


def test_frame_that_is_being_written_is_not_seen(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    with writer.slot(2) as views:
        views["fused"].fill_(-1)

        assert reader.latest().tick_ns == 1


def test_wait_gives_the_frame_after_the_last_one(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    writer.publish(2, frame(2))

    assert reader.wait(5.0, after_ns=1).tick_ns == 2


def test_wait_ends_without_a_frame(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))

    assert reader.wait(0.01, after_ns=1) is None


def test_reader_that_does_not_listen_does_not_stop_the_writer(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 3000):  # more announcements than a socket's buffer takes
        writer.publish(tick, frame(tick))

    assert reader.latest().tick_ns == 2999


def test_value_of_another_shape_is_refused(writer: ipc.Writer, reader: ipc.Reader) -> None:
    with pytest.raises(RoboCacheError, match=r"fused: expected \(2, 3\) float32, got \(3, 3\)"):
        writer.publish(1, {**frame(1), "fused": torch.zeros(3, 3)})

    assert reader.latest() is None


def test_missing_value_is_named(writer: ipc.Writer) -> None:
    with pytest.raises(RoboCacheError, match="age_ns: missing"):
        writer.publish(1, {"fused": torch.zeros(2, 3)})


def test_second_node_of_the_same_name_is_refused(writer: ipc.Writer, path: Path) -> None:
    with pytest.raises(RoboCacheError, match="is served by another node"):
        ipc.Writer(path, FIELDS)


def test_ring_beyond_the_memory_says_how_much_it_needs(path: Path) -> None:
    huge = ipc.Field("front", "uint8", (2**50,))

    with pytest.raises(RoboCacheError, match=r"robocache-ring: 8589934592\.0 MiB of shared memory cannot be had"):
        ipc.Writer(path, [huge])


def test_closed_writer_leaves_no_socket(make_writer: MakeWriter, path: Path) -> None:
    ipc.Writer(path, FIELDS).close()

    assert not path.exists()
    with pytest.raises(ipc.IpcUnavailableError, match="no node answers there"):
        ipc.Reader(path)
