"""The node's ring where it cannot be made, and the consumer's where it cannot be read."""

from __future__ import annotations

import logging
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros import ipc
from robocache_ros.engine import Frames
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.ipc.frame_ring import FrameWriter
from robocache_ros.nodes.fused_subscriber import RingFollower
from robocache_ros.nodes.publishers import RingOutput
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.rig import until

NODE: Any = SimpleNamespace(get_fully_qualified_name=lambda: "/fusion_node")
JOINTS = {"topic": "/joints", "type": "std_msgs/msg/Float64MultiArray", "dim": 2}
LAYOUT = Layout(load_spec({"robocache": 1, "rate_hz": 50, "streams": {"joints": JOINTS}}))


def frames(tick: int) -> Frames:
    return Frames(
        np.array([tick * 20_000_000]), torch.full((1, 2), 0.5), np.ones((1, 1), np.uint8), np.zeros((1, 1), int), {}
    )


@pytest.fixture(autouse=True)
def path(own_sockets):
    return ipc.socket_path("/fusion_node")


def test_ring_that_could_not_be_made_is_made_later(path, caplog):
    path.mkdir()
    with closing(RingOutput(NODE, LAYOUT, torch.device("cpu"), 4, retry_s=0.0)) as output:
        for tick in (1, 2, 3):
            output.fill(frames(tick), frames(tick).rows())
            output.announce()
        with pytest.raises(ipc.IpcUnavailableError):
            ipc.Reader(path)
        path.rmdir()
        output.fill(frames(4), frames(4).rows())

        with ipc.Reader(path) as reader:
            output.fill(frames(5), frames(5).rows())
            output.announce()
            lease = reader.latest()
    assert lease.tick_ns == 100_000_000
    assert caplog.text.count("frames are published as messages only") == 1


def test_ring_that_cannot_be_read_leaves_the_messages(path):
    reports: list[str] = []
    fields = [ipc.Field("window", "float32", (1, 1))]
    with (
        closing(ipc.Writer(path, fields, meta="not JSON")),
        closing(RingFollower("/fusion_node", lambda frame, layout: None, lambda *_: None, reports.append)) as follower,
    ):
        until(lambda: reports, "a report")

        assert "frames come as messages: the ring cannot be read" in reports[0]
        assert not follower.connected


def test_follower_reads_a_ring_that_appears(path, caplog):
    caplog.set_level(logging.INFO)
    given: list[FusedFrame] = []
    reports: list[str] = []
    with closing(
        RingFollower("/fusion_node", lambda frame, layout: given.append(frame), lambda *_: None, reports.append)
    ) as follower:
        until(lambda: reports, "a report of no ring")
        with closing(FrameWriter(path, LAYOUT)) as writer:
            writer.publish(frames(1), frames(1).rows())
            until(lambda: follower.connected, "the ring")
            writer.publish(frames(2), frames(2).rows())
            until(lambda: given, "a frame")
    assert given[0].tick_ns == 40_000_000
    assert [text.partition(":")[0] for text in reports[:2]] == [
        "frames come as messages",
        "frames come from shared memory",
    ]
