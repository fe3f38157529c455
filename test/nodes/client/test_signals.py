"""Loops over frames end with the ROS context, in scripts as users write them."""

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

LOOP = """
with FusedSubscriber("{fusion}", **options) as ticks:
    print("ready", flush=True)
    for frame in ticks:
        print("frame", flush=True)
print("ended", flush=True)
"""
ASYNC_LOOP = """
async def main():
    async with contextlib.AsyncExitStack() as stack:
        ticks = stack.enter_context(FusedSubscriber("{fusion}", **options))
        print("ready", flush=True)
        async for frame in ticks:
            print("frame", flush=True)
    print("ended", flush=True)
asyncio.run(main())
"""
IMPORTS = """
import asyncio, contextlib, signal, sys, threading
import rclpy
from robocache_ros.client import FusedSubscriber
options = {}
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
OWN_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Starts a script and returns it once it prints a word."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, word: str = "ready", fusion: str = "nobody") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script.replace("{fusion}", fusion)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    "script",
    [
        IMPORTS + INIT + LOOP,
        IMPORTS + INIT + SPUN_NODE + LOOP,
        IMPORTS + INIT + ASYNC_LOOP,
    ],
    ids=["own node", "given node", "async"],
)
def test_sigterm_ends_a_loop_that_waits(run: Callable[..., Any], script: str) -> None:
    process = run(script)
    process.send_signal(signal.SIGTERM)

    output, _ = process.communicate(timeout=30)
    assert output.endswith("ended\n")
    assert process.returncode == 0


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_sigterm_ends_a_loop_that_gets_frames(
    run: Callable[..., Any], rig: Any, joint_spec: dict[str, Any], transport: str
) -> None:
    rig.fusion(joint_spec).autostart()
    process = run(IMPORTS + f"options = {{'transport': {transport!r}}}\n" + INIT + LOOP, "frame", "fusion_node")
    process.send_signal(signal.SIGTERM)

    output, _ = process.communicate(timeout=30)
    assert output.endswith("ended\n")
    assert process.returncode == 0


def test_sigint_ends_a_loop_with_keyboard_interrupt(run: Callable[..., Any]) -> None:
    process = run(IMPORTS + INIT + "try:\n" + LOOP.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt: sys.exit(5)")
    process.send_signal(signal.SIGINT)

    process.communicate(timeout=30)
    assert process.returncode == 5


@pytest.mark.parametrize(
    "script", [OWN_HANDLER + INIT, INIT + OWN_HANDLER, OWN_HANDLER], ids=["before init", "after init", "no init"]
)
def test_signal_handler_of_the_user_is_called(run: Callable[..., Any], script: str) -> None:
    process = run(IMPORTS + script + LOOP)
    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=30)
    assert process.returncode == 7


def test_sigterm_without_rclpy_init_ends_the_process(run: Callable[..., Any]) -> None:
    process = run(IMPORTS + LOOP)
    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


def test_shutdown_of_the_given_nodes_context_ends_the_loop() -> None:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("policy", context=context)
    with FusedSubscriber("nobody", node=node, transport="message") as subscriber:
        rclpy.shutdown(context=context)

        assert list(subscriber) == []
