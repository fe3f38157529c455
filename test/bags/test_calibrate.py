"""Latencies and drifts measured from recordings whose latencies are known, and cameras that see a clock."""

import base64
import importlib
import os
import re
from concurrent.futures import ProcessPoolExecutor
from ctypes.util import find_library
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from robocache_ros.bags import qr_clock
from robocache_ros.bags.calibrate import calibrate
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.sim import simulation as sim
from robocache_ros.sim.simulation import image_cdr
from robocache_ros.sim.so101 import JOINTS
from robocache_ros.spec import load_spec
from test.bags.moving_robot import START_S, TYPES, Robot, record, spec

ROOT = Path(__file__).parents[2]
CAMERA = ("/joint_states", "/image")
TOLERANCE_MS = 5.0  # what is asked of a recording of 60 s; the errors have a standard deviation of 1.3 ms


def measured(path, fusion=None, **options):
    """The measurements of a recording by name, and all that was found."""
    with Bag(path) as bag:
        found = calibrate(bag, fusion or spec(), **options)
    return {each.name: each for each in found.measurements}, found


@pytest.fixture
def short(tmp_path):
    """Makes recordings of 12 s."""
    return lambda topics=CAMERA, **keys: record(
        tmp_path / "bag", Robot(**{"seconds": 12, "joint_hz": 250, **keys}), topics
    )


def test_the_latencies_of_a_late_camera_and_of_actions_are_measured(tmp_path):
    robot = Robot(seed=1, latency_ms=200, action_ms=120)
    of, found = measured(record(tmp_path / "bag", robot))
    for name, true_ms in (("front", robot.latency_ms), ("action", robot.action_ms)):
        assert abs(of[name].value - true_ms) < TOLERANCE_MS
        assert of[name].low <= true_ms <= of[name].high
    assert found.patch() == {
        "streams": {"front": {"latency_ms": round(of["front"].value, 1)}},
        "run": {"action_latency_ms": round(of["action"].value, 1)},
    }
    assert not [each for each in found.measurements if each.quantity == "drift"]


def test_a_camera_that_is_stamped_early_has_a_negative_latency_to_which_that_of_the_joints_is_added(short):
    path = short(seed=2, seconds=20, latency_ms=-100)
    plain = measured(path)[0]["front"]
    changed = measured(path, spec(joints={"latency_ms": 10}, front={"latency_ms": 77}))[0]["front"]
    assert abs(plain.value + 100) < TOLERANCE_MS
    assert plain.low <= -100 <= plain.high
    assert changed.value == pytest.approx(plain.value + 10, abs=1)  # other steps of the lag
    assert changed.current == 77
    with pytest.raises(RoboCacheError, match="--joints: front has no recorded positions"):
        measured(path, joints="front")


def camera_of_a_seed(folder, seed):
    """The error of the latency of a camera in ms, and whether its interval has the truth."""
    random = np.random.default_rng(10_000 + seed)
    hz, latency_ms = int(random.choice([250, 500])), float(random.uniform(-100, 200))
    path = record(folder / str(seed), Robot(seed, joint_hz=hz, latency_ms=latency_ms), CAMERA)
    one = measured(path)[0]["front"]
    rmtree(path)  # 10 MB
    return abs(one.value - latency_ms), one.low <= latency_ms <= one.high


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 3 minutes on two cores
def test_latencies_of_100_seeds_are_found_and_nine_of_ten_intervals_have_the_truth(tmp_path):
    with ProcessPoolExecutor(min(8, os.cpu_count()), get_context("spawn")) as pool:
        found = list(pool.map(partial(camera_of_a_seed, tmp_path), range(100)))
    errors, inside = zip(*found, strict=True)
    assert np.sqrt(np.mean(np.square(errors))) < 0.5 * TOLERANCE_MS
    assert np.mean(np.array(errors) <= TOLERANCE_MS) >= 0.95
    # Of 100 intervals with a coverage of 0.9, 79 or fewer have the truth in 1 of 1,000 experiments.
    assert sum(inside) >= 80


@pytest.mark.parametrize("ppm", [80, 10_000])
def test_a_clock_of_its_own_drifts_unless_it_is_the_pace_of_a_simulation(short, ppm):
    path = short(seed=3, seconds=30, stamp_ppm=ppm, stamp_offset_s=-1e6)
    of, _ = measured(path, spec(joints={"stamp": "device"}))
    drift, camera = of["/joint_states"], of["front"]
    assert (drift.quantity, drift.unit) == ("drift", "ppm")
    if ppm > 80:
        assert "run at 0.990 times the clock of the log" in drift.refused
    else:
        assert drift.low <= ppm <= drift.high
        assert drift.high - drift.low < 10
        assert camera.low - 5 <= 38 <= camera.high + 5  # 5 ms: the least delay of messages, rounded up


@pytest.mark.slow
@pytest.mark.skipif(find_library("EGL") is None, reason="needs EGL")
def test_the_latency_of_the_rendered_camera_of_the_simulated_arm_is_measured(tmp_path):
    text = (ROOT / "config" / "so101.yaml").read_text().replace("rate_hz: 30", "rate_hz: 30\n    stamp: receive")
    (tmp_path / "by_arrival.yaml").write_text(text)
    simulation = sim.Simulation(sim.SimOptions(image_size=(48, 64)))
    write_bag(tmp_path / "bag", sim.TYPES, _waving(simulation, seconds=16))
    simulation.close()
    # The images show the arm of the step before, and are published at the step after their delay.
    step_ms = sim.STEP_NS / 1e6
    true_ms = sim.IMAGE_DELAY_NS / 1e6 + 1.5 * step_ms
    one, stamped = (
        measured(tmp_path / "bag", load_spec(file))[0]["front"]
        for file in (tmp_path / "by_arrival.yaml", ROOT / "config" / "so101.yaml")
    )
    assert abs(one.value - true_ms) < TOLERANCE_MS
    assert one.low <= true_ms <= one.high
    assert abs(stamped.value - step_ms) < TOLERANCE_MS


