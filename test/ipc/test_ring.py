"""Frames within one process: when a reader sees one, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from test.ipc.conftest import FIELDS, MakeWriter, frame


def test_frame_arrives_complete(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))

    with reader.latest() as lease:
        assert torch.equal(lease.tensors["fused"], torch.full((2, 3), 5.0))
        assert lease.host["age_ns"].tolist() == [2**60 + 5] * 2  # exact: no float has been near it


def test_frame_is_not_read_before_it_is_announced(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))
    writer.fill(40, frame(6))
    assert reader.latest().tick_ns == 20

    writer.announce()

    assert torch.equal(reader.latest().tensors["fused"], torch.full((2, 3), 6.0))


def test_frame_that_was_never_announced_is_overwritten(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.fill(20, frame(5))
    for tick in range(40, 200, 20):
        writer.publish(tick, frame(tick))

    assert reader.latest().tick_ns == 180


def test_reader_that_knows_the_period_warms_up_before_the_next_frame(writer: ipc.Writer, reader: ipc.Reader) -> None:
    warmed_up: list[int] = []
    waited: list[ipc.SlotLease | None] = []

    def warm_up() -> None:
        warmed_up.append(len(waited))
        writer.publish(300_000_000, frame(7))

    for tick_ns in (100_000_000, 200_000_000):
        writer.publish(tick_ns, frame(5))
        waited.append(reader.wait(60.0, warm_up=warm_up))
    waited.append(reader.wait(60.0, waited[-1].sequence, warm_up))  # a tenth of a second after the one before

    assert [lease.tick_ns for lease in waited if lease] == [100_000_000, 200_000_000, 300_000_000]
    assert warmed_up == [2]


def test_reader_that_knows_no_period_waits(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))
    warmed_up: list[None] = []
    first = reader.wait(60.0, 0, lambda: warmed_up.append(None))

    assert first
    assert reader.wait(0.01, first.sequence, lambda: warmed_up.append(None)) is None
    assert not warmed_up


def test_meta_reaches_the_reader(reader: ipc.Reader) -> None:
    assert reader.meta == "columns"


def test_nothing_is_there_before_the_first_frame(reader: ipc.Reader) -> None:
    assert reader.latest() is None


def test_latest_is_the_newest(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 8):
        writer.publish(tick, frame(tick))

    assert reader.latest().tick_ns == 7


def test_latest_past_the_newest_is_none(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(20, frame(5))

    assert reader.latest(reader.latest().sequence) is None


def test_frame_after_a_clock_that_jumped_back_is_newer(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(2000, frame(5))
    before = reader.latest()
    writer.publish(20, frame(6))

    assert reader.latest(before.sequence).tick_ns == 20


class Interrupting:
    """An array that calls a function when it is copied, in the middle of a frame."""

    shape, dtype = (2,), np.dtype(np.int64)

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        self._interrupt()
        return np.zeros(2, np.int64)


def test_frame_that_was_not_finished_is_never_seen(writer: ipc.Writer, reader: ipc.Reader) -> None:
    def fail() -> None:
        raise KeyError("half a frame")

    writer.publish(1, frame(1))
    with pytest.raises(KeyError):
        writer.publish(2, {**frame(-1), "age_ns": Interrupting(fail)})

    assert reader.latest().tick_ns == 1


def test_frame_that_is_being_written_is_not_seen(writer: ipc.Writer, reader: ipc.Reader) -> None:
    seen: list[int] = []
    writer.publish(1, frame(1))
    writer.publish(2, {**frame(2), "age_ns": Interrupting(lambda: seen.append(reader.latest().tick_ns))})

    assert seen == [1]


def test_wait_gives_the_frame_after_the_last_one(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))
    first = reader.latest()
    writer.publish(2, frame(2))

    assert reader.wait(5.0, first.sequence).tick_ns == 2


def test_wait_ends_without_a_frame(writer: ipc.Writer, reader: ipc.Reader) -> None:
    writer.publish(1, frame(1))

    assert reader.wait(0.01, reader.latest().sequence) is None


def test_reader_that_does_not_listen_does_not_stop_the_writer(writer: ipc.Writer, reader: ipc.Reader) -> None:
    for tick in range(1, 3000):  # more announcements than fit into a socket's buffer
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


def test_ring_beyond_the_memory_tells_how_much_it_needs(path: Path) -> None:
    huge = ipc.Field("front", "uint8", (2**50,))

    with pytest.raises(RoboCacheError, match=r"robocache-ring: 8589934592\.0 MiB of shared memory are not available"):
        ipc.Writer(path, [huge])


def test_closed_writer_leaves_no_socket(make_writer: MakeWriter, path: Path) -> None:
    ipc.Writer(path, FIELDS).close()

    assert not path.exists()
    with pytest.raises(ipc.IpcUnavailableError, match="no node answers there"):
        ipc.Reader(path)
