"""`FusedSubscriber` under sim time, whose clock may jump back: a recording that is looped, a simulation's reset."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rclpy.executors import MultiThreadedExecutor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState

from robocache_ros.client import FusedFrame, FusedSubscriber
from test.nodes.rig import clock_cdr, repeating, stamped, until

S = 1_000_000_000


@pytest.fixture(autouse=True)
def runtime(own_sockets):
    """Sockets in a folder of the test."""


class Simulation:
    """Publishes joints, images and /clock to an active node."""

    def __init__(self, rig: Any) -> None:
        self._clock, self._joints, self._camera = (
            rig.publisher(kind, topic)
            for kind, topic in ((Clock, "/clock"), (JointState, "/joints"), (Image, "/camera"))
        )
        until(lambda: all(p.get_subscription_count() for p in (self._clock, self._joints, self._camera)), "the node")
        self.now_ns = 0

    def tell_time(self) -> None:
        self._clock.publish(clock_cdr(self.now_ns))

    def run(self, first_ns: int, condition: Callable[[], Any], what: str) -> None:
        """Simulate from a time on, until a condition is true: subscribers may be found late, and lose messages."""
        self.now_ns = first_ns

        def step() -> Any:
            self.now_ns += 10_000_000
            self.tell_time()
            state = JointState(name=["a", "b"], position=[self.now_ns / S, 0.0])
            image = Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12)))
            self._joints.publish(stamped(state, self.now_ns))
            self._camera.publish(stamped(image, self.now_ns))
            return condition()

        until(step, what)


@pytest.fixture
def simulation(rig, joint_spec):
    qos = {"reliability": "reliable", "depth": 20}
    joint_spec["streams"]["camera"] = {
        "topic": "/camera", "type": "sensor_msgs/msg/Image", "image": {"size": [2, 2]}, "qos": qos,
    }  # fmt: skip
    rig.fusion(joint_spec, use_sim_time=True).autostart()
    return Simulation(rig)


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_frames_go_on_after_the_clock_has_jumped_back(simulation, transport):
    frames: list[tuple[int, bool]] = []

    def keep(frame: FusedFrame) -> None:
        frames.append((frame.tick_ns, bool(frame["camera"].any())))

    with FusedSubscriber(images=["camera"], transport=transport, callback=keep) as subscriber:
        subscriber.wait_for_layout(60.0)
        later_ns = 3600 * S
        simulation.run(
            later_ns, lambda: frames and (subscriber.shared or transport == "message"), "frames before the jump"
        )

        simulation.run(
            2 * S,
            lambda: any(tick_ns < later_ns and image for tick_ns, image in list(frames)),
            "frames after the jump",
        )


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_age_of_a_tick_is_that_of_sim_time(simulation, transport):
    with FusedSubscriber(transport=transport) as subscriber:
        subscriber.wait_for_layout(60.0)
        simulation.run(
            5 * S, lambda: subscriber.latest() and (subscriber.shared or transport == "message"), "the first frames"
        )

        def at_end() -> bool:
            frame = subscriber.latest()
            return frame is not None and frame.tick_ns + frame.tick_age_ns == simulation.now_ns

        until(repeating(simulation.tell_time, at_end), "a tick whose age is counted to the end of the clock")
        assert subscriber.latest(max_age_ms=60_000) is not None


@pytest.fixture
def busy_node(rig):
    """A node in a MultiThreadedExecutor, with a callback that occupies its callback group until the test ends."""
    done = threading.Event()
    node = rig.stranger()
    executor = MultiThreadedExecutor(num_threads=4, context=node.context)
    executor.add_node(node)

    def occupy() -> None:
        timer.cancel()  # or the executor, which finds it due, never sleeps
        done.wait()

    timer = node.create_timer(0.001, occupy)

    def spin() -> None:
        # Not executor.spin(): where shutdown() meets the executor as it collects what to wait for, it waits for ever.
        while not done.is_set():
            executor.spin_once(0.1)

    spinner = threading.Thread(target=spin)
    spinner.start()
    yield node
    done.set()
    spinner.join()
    executor.shutdown()


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_busy_callbacks_of_the_given_node_lose_no_frame(rig, joint_spec, busy_node, transport):
    rig.fusion(joint_spec, use_sim_time=True).autostart()
    clock = rig.clock()
    ticks: list[int] = []
    handlers = list(busy_node.waitables)
    with FusedSubscriber(
        node=busy_node, transport=transport, callback=lambda frame: ticks.append(frame.tick_ns)
    ) as ours:
        ours.wait_for_layout(60.0)
        connected_ns = 0

        def connected() -> bool:
            # A tick of the moment at which the frames change from messages to shared memory may come by neither way:
            # so the clock goes on, until a tick has come that was due after that moment.
            nonlocal connected_ns
            if not connected_ns and (ours.shared or transport == "message"):
                connected_ns = clock.now_ns
            clock.step()
            return bool(connected_ns and ticks and ticks[-1] >= connected_ns)

        until(connected, "a frame since the connection")
        clock.until(lambda: ticks[-1] == clock.due_ns, "the newest frame")
        before, missed = len(ticks), ours.missed
        for _ in range(20):
            clock.step()
            clock.until(lambda: ticks[-1] == clock.due_ns, "the next frame")
        assert list(busy_node.waitables) == handlers  # none that is destroyed while the executor collects them

    assert ours.missed == missed
    assert [b - a for a, b in itertools.pairwise(ticks[before - 1 :])] == [20_000_000] * 20
