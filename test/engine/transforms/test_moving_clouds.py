"""Clouds of sensors that move: placed by the transforms of their stamp, which they wait for."""

import math

import numpy as np
import pytest
import torch

from robocache_ros.engine import FusionEngine, Ingest, Outcome
from robocache_ros.engine.ingest import WAIT_NS, WAITING
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, at, same_live_as_recorded

HALF = math.sqrt(0.5)
WAIT_MS = WAIT_NS // MS


def spec(**keys):
    voxels = {"origin_m": [0, 0, 0], "size_m": 1, "shape": [8, 8, 8], "frame": "base"}
    scan = {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": voxels, "max_age_ms": 200, **keys}
    return load_spec({"robocache": 1, "delay_ms": 100, "streams": {"scan": scan}})


def ingest(**keys):
    fusion = spec(**keys)
    return Ingest(fusion, FusionEngine(fusion))


def push(into, feed, data, ms):
    return into.serialized(feed, data, at(ms))


def cell(into, ms):
    """The voxel that is occupied at a time."""
    grid = into.engine.resolve(np.array([at(ms)])).media["scan"][0]
    return [index.tolist() for index in grid.nonzero()]


@pytest.fixture
def moving(tf_message):
    """The camera's transform: 10 ms apart it moves by one metre along x, back after `period_ms`; it looks along x."""
    turn = (0.0, HALF, 0.0, HALF)  # the camera's z is the base's x
    return lambda ms, period_ms=10**6: tf_message(
        (at(ms), "base", "camera", (ms % period_ms / 10 + 0.5, 2.5, 3.5), turn)
    )


@pytest.mark.parametrize(("latency_ms", "x"), [(0, 3), (10, 2)])
def test_a_cloud_is_placed_by_the_pose_at_its_stamp_less_the_latency_of_the_sensor(one_point, moving, latency_ms, x):
    into = ingest(latency_ms=latency_ms)
    for ms in (0, 10, 30):
        push(into, "/tf", moving(ms), ms)
    assert push(into, "scan", one_point(at(20)), 32) is Outcome.ACCEPTED
    assert cell(into, 40) == [[x, 2, 3]]  # at 2.5 m without latency, and the point is 1 m ahead


def test_a_cloud_waits_for_the_transform_after_its_stamp(one_point, moving):
    into = ingest()
    push(into, "/tf", moving(0), 0)
    assert push(into, "scan", one_point(at(20)), 21) is Outcome.WAITING
    push(into, "/tf", moving(10), 22)
    assert not cell(into, 40)
    push(into, "/tf", moving(30), 35)
    assert cell(into, 40) == [[3, 2, 3]]
    assert dict(into.counters["scan"]) == {"received": 1, "decoded": 1, "accepted": 1}
    assert dict(into.counters["/tf"]) == {"received": 3, "decoded": 3}


def test_static_transforms_are_part_of_the_way(one_point, moving, tf_message):
    into = ingest()
    into.static_transforms(tf_message((0, "camera", "optical", (0, 0, 2))))
    for ms in (0, 10):
        push(into, "/tf", moving(ms), ms)
    push(into, "scan", one_point(at(0), frame="/optical"), 12)
    assert cell(into, 20) == [[3, 2, 3]]


def test_a_cloud_whose_transform_does_not_come_in_time_is_dropped_and_counted(one_point, moving, caplog):
    into = ingest()
    push(into, "/tf", moving(0), 0)
    push(into, "scan", one_point(at(20)), 21)
    push(into, "/tf", moving(10), 21 + WAIT_MS)
    assert not into.counters["scan"]["dropped"]
    push(into, "/tf", moving(11), 22 + WAIT_MS)
    assert into.counters["scan"]["dropped:no_transform"] == 1
    why = "camera has no transform near that time (of camera in base), at its stamp"
    assert f"scan: a message is dropped: {why}" in caplog.text
    push(into, "/tf", moving(30), 23 + WAIT_MS)
    assert not into.counters["scan"]["accepted"]


def test_a_bounded_number_of_clouds_waits(one_point, moving):
    into = ingest()
    push(into, "/tf", moving(0), 0)
    for k in range(WAITING + 3):
        push(into, "scan", one_point(at(20 + k)), 21 + k)
    assert into.counters["scan"]["dropped:no_transform"] == 3
    push(into, "/tf", moving(10), 40)
    push(into, "/tf", moving(60), 61)
    assert into.counters["scan"]["accepted"] == WAITING


def test_a_gap_wider_than_the_stream_allows_is_not_interpolated_over(one_point, moving):
    into = ingest(max_gap_ms=25)
    for ms in (0, 30):
        push(into, "/tf", moving(ms), ms)
    assert push(into, "scan", one_point(at(20)), 32) is Outcome.WAITING
    push(into, "/tf", moving(10), 33)  # late, and just what was missing
    assert cell(into, 40) == [[3, 2, 3]]


def test_without_moving_frames_a_cloud_is_dropped_at_once(one_point, tf_message):
    into = ingest()
    assert push(into, "scan", one_point(at(0)), 1) is Outcome.DROPPED
    assert into.counters["scan"]["dropped:no_transform"] == 1


def test_a_cloud_without_a_stamp_cannot_be_placed(one_point, moving):
    into = ingest(stamp="receive")
    push(into, "/tf", moving(0), 0)
    assert push(into, "scan", one_point(0), 1) is Outcome.UNSTAMPED


def test_a_jump_back_of_the_stamps_forgets_the_time_before(one_point, moving):
    into = ingest()
    for ms in (5000, 5010):
        push(into, "/tf", moving(ms), ms)
    push(into, "scan", one_point(at(5020)), 5021)
    for ms in (0, 20):  # the first one after the jump is used
        push(into, "/tf", moving(ms), ms)
    assert into.counters["scan"]["dropped:no_transform"] == 1
    assert push(into, "scan", one_point(at(10)), 22) is Outcome.ACCEPTED
    assert cell(into, 30) == [[2, 2, 3]]


def test_a_live_engine_makes_the_voxels_of_the_deployed_recording(one_point, moving):
    rng = np.random.default_rng(4)
    stamps = np.cumsum(rng.integers(2, 18, 120))
    log = [(at(int(ms + rng.integers(0, 40))), "/tf", moving(int(ms), 60)) for ms in stamps]
    log += [(at(int(ms + rng.integers(0, 60))), "scan", one_point(at(int(ms)))) for ms in range(5, 1000, 33)]
    log.sort(key=lambda entry: entry[0])
    live, recorded = ingest(), Ingest(spec(), FusionEngine(spec(), unbounded=True))
    messages = [(feed, arrival, data) for arrival, feed, data in log]
    made = same_live_as_recorded(live, recorded, messages, at(1), at(900))
    assert len({frames.media["scan"].numpy().tobytes() for frames in made}) > 4
    assert len(made) > 35
    assert live.counters["scan"]["accepted"] > 20


def test_the_gpu_backend_makes_the_voxels_of_the_cpu_backend(one_point, moving, emulated):
    fusion = spec()
    both = [Ingest(fusion, emulated(fusion)), Ingest(fusion, FusionEngine(fusion))]
    grids = set()
    for into in both:
        into.engine.advance(at(0))
    for ms in range(0, 600, 10):
        made = []
        for into in both:
            push(into, "/tf", moving(ms, 60), ms)
            if ms % 50 == 0:
                push(into, "scan", one_point(at(ms - 5)), ms)
            made.append(into.engine.advance(at(ms)))
        assert torch.equal(made[0].media["scan"], made[1].media["scan"])
        assert made[0].rows().numpy().tobytes() == made[1].rows().numpy().tobytes()
        grids |= {grid.numpy().tobytes() for grid in made[1].media["scan"]}
    assert len(grids) > 4