def _waving(simulation, seconds):
    """What is published while the arm moves between random positions."""
    random = np.random.default_rng(1)
    simulation.begin(1, expert=False)
    end_ns, from_ns, length_ns = simulation.now_ns + seconds * 10**9, simulation.now_ns, 1
    last = goal = simulation.robot.positions.copy()
    while simulation.now_ns < end_ns:
        yield from simulation.publish()
        if simulation.at_tick:
            if simulation.now_ns >= from_ns + length_ns:
                from_ns, length_ns, last = simulation.now_ns, int(random.uniform(0.25, 0.8) * 1e9), goal
                near = last + random.uniform(-0.7, 0.7, 6)
                goal = np.clip(near, [-1, -1.4, -0.5, -1.2, -1, 0], [1, 0.2, 1.4, 1.2, 1, 1])
            part = (simulation.now_ns - from_ns) / length_ns
            targets = last + (goal - last) * part**3 * (10 - 15 * part + 6 * part**2)
            data = sim.joint_state_cdr(simulation.now_ns, JOINTS, targets, sim.NO_VALUES)
            yield RawMessage(sim.COMMANDS, simulation.now_ns, data)
            simulation.command(targets)
        simulation.step()


LATENCY_MS = 43.0


@pytest.fixture(scope="module")
def html():
    for module in ("segno", "zxingcpp"):
        pytest.importorskip(module)
    return qr_clock.page()


def modules_of(html, number):
    """The modules that the page draws for a code."""
    found = re.search(r'atob\("([^"]+)"\)', html)
    assert found
    bits = np.unpackbits(np.frombuffer(base64.b64decode(found[1]), np.uint8))
    size = qr_clock.SIDE**2
    return bits[number * size : (number + 1) * size].reshape(qr_clock.SIDE, qr_clock.SIDE)


def picture(modules, random):
    """(H, W, 3) of a code on a display, with noise."""
    grey = np.kron(1 - np.pad(modules, qr_clock.BORDER), np.ones((4, 4))) * 170 + 40
    return np.repeat((grey + random.normal(0, 8, grey.shape)).clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def seen(folder, html, *, frames=90, scatter_ms=1.0):
    """What is measured of a camera at 30 Hz that sees the page on a fast display, without joints."""
    random = np.random.default_rng(0)
    messages = []
    for index in range(frames):
        exposed_ns = START_S * 10**9 + index * 33_333_333
        number = exposed_ns // (qr_clock.STEP_MS * 1_000_000) % qr_clock.CODES
        stamp_ns = exposed_ns + round((LATENCY_MS + scatter_ms * random.normal()) * 1e6)
        data = image_cdr(stamp_ns, "camera", picture(modules_of(html, number), random))
        messages.append(RawMessage("/image", stamp_ns + 1_000_000, data))
    write_bag(folder, {"/image": TYPES["/image"]}, sorted(messages, key=lambda message: message.log_ns))
    return measured(folder, reader=qr_clock.CodeReader)[0]["front"]


def test_the_page_needs_no_network_and_its_codes_are_read(html):
    assert "http" not in html.lower()
    assert "src=" not in html
    for number in (0, 1, qr_clock.CODES - 1):
        image = picture(modules_of(html, number), np.random.default_rng(0))
        (found,) = importlib.import_module("zxingcpp").read_barcodes(image[..., 0].copy())
        assert found.text == f"ROBOCACHE{number:04d}"


def test_the_latency_of_a_camera_is_read_from_the_codes_unless_they_are_few_or_scattered(tmp_path, html):
    one, few, scattered = (
        seen(tmp_path / name, html, **options)
        for name, options in (("bag", {}), ("few", {"frames": 10}), ("scattered", {"scatter_ms": 400}))
    )
    assert (one.name, one.against, one.samples) == ("front", "host clock", 90)
    assert abs(one.value - LATENCY_MS) < 1.5
    assert one.low <= LATENCY_MS <= one.high
    assert one.high - one.low < 6
    assert few.refused.startswith("10 of 10 frames show a code, 30 are needed; ")
    assert "stamp the camera by the clock of the page's host" in scattered.refused


@pytest.mark.parametrize(
    ("keys", "reason", "names"),
    [
        ({"motion": "still"}, "the joints stand still", ("front", "action")),
        ({"motion": "sine"}, "periodic motion", ("front",)),
        ({"image_hz": 0.05}, "1 frame, 101 are needed", ("front",)),
        ({"seconds": 6}, "5.0 s of frames", ("front",)),
        ({"topics": ("/command", "/image")}, "no joint positions", ("front", "action")),
        ({"topics": ("/image",)}, "no joint positions", ("front",)),
        ({"noise": 500.0}, "no clear peak", ("front",)),
    ],
)
def test_what_a_recording_does_not_determine_is_refused(short, keys, reason, names):
    of, found = measured(short(**{"topics": tuple(TYPES), **keys}))
    for name in names:
        assert reason in of[name].refused
        assert "; " in of[name].refused  # what to do
        assert np.isnan(of[name].value)
        assert name not in str(found.patch())
