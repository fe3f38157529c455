"""Loops over frames end with the ROS context and at Ctrl-C and SIGTERM, in scripts as users write them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy")
import rclpy

from robocache_ros.client import FusedSubscriber
from test import forked

LOOP = """
threading.Thread(target=say_ready, daemon=True).start()
with FusedSubscriber("{fusion}", **options) as ticks:
    for frame in ticks:
        print("frame", flush=True)
print("ended", flush=True)
"""
ASYNC_LOOP = """
async def main():
    async with contextlib.AsyncExitStack() as stack:
        ticks = stack.enter_context(FusedSubscriber("{fusion}", **options))
        asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))  # at its first wait
        async for frame in ticks:
            print("frame", flush=True)
    print("ended", flush=True)
asyncio.run(main())
"""
IMPORTS = """
import asyncio, contextlib, os, signal, sys, threading, time, traceback
import rclpy
from robocache_ros.client import FusedSubscriber
options = {}

def say_ready():  # once the loop of the main thread waits for a frame
    def waits():
        stack = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident])
        return any(frame.f_code.co_name == "wait_for" for frame, _ in stack)
    while not waits(): time.sleep(0.01)
    print("ready", flush=True)
"""
INIT = "rclpy.init()\n"
SPUN_NODE = """
node = rclpy.create_node("policy")
def spin():
    with contextlib.suppress(rclpy.executors.ExternalShutdownException):
        rclpy.spin(node)
threading.Thread(target=spin, daemon=True).start()
options = {"node": node}
"""
OWN_HANDLERS = "for each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, lambda *_: sys.exit(7))\n"


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Starts a script and returns it once it prints a word."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, word: str = "ready", fusion: str = "nobody") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script.replace("{fusion}", fusion)]
        process = forked.Popen(command, preload=forked.NODE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout
        while (line := process.stdout.readline()) != f"{word}\n":
            assert line, f"the script ended with {process.wait()}"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("script", "number"),
    [
        (LOOP, signal.SIGTERM),
        (INIT + SPUN_NODE + LOOP, signal.SIGINT),
        (INIT + SPUN_NODE + LOOP, signal.SIGTERM),
        (ASYNC_LOOP, signal.SIGTERM),
    ],
    ids=["own node", "given node, Ctrl-C", "given node", "async"],
)
def test_signal_ends_a_loop_that_waits(run: Callable[..., Any], script: str, number: int) -> None:
    process = run(IMPORTS + script)
    process.send_signal(number)

    output, _ = process.communicate(timeout=120)
    assert output.endswith("ended\n")
    assert process.returncode == 0


@pytest.mark.parametrize(("transport", "number"), [("auto", signal.SIGINT), ("message", signal.SIGTERM)])
def test_signal_ends_a_loop_that_gets_frames(
    run: Callable[..., Any], rig: Any, joint_spec: dict[str, Any], transport: str, number: int
) -> None:
    rig.fusion(joint_spec).autostart()
    process = run(IMPORTS + f"options = {{'transport': {transport!r}}}\n" + LOOP, "frame", "fusion_node")
    process.send_signal(number)

    output, _ = process.communicate(timeout=120)
    assert output.endswith("ended\n")
    assert process.returncode == 0


def test_second_ctrl_c_interrupts_a_body_that_does_not_end(
    run: Callable[..., Any], rig: Any, joint_spec: dict[str, Any], wait: Callable[..., Any]
) -> None:
    rig.fusion(joint_spec).autostart()
    stuck = LOOP.replace('print("frame", flush=True)', 'print("frame", flush=True); time.sleep(600)')
    process = run(IMPORTS + "try:\n" + stuck.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt: os._exit(5)",
                  "frame", "fusion_node")  # fmt: skip

    def sent() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait(sent, "the second of two signals that do not arrive as one")
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("script", "number"),
    [
        (OWN_HANDLERS + INIT, signal.SIGINT),
        (INIT + OWN_HANDLERS, signal.SIGTERM),
        (OWN_HANDLERS, signal.SIGTERM),
    ],
    ids=["before init", "after init", "no init"],
)
def test_signal_handler_of_the_user_is_called(run: Callable[..., Any], script: str, number: int) -> None:
    process = run(IMPORTS + script + LOOP)
    process.send_signal(number)

    process.communicate(timeout=120)
    assert process.returncode == 7


AFTER = """
options = {"timeout_s": 0.05}
try:
    with FusedSubscriber("nobody", **options) as ticks:
        for frame in ticks: pass
except ValueError: pass
try:
    print("ready", flush=True)
    while %s: time.sleep(0.01)
except KeyboardInterrupt: sys.exit(5)
sys.exit(6)
"""


@pytest.mark.parametrize(
    ("script", "number", "ending"),
    [
        (AFTER % "True", signal.SIGINT, 5),
        (AFTER % "True", signal.SIGTERM, -signal.SIGTERM),
        (INIT + AFTER % "rclpy.ok()", signal.SIGTERM, 6),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM with init"],
)
def test_signal_after_a_loop_has_its_former_effect(
    run: Callable[..., Any], script: str, number: int, ending: int
) -> None:
    process = run(IMPORTS + script)
    process.send_signal(number)

    process.communicate(timeout=120)
    assert process.returncode == ending


def test_shutdown_of_the_given_nodes_context_ends_the_loop() -> None:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("policy", context=context)
    with FusedSubscriber("nobody", node=node, transport="message") as subscriber:
        rclpy.shutdown(context=context)

        assert list(subscriber) == []
