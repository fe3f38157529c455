"""`FusedSubscriber` under sim time, whose clock may jump back: a recording that is looped, a simulation's reset."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState

from robocache_ros.client import FusedFrame, FusedSubscriber

S = 1_000_000_000


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path)[:80])


@pytest.fixture
def simulate(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> Callable[[int, int], None]:
    """Plays joints, images and /clock from one time to another, to an active node."""
    qos = {"reliability": "reliable", "depth": 20}
    joint_spec["streams"]["camera"] = {
        "topic": "/camera", "type": "sensor_msgs/msg/Image", "image": {"size": [2, 2]}, "qos": qos,
    }  # fmt: skip
    rig.fusion(joint_spec, use_sim_time=True).autostart()
    clock, joints, camera = (
        rig.publisher(kind, topic) for kind, topic in ((Clock, "/clock"), (JointState, "/joints"), (Image, "/camera"))
    )
    wait(lambda: all(p.get_subscription_count() for p in (clock, joints, camera)), "the node")

    def run(first_ns: int, last_ns: int) -> None:
        for now_ns in range(first_ns, last_ns + 1, 10_000_000):
            clock.publish(struct.pack("<4siI", b"\0\1\0\0", *divmod(now_ns, S)))
            stamp = Time(sec=now_ns // S, nanosec=now_ns % S)
            state = JointState(name=["a", "b"], position=[now_ns / S, 0.0])
            image = Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12)))
            for message, publisher in ((state, joints), (image, camera)):
                message.header.stamp = stamp
                publisher.publish(message)
            time.sleep(0.002)  # five times as fast as the clock: no queue of images overflows

    return run


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_frames_go_on_after_the_clock_has_jumped_back(
    simulate: Callable[[int, int], None], wait: Callable[..., Any], transport: str
) -> None:
    frames: list[tuple[int, bool]] = []

    def keep(frame: FusedFrame) -> None:
        frames.append((frame.tick_ns, bool(frame["camera"].any())))

    with FusedSubscriber(images=["camera"], transport=transport, callback=keep) as subscriber:
        subscriber.wait_for_layout(60.0)
        simulate(5 * S, 6 * S)
        wait(lambda: (frames and subscriber.shared) or transport == "message", "shared memory")
        simulate(6 * S, 7 * S)
        wait(lambda: any(tick_ns > 6 * S for tick_ns, _ in frames), "frames before the jump")

        simulate(2 * S, 3 * S)

        wait(lambda: any(tick_ns < 3 * S and image for tick_ns, image in frames), "frames after the jump")


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_age_of_a_tick_is_that_of_sim_time(
    simulate: Callable[[int, int], None], wait: Callable[..., Any], transport: str
) -> None:
    with FusedSubscriber(transport=transport) as subscriber:
        subscriber.wait_for_layout(60.0)
        simulate(5 * S, 6 * S)
        wait(lambda: subscriber.latest() and (subscriber.shared or transport == "message"), "the first frames")
        simulate(6 * S, 7 * S)

        def at_end() -> bool:
            frame = subscriber.latest()
            return frame is not None and frame.tick_ns > 6 * S and frame.tick_ns + frame.tick_age_ns == 7 * S

        wait(at_end, "a tick whose age is counted to the end of the clock")
        assert subscriber.latest(max_age_ms=1_000) is not None
