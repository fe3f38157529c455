"""The simulated robot: the expert, what the drivers publish and when, and demonstrations without ROS."""

from __future__ import annotations

from collections import Counter
from ctypes.util import find_library
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import ActionPlan, Chunk
from robocache_ros.sim import simulation as sim
from robocache_ros.sim.command import SimArguments, parse, parser, write_demonstrations
from robocache_ros.sim.so101 import APART_M, PLACED_M
from robocache_ros.spec import load_spec
from robocache_ros.spec.run import RunOptions

ROOT = Path(__file__).parents[2]
STATE = sim.SimOptions(camera=False)


@pytest.fixture(scope="module")
def simulation():
    return sim.Simulation(STATE)


def messages(simulation: sim.Simulation, steps: int) -> list[RawMessage]:
    """What is published in some steps."""
    found = []
    for _ in range(steps):
        found += simulation.publish()
        simulation.step()
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_the_expert_carries_the_block_to_the_goal(simulation, seed):
    last = [message.log_ns for message in sim.episode(simulation, seed)][-1]
    assert simulation.robot.is_success
    assert last < simulation.now_ns


def test_the_expert_stays_for_longer_than_a_horizon_when_it_is_done(simulation):
    commands = [bytes(message.data[-56:]) for message in sim.episode(simulation, 0) if message.topic == sim.COMMANDS]
    assert len(set(commands[-75:])) == 1  # 1.5 s
    assert len(set(commands[-100:])) > 1
    assert simulation.robot.is_success


def test_a_block_that_stays_where_it_was_is_no_success(simulation):
    simulation.begin(0, expert=False)
    messages(simulation, 50)
    assert not simulation.robot.is_success


def test_the_same_seed_gives_the_same_bits():
    options = sim.SimOptions(camera=False, disturbance=0.015)
    first, second = (list(islice(sim.episode(sim.Simulation(options), 7), 2000)) for _ in range(2))
    assert first == second


def test_topics_come_at_their_rates_and_in_order(simulation):
    simulation.begin(5, expert=True)
    found = messages(simulation, 500)
    count = Counter(message.topic for message in found)
    assert [count[name] for name in (sim.JOINT_STATES, sim.BLOCK, sim.GOAL, sim.COMMANDS)] == [500, 50, 50, 50]
    times = [message.log_ns for message in found]
    assert times == sorted(times)


@pytest.mark.skipif(find_library("EGL") is None, reason="needs EGL")
def test_an_image_is_published_38_ms_after_its_exposure_with_jitter():
    simulation = sim.Simulation(sim.SimOptions(image_size=(24, 32)))
    found = [message for message in messages(simulation, 500) if message.topic == sim.IMAGES]
    simulation.close()
    exposed_ns = [sum(int.from_bytes(m.data[i : i + 4], "little") * s for i, s in ((4, 10**9), (8, 1))) for m in found]
    delays_ms = np.array([m.log_ns - at for m, at in zip(found, exposed_ns, strict=True)]) / 1e6
    assert 28 <= len(found) <= 30
    assert abs(delays_ms.mean() - 39) < 3  # publication is at the next step of 2 ms: 1 ms more in the mean
    assert delays_ms.std() > 1


def test_a_command_is_clipped_to_the_limits_and_one_that_is_not_finite_is_refused(simulation):
    simulation.begin(0, expert=False)
    simulation.command([9.0] * 6)
    assert (simulation.robot.targets == simulation.robot.limits[:, 1]).all()
    for wrong in ([0.0] * 5, [float("nan")] * 6):
        with pytest.raises(RoboCacheError, match="6 finite"):
            simulation.command(wrong)


def test_a_disturbance_is_executed_and_not_published():
    simulation = sim.Simulation(sim.SimOptions(camera=False, disturbance=0.02))
    simulation.begin(3, expert=True)
    found = [message for message in messages(simulation, 11) if message.topic == sim.COMMANDS]
    published = np.frombuffer(found[-1].data[-56:-8])  # before two empty sequences
    assert (published[:5] != simulation.robot.targets[:5]).any()
    assert published[5] == simulation.robot.targets[5]


@pytest.mark.parametrize(("seed", "placed"), [(0, True), (2, False)])
def test_an_episode_after_a_failure_begins_above_the_block_and_the_expert_recovers(seed, placed):
    simulation = sim.Simulation(sim.SimOptions(camera=False, recoveries=1.0))
    simulation.begin(seed, expert=True)
    robot = simulation.robot
    *beside, height = robot.data.site("gripperframe").xpos - robot.block[:3]
    assert np.linalg.norm(beside) < 0.06
    assert 0 < height < 0.1
    assert robot.positions[5] == robot.targets[5] > robot.limits[5].mean()  # open
    distance = np.linalg.norm(robot.block[:2] - robot.goal[:2])
    assert (PLACED_M < distance < APART_M) == placed
    for _ in sim.episode(simulation, seed):
        pass
    assert robot.is_success


