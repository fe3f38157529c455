"""Loops over frames end with the ROS context and at Ctrl-C and SIGTERM, in scripts as users write them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import rclpy

from robocache_ros.client import FusedSubscriber
from test import forked
from test.nodes.rig import until

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
from test.nodes.rig import until
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
def run():
    """Starts a script and returns it once it prints a word."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, word: str = "ready", fusion: str = "nobody") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script.replace("{fusion}", fusion)]
        process = forked.Popen(command, preload=forked.NODE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        while (line := process.stdout.readline()) != f"{word}\n":
            assert line, f"the script ended with {process.wait()}"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("transport", "number"), [("auto", signal.SIGINT), ("message", signal.SIGTERM)])
def test_signal_ends_a_loop_that_gets_frames(run, rig, joint_spec, transport, number):
    rig.fusion(joint_spec).autostart()
    process = run(IMPORTS + f"options = {{'transport': {transport!r}}}\n" + LOOP, "frame", "fusion_node")
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert output.endswith("ended\n")
    assert process.returncode == 0


def test_second_ctrl_c_interrupts_a_body_that_does_not_end(run, rig, joint_spec):
    rig.fusion(joint_spec).autostart()
    stuck = LOOP.replace('print("frame", flush=True)', 'print("frame", flush=True); time.sleep(600)')
    process = run(IMPORTS + "try:\n" + stuck.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt: os._exit(5)",
                  "frame", "fusion_node")  # fmt: skip

    def sent() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    until(sent, "the second of two signals that do not arrive as one")
    assert process.returncode == 5


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
        pytest.param(LOOP, signal.SIGTERM, 0, id="a loop with a node of its own"),
        pytest.param(INIT + SPUN_NODE + LOOP, signal.SIGINT, 0, id="with a given node, Ctrl-C"),
        pytest.param(INIT + SPUN_NODE + LOOP, signal.SIGTERM, 0, id="with a given node"),
        pytest.param(ASYNC_LOOP, signal.SIGTERM, 0, id="an async loop"),
        pytest.param(OWN_HANDLERS + INIT + LOOP, signal.SIGINT, 7, id="a handler of the user before init"),
        pytest.param(INIT + OWN_HANDLERS + LOOP, signal.SIGTERM, 7, id="after init"),
        pytest.param(OWN_HANDLERS + LOOP, signal.SIGTERM, 7, id="without init"),
        # After a loop a signal has its former effect.
        pytest.param(AFTER % "True", signal.SIGINT, 5, id="after a loop, Ctrl-C"),
        pytest.param(AFTER % "True", signal.SIGTERM, -signal.SIGTERM, id="after a loop"),
        pytest.param(INIT + AFTER % "rclpy.ok()", signal.SIGTERM, 6, id="after a loop, with init"),
    ],
)
def test_signal_ends_a_loop_that_waits_unless_the_user_handles_it(run, script, number, ending):
    process = run(IMPORTS + script)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.endswith("ended\n")) == (ending, ending == 0)


def test_shutdown_of_the_given_nodes_context_ends_the_loop():
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("policy", context=context)
    with FusedSubscriber("nobody", node=node, transport="message") as subscriber:
        rclpy.shutdown(context=context)
        assert list(subscriber) == []
