"""Demonstrations that are recorded over DDS have the labels of the ticks at which the expert sent them."""

from __future__ import annotations

import runpy
import struct
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.sim.simulation import BLOCK, COMMANDS, GOAL, JOINT_STATES, TICK_NS, SimOptions, Simulation
from robocache_ros.sim.so101 import STEP_NS
from robocache_ros.spec import load_spec
from robocache_ros.units import NS_PER_S
from test.nodes.rig import ROOT

SEED = 1000


def lost(bag: Bag) -> dict[str, list[int]]:
    """The times in ns, by topic, after which a message of the simulation is not in a recording."""
    found = {}
    for topic, period_ns in ((JOINT_STATES, STEP_NS), (COMMANDS, TICK_NS), (BLOCK, TICK_NS), (GOAL, TICK_NS)):
        stamps_ns = [read_stamp_ns(message.data) for message in bag.messages([topic])]
        assert len(stamps_ns) > 100, topic
        if gaps_ns := [one for one, other in pairwise(stamps_ns) if other - one != period_ns]:
            found[topic] = gaps_ns
    return found


def read_stamp_ns(data: bytes | memoryview) -> int:
    """The stamp of a message whose first field is a header."""
    seconds, nanoseconds = struct.unpack_from("<iI", data, 4)
    return int(seconds * NS_PER_S + nanoseconds)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recorded_labels_executed_at_their_ticks_repeat_the_episode(tmp_path):
    loop = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "close_the_loop.py")))
    loop.write_spec(tmp_path / "spec.yaml")
    observer = loop.Observer(scenes=False)
    try:
        options = ("--no-camera", "--rate", 1)  # faster, the episode is over before a busy machine lets the expert act
        successes = loop.record(tmp_path, tmp_path / "spec.yaml", range(SEED, SEED + 1), observer, options)
    finally:
        observer.close()
    assert successes == [True]
    with Bag(tmp_path / "recordings" / "episode_000001.mcap") as bag:
        assert lost(bag) == {}
        frames = list(BagRun(bag, load_spec(tmp_path / "spec.yaml")).frames())
    valid = np.concatenate([part.valid for part in frames]).all(axis=1)
    first = int(valid.argmax())
    rows = np.concatenate([part.fused.numpy() for part in frames])[first:]
    assert valid[first:].all()

    simulation = Simulation(SimOptions(camera=False))
    simulation.begin(SEED, expert=False)
    simulation.robot.data.qpos[:6] = rows[0][:6]  # the arm sags until the expert acts
    for row in rows:
        # rad: the gripper moves by 0.06 in a tick, and by 0.006 in a step of the simulation; the arm still swings from
        # its sag
        assert abs(simulation.robot.positions[5] - row[5]) < 0.005
        assert np.abs(simulation.robot.positions - row[:6]).max() < 0.03
        simulation.command(row[-6:].astype(np.float64))
        simulation.step()
        while not simulation.at_tick:
            simulation.step()
    assert simulation.robot.is_success
    simulation.close()


def test_each_latency_of_the_loop_waits_for_the_first_command_of_its_own_policy(tmp_path):
    loop = runpy.run_path(str(ROOT / "examples" / "close_the_loop.py"))
    before = loop["Attempt"](executed=[np.zeros(8)])  # of the run before, whose last command was sent
    observer = SimpleNamespace(attempt=before, now_ns=0)
    waited = []

    def until(condition, what):
        waited.append((what, bool(condition())))
        if what == "the first command":
            raise InterruptedError

    loop["drive"].__globals__.update(until=until, process=lambda *_, **__: nullcontext())
    with pytest.raises(InterruptedError):
        loop["drive"](tmp_path, tmp_path / "spec.yaml", 1, 150, observer)
    assert waited == [("the simulation", False), ("the first command", False)]


def test_the_step_at_a_seam_is_that_of_the_joints_and_not_of_the_gripper():
    loop = runpy.run_path(str(ROOT / "examples" / "close_the_loop.py"))
    nothing = [0.0, np.nan, np.nan, np.nan, 0, 0, 0.0]  # tick, two joints, gripper, state, origin, step at a seam
    rows = [nothing, [1, 0, 0, 0, 1, 1, 0.5], [2, 0.1, 0, 0, 1, 1, 0.0], [3, 0.1, 0.25, 1, 1, 1, 1.0]]
    found = loop["largest_seam"]([loop["Attempt"](executed=[np.array(row, float) for row in rows])], 3)
    assert found == 0.25