def test_the_share_of_episodes_after_a_failure_is_that_of_the_options():
    for share in (0.0, 0.5, 1.0):
        simulation = sim.Simulation(sim.SimOptions(camera=False, recoveries=share))
        failed = 0
        for seed in range(40):
            simulation.begin(seed, expert=False)
            failed += bool(simulation.robot.positions.any())  # home is 0
        assert (failed > 0, failed < 40) == (share > 0, share < 1)


def test_messages_are_those_of_the_ros_types(simulation):
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.LATEST)
    simulation.begin(1, expert=True)
    found = {message.topic: message.data for message in messages(simulation, 20)}
    found[sim.IMAGES] = sim.image_cdr(12 * 10**9 + 34, "base", np.arange(36, dtype=np.uint8).reshape(3, 4, 3))
    for topic, kind in sim.TYPES.items():
        if topic in found:
            data = bytes(found[topic])
            message = store.deserialize_cdr(data, kind)
            assert bytes(store.serialize_cdr(message, kind)) == data, topic
    assert set(found) >= set(sim.TYPES) - {sim.EPISODE, sim.SUCCESS}


SEED = 1000  # of the first of two demonstrations


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Two recordings, written once and asked for twice."""
    folder = tmp_path_factory.mktemp("sim") / "demos"
    given, lines = SimArguments(STATE, seed=SEED, episodes=2), list[str]()
    written = write_demonstrations(folder, given, lines.append)
    before = [file.stat().st_mtime_ns for file in written]
    assert write_demonstrations(folder, given) == written
    assert [file.stat().st_mtime_ns for file in written] == before  # they are kept
    assert lines == [f"{folder}: 2 episodes, 0 failed"]
    return written


def test_demonstrations_mark_their_episode_and_fuse_with_the_spec_of_the_robot(demonstrations):
    with Bag(demonstrations[1]) as bag:
        assert [message.data[4] for message in bag.messages([sim.EPISODE])] == [1]
        frames = list(BagRun(bag, load_spec(ROOT / "config" / "so101.yaml").without_cameras()).frames())
    assert all((part.valid > 0).all() for part in frames)
    actions = np.concatenate([part.fused.numpy() for part in frames])[:, -6:]
    assert np.abs(np.diff(actions, axis=0)).max() < 0.2  # rad per tick


def test_wrong_arguments_are_refused_and_the_command_line_has_their_defaults():
    for name, value in (("seed", -1), ("rate", float("nan")), ("episodes", -1), ("out", Path("x"))):
        with pytest.raises(RoboCacheError, match=name):
            SimArguments(**{name: value})
    for name, value in (("disturbance", -0.1), ("recoveries", 1.1)):
        with pytest.raises(RoboCacheError, match=name):
            sim.SimOptions(**{name: value})
    given = parser().parse_args([])
    assert (given.seed, given.episodes, given.rate) == (0, 0, 1.0)


def test_images_are_rendered_unless_the_command_line_has_no_camera():
    assert parse([]).options == sim.SimOptions()
    assert parse(["--no-camera"]).options == STATE
    assert parse(["--recoveries", "0.3"]).options == sim.SimOptions(recoveries=0.3)


def test_while_the_expert_advises_its_commands_are_those_of_an_operator():
    simulation = sim.Simulation(STATE)
    before = simulation.robot.targets.copy()
    simulation.advise(on=True)
    topics = {message.topic for message in messages(simulation, 50)}
    assert sim.OPERATOR in topics
    assert sim.COMMANDS not in topics
    assert (simulation.robot.targets == before).all()  # it moves nothing
    simulation.close()


def test_the_labels_of_a_demonstration_executed_at_their_ticks_repeat_it(simulation, demonstrations):
    spec = load_spec(ROOT / "config" / "so101.yaml").without_cameras()
    with Bag(demonstrations[0]) as bag:
        frames = list(BagRun(bag, spec).frames())
    rows = np.concatenate([part.fused.numpy() for part in frames])
    plan = ActionPlan(["linear"] * 6, RunOptions())
    plan.add(Chunk(0, rows[:, -6:]))

    simulation.begin(SEED, expert=False)
    for tick, row in enumerate(rows):
        assert np.abs(simulation.robot.positions - row[:6]).max() < 1e-3  # rad: labels are float32
        command = plan.take(tick)
        simulation.command(command.row.astype(np.float64))
        simulation.step()
        while not simulation.at_tick:
            simulation.step()
    assert simulation.robot.is_success


def test_the_expert_fetches_a_block_again_that_it_lost(simulation):
    simulation.begin(0, expert=True)
    while simulation.robot.block[2] < 0.06:  # until it is lifted
        messages(simulation, 1)
    simulation.robot.data.joint("block").qpos[:3] = np.add(simulation.robot.goal, [-0.02, 0.09, 0])
    while not simulation.episode_has_ended:
        messages(simulation, 1)
    assert simulation.robot.is_success
