"""An engine's frames through the ring, as a policy sees them."""

from __future__ import annotations

from contextlib import closing, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros import ipc
from robocache_ros.engine import Frames
from robocache_ros.ipc.frame_ring import FrameReader, FrameWriter, fused_frame
from robocache_ros.ops.cuda import shared_ring as cuda_ipc
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout

PERIOD_NS = 20_000_000
STREAMS = {
    "joints": {"topic": "/joints", "type": "std_msgs/msg/Float64MultiArray", "dim": 2},
    "front": {"topic": "/front", "type": "sensor_msgs/msg/Image"},
}
LAYOUT = Layout(load_spec({"robocache": 1, "rate_hz": 50, "horizon": 3, "streams": STREAMS}))


def frames(tick, image=4):
    """A tick whose joints are its index, and whose image is `image` pixels wide."""
    valid, age_ns = np.array([[1, 2]], np.uint8), np.array([[-tick, 2**53 + tick]])  # the joints are after the tick
    images = {"front": torch.full((1, 3, 2, image), tick, dtype=torch.uint8)}
    return Frames(np.array([tick * PERIOD_NS]), torch.full((1, 2), float(tick)), valid, age_ns, images)


def window(*ticks):
    return torch.cat([frames(tick).rows() for tick in ticks])


@pytest.fixture
def writer(path):
    writer = FrameWriter(path, LAYOUT)
    yield writer
    writer.close()


def share(writer, path, *ticks):
    """The frame that a reader gets of the last of some ticks."""
    writer.publish(frames(ticks[0]), window(*ticks[:1] * 3))
    reader = ipc.Reader(path)
    for tick in ticks[1:]:
        writer.publish(frames(tick), window(tick - 2, tick - 1, tick))
    frame = fused_frame(reader.latest(), LAYOUT)
    reader.close()
    return frame


def test_window_comes_by_stream_with_its_ticks_and_exact_ages(writer, path):
    frame = share(writer, path, 5, 6, 7)
    assert frame["joints"].tolist() == [[5, 5], [6, 6], [7, 7]]
    assert (frame["front"].shape, frame["front"].unique().tolist()) == ((3, 2, 4), [7])
    assert frame.age_ns["front"].tolist() == [2**53 + 5, 2**53 + 6, 2**53 + 7]
    assert frame.age_ns["joints"].tolist() == [-5, -6, -7]
    assert frame.valid["joints"].tolist() == [1, 1, 1]
    assert frame.tick_ns == 7 * PERIOD_NS
    assert frame.ticks_ns.tolist() == [5 * PERIOD_NS, 6 * PERIOD_NS, 7 * PERIOD_NS]


@pytest.mark.parametrize(("ticks", "valid"), [((5, 7), [1, 0, 1]), ((200, 201, 5), [0, 0, 1])])
def test_tick_that_never_was_in_this_timeline_is_invalid(writer, path, ticks, valid):
    assert share(writer, path, *ticks).valid["joints"].tolist() == valid


def test_image_that_shows_its_size_makes_the_ring_anew(writer, path):
    connection = ipc.Connection(path, retry_s=0.0)
    writer.publish(frames(5, image=0), window(3, 4, 5))
    first = connection.connect()
    writer.publish(frames(6), window(4, 5, 6))
    assert first.latest() is None
    second = connection.connect()
    writer.publish(frames(7), window(5, 6, 7))
    assert fused_frame(second.latest(), LAYOUT)["front"].shape == (3, 2, 4)
    connection.close()


def test_each_newest_frame_is_given_once_whatever_the_clock_does(writer, path):
    writer.publish(frames(100), window(98, 99, 100))
    with ipc.Reader(path) as reader:
        source = FrameReader(reader, LAYOUT)
        given = []
        for tick in (101, 5, 6):
            writer.publish(frames(tick), window(tick - 2, tick - 1, tick))
            given.append(source.next(10.0).tick_ns // PERIOD_NS)
        assert given == [101, 5, 6]
        assert source.next(0.01) is None


def test_ring_of_another_layout_is_refused(path):
    with (
        closing(ipc.Writer(path, [ipc.Field("window", "float32", (1, 1))], meta=LAYOUT.to_json())),
        ipc.Reader(path) as reader,
        pytest.raises(ipc.IpcUnavailableError, match="the fields of the ring do not match its layout"),
    ):
        FrameReader(reader, LAYOUT)


def test_blocks_of_a_slot_are_known_to_torch_by_one_address(monkeypatch):
    """What torch keeps of a block for ever is then no more with each frame."""
    runtime = SimpleNamespace(
        deviceGetByPCIBusId=lambda bus: 0,
        ipcOpenMemHandle=lambda handle: 4096,
        ipcCloseMemHandle=lambda pointer: None,
        eventDestroy=lambda event: None,
        CUDARuntimeError=RuntimeError,
    )
    monkeypatch.setattr(cuda_ipc, "_runtime", lambda: runtime)
    monkeypatch.setattr(cuda_ipc, "_as_tensor", lambda block: block)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("device", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    ring = cuda_ipc.MappedRing({"pid": 1, "bus": "", "events": [], "memory": ""}, 1024)
    first, again, other = (ring.block(start, 256)[0] for start in (512, 512, 768))
    assert first is not again  # each is the holder of a frame
    assert first.__cuda_array_interface__ is again.__cuda_array_interface__
    assert [block.__cuda_array_interface__["data"][0] for block in (first, other)] == [4096 + 512, 4096 + 768]


def test_a_window_of_samples_comes_with_its_shape_and_ages(path):
    touch = {"topic": "/t", "type": "robot_msgs/msg/Touch", "field": "cells", "dim": 3, "align": "window", "samples": 2}
    layout = Layout(load_spec({"robocache": 1, "streams": {"touch": touch}}))
    values, ages = torch.arange(6.0)[None], np.array([[7, -1]], np.float32)
    made = Frames(np.array([PERIOD_NS]), values, np.ones((1, 1), np.uint8), np.array([[7]]), {}, sample_age_ms=ages)
    with closing(FrameWriter(path, layout)) as writer:
        writer.publish(made, made.rows())
        with ipc.Reader(path) as reader:
            writer.publish(made, made.rows())
            frame = fused_frame(reader.latest(), layout)
            assert frame["touch"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
            assert frame.mask("touch").tolist() == [[True, False]]
            del frame
