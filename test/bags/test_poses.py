"""Poses out of recordings, end to end: static frames, both visibilities, moving sensors, and what may be missing."""

import numpy as np
import pytest

from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.bags.conftest import fused
from test.fuzz.recordings import MS, START_NS

TF = "tf2_msgs/msg/TFMessage"
TYPES = {"/tf": TF, "/tf_static": TF}
SPEC = {
    "robocache": 1,
    "delay_ms": 40,
    "streams": {"ee": {"topic": "/tf", "type": TF, "frames": ["base", "tool"], "max_gap_ms": 60, "max_age_ms": 60}},
}


@pytest.fixture
def recording(tmp_path, tf_message):
    """A second in which the arm moves 1 m/s; every fifth message takes 80 ms, and /tf_static comes last."""
    messages = []
    for k in range(50):
        stamp = START_NS + k * 20 * MS
        late = 80 if k % 5 == 4 else 2
        messages.append(("/tf", stamp + late * MS, tf_message((stamp, "base", "arm", (0.02 * k, 0, 0)))))
    messages.append(("/tf_static", START_NS + 1100 * MS, tf_message((0, "arm", "tool", (0, 0, 1)))))
    path = tmp_path / "poses"
    write_bag(path, TYPES, sorted(messages, key=lambda message: message[1]))
    return path


def test_an_ideal_pose_is_that_of_the_tick(recording):
    _, ticks, values, valid = fused(recording, load_spec(SPEC))
    inside = ticks <= START_NS + 980 * MS
    expected = (ticks[inside] - START_NS) / 1e9
    np.testing.assert_allclose(values[inside, 0], expected, atol=1e-7)  # float32 of up to 1 m
    assert set(values[:, 2].tolist()) == {1.0}
    assert set(valid[inside, 0].tolist()) == {1}


def test_a_deployed_pose_lacks_what_came_too_late(recording):
    run, _, values, valid = fused(recording, load_spec(SPEC), visibility="deployed")
    assert run.counters["ee"]["late"] == 10
    assert {1, 2} == set(valid[:-3, 0].tolist())
    assert np.isfinite(values).all()


def test_frames_that_are_not_connected_are_named_in_the_refusal(recording):
    spec = {**SPEC, "streams": {"ee": {**SPEC["streams"]["ee"], "frames": ["map", "tool"]}}}
    with pytest.raises(RoboCacheError, match="ee: no transform from base to map"):
        fused(recording, load_spec(spec))
