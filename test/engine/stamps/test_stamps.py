"""What gives a sample its time: `stamp` in the spec, live and offline."""

import numpy as np
import pytest
import torch

from robocache_ros.engine import FusionEngine, Ingest, offline
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.engine.conftest import MS, T0, same_live_as_recorded
from test.fuzz.messages import header, serialize

S = 1_000_000_000
BOOT = 60 * S  # the device's clock at T0


def spec_of(stamp):
    stream = {"topic": "/t", "type": "geometry_msgs/msg/PointStamped", "field": "point", "stamp": stamp}
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 40, "streams": {"v": stream}})


def point(stamp_ns, x):
    return serialize("geometry_msgs/msg/PointStamped", {"header": header(stamp_ns), "point": {"x": x}})


def device_messages(count=1000):
    """100 Hz of a device that stamps since its start and restarts halfway, logged up to 15 ms late."""
    rng = np.random.default_rng(3)
    delays = rng.uniform(0, 15 * MS, count).astype(int).tolist()
    found = []
    for k in range(count):
        stamp = BOOT + 10 * k * MS if k < count // 2 else S + 10 * (k - count // 2) * MS
        found.append(("v", T0 + 10 * k * MS + delays[k], point(stamp, float(k))))
    return sorted(found, key=lambda message: message[1])


def offline_rows(spec, messages, **options):
    ingest = Ingest(spec, FusionEngine(spec, unbounded=True))
    frames = offline.run(messages, ingest, T0, messages[-1][1], visibility="deployed", **options)
    return torch.cat([part.rows() for part in frames]), ingest


def test_device_stamps_give_values_at_the_time_of_the_measurement():
    rows, ingest = offline_rows(spec_of("device"), device_messages())
    assert ingest.counters["v"]["device_jumps"] == 1
    expected = 2.0 * torch.arange(len(rows))  # x rises by 2 in a tick of 20 ms
    settled = torch.cat([torch.arange(100, 240), torch.arange(350, len(rows) - 3)])
    assert (rows[settled, 0] - expected[settled]).abs().max() < 0.2  # 2 ms, after one second
    by_arrival, _ = offline_rows(spec_of("receive"), device_messages())
    assert (by_arrival[settled, 0] - expected[settled]).abs().max() > 1.0


def test_ticks_made_one_by_one_equal_an_offline_run_in_chunks_of_any_size():
    spec, messages = spec_of("device"), device_messages()
    live, recorded = Ingest(spec, FusionEngine(spec)), Ingest(spec, FusionEngine(spec, unbounded=True))
    assert len(same_live_as_recorded(live, recorded, messages, T0, messages[-1][1], chunk=7)) > 400
    assert torch.equal(offline_rows(spec, messages, chunk=7)[0], offline_rows(spec, messages)[0])


def test_header_or_receive_takes_the_arrival_of_unset_stamps():
    spec = spec_of("header_or_receive")
    ingest = Ingest(spec, FusionEngine(spec, unbounded=True))
    ingest.serialized_run(
        "v", [point(0 if k % 2 else T0 + 10 * k * MS, k) for k in range(40)], [T0 + 10 * k * MS + k for k in range(40)]
    )
    counters = ingest.counters["v"]
    assert (counters["accepted"], counters["by_arrival"], counters["unstamped"]) == (40, 20, 0)
    frames = ingest.engine.resolve(np.array([T0 + 20 * MS, T0 + 30 * MS + 3]))
    assert frames.age_ns[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("stamp", ["header", "device", "header_or_receive"])
def test_stamps_of_a_type_without_header_are_refused(stamp):
    stream = {"topic": "/t", "type": "std_msgs/msg/Float64", "stamp": stamp}
    with pytest.raises(RoboCacheError, match="has no header; use receive"):
        load_spec({"robocache": 1, "streams": {"v": stream}})


def test_the_layout_states_what_gives_a_sample_its_time():
    assert Layout(spec_of("device")).to_dict()["streams"]["v"]["stamp"] == "device"


def test_a_reset_of_the_timeline_forgets_the_devices_clock():
    engine = FusionEngine(spec_of("device"))
    for k in range(100):
        engine.push("v", BOOT + 10 * k * MS, T0 + 10 * k * MS, np.zeros(3, np.float32))
    engine.reset("test")
    assert engine.device_clocks["v"].offset_ns is None
