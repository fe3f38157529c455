"""The demo's checks: each must be able to fail."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.bags.reader import Bag
from robocache_ros.cli import demo
from robocache_ros.cli.demo import Comparison, advice, checks_of, compare
from robocache_ros.engine import Frames
from robocache_ros.exporter.job import ExportResult
from robocache_ros.spec import load_spec

PERIOD_NS = 20_000_000
T0 = 1_760_000_000 * 10**9
VECTOR = {"topic": "/v", "type": "std_msgs/msg/Float64MultiArray", "dim": 2}
FRONT = {"topic": "/image", "type": "sensor_msgs/msg/Image", "image": {"size": [2, 2], "normalize": "imagenet"}}
SPEC = load_spec({"robocache": 1, "streams": {"v": VECTOR, "front": FRONT}})
ALL = Comparison(20, 20, ())


def frames(count=20):
    ticks_ns = T0 + PERIOD_NS * np.arange(count, dtype=np.int64)
    images = torch.arange(count * 12, dtype=torch.uint8).reshape(count, 3, 2, 2)
    fused = torch.arange(2.0 * count).reshape(count, 2)
    valid, age = np.ones((count, 2), np.uint8), np.full((count, 2), 1_000_000)
    return Frames(ticks_ns, fused, valid, age, {"front": images})


def live(missing=(), invalid=0, slower_s=0.0):
    seen = demo.Live(SPEC, dict(demo.ticks(frames(), SPEC)), first_s=10.0, newest_s=10.0 + 19 * 0.02 + slower_s)
    for index in missing:
        del seen.ticks[T0 + index * PERIOD_NS]
    for tick in list(seen.ticks.values())[:invalid]:
        tick.valid[1] = 0
    return seen


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").touch()
    (tmp_path / "report.html").touch()
    return ExportResult(tmp_path, (SimpleNamespace(frames=20, duration_s=0.4),), 0.1)


@pytest.mark.parametrize(
    ("seen", "comparison", "failing"),
    [
        (live(), ALL, []),
        (live(missing=[7]), Comparison(20, 19, ()), [0]),
        (live(invalid=10), ALL, [1]),  # a stream that is mostly invalid
        (live(), Comparison(20, 20, (T0,)), [2]),  # a tick that differs
        (live(), Comparison(200, 20, ()), [2]),  # too few ticks
        (live(slower_s=0.1), ALL, [0]),  # another rate
    ],
)
def test_each_check_fails_for_what_it_is_about(dataset, seen, comparison, failing):
    checks = checks_of(seen, SPEC, 1.0, comparison, dataset)
    assert [number for number, check in enumerate(checks) if not check.passed] == failing


@pytest.mark.parametrize(("missing", "passes"), [([7], True), ([7, 8, 100], False)])
def test_one_missed_tick_in_a_hundred_is_no_failure(dataset, missing, passes):
    seen = live()
    tick = seen.ticks[T0]
    seen.ticks = {T0 + number * PERIOD_NS: tick for number in range(201) if number not in missing}
    seen.newest_s = seen.first_s + 200 * PERIOD_NS / 1e9
    assert checks_of(seen, SPEC, 1.0, ALL, dataset)[0].passed is passes
    assert (advice(seen, 1.0) == []) is passes


def test_missed_ticks_are_followed_by_advice_and_counted(dataset):
    assert advice(live(), 1.0) == []
    assert "--rate 0.5" in advice(live(missing=[7]), 1.0)[0]
    text = checks_of(live(), SPEC, 1.0, Comparison(20, 15, (T0,)), dataset)[2].text
    assert text == "14 ticks equal the offline ones bit for bit, 1 differ, 5 were not published"


def test_a_report_that_is_not_there_fails(dataset):
    (dataset.out / "report.html").unlink()
    assert not checks_of(live(), SPEC, 1.0, ALL, dataset)[4].passed


def test_ticks_compare_equal_to_their_own_recording():
    assert compare(live().ticks, frames(), SPEC) == ALL


@pytest.mark.parametrize("part", ["fused", "valid", "age_ns", "front"])
def test_one_bit_in_any_part_makes_a_tick_differ(part):
    other = frames()
    array = other.media["front"] if part == "front" else getattr(other, part)
    array[3] = 0
    assert compare(live().ticks, other, SPEC).differing == (T0 + 3 * PERIOD_NS,)


def test_the_spec_is_played_without_loss():
    assert {stream.qos.reliability for stream in demo.with_reliable_qos(SPEC).streams} == {"reliable"}


def test_the_picture_is_drawn_from_the_recording(tmp_path):
    root = Path(__file__).parents[2]
    spec = load_spec(root / "config" / "panda_lift.yaml")
    path = root / "test" / "data" / "panda_lift"
    with Bag(path) as bag:
        demo.draw(tmp_path / "demo.png", bag, spec, demo.recorded(path, spec))
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"
