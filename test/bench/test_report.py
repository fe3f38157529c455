"""The load of the live benchmark, the figures of what is measured, and the report of a run, from notes by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robocache_ros.bench.load import WARM_UP_S, Load, Options
from robocache_ros.bench.processes import Columns, percentiles, slope_per_minute
from robocache_ros.bench.report import print_report, summarize, write_plot
from robocache_ros.decode import make_decoder
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout


def test_load_is_that_of_a_robot_with_forty_columns():
    spec = load_spec(Load().spec(delay_ms=3.0))
    assert Layout(spec).width == 40
    assert [s.kind for s in spec.media] == ["image", "image", "cloud"]


def test_sensor_without_a_rate_is_left_out_and_a_queue_holds_what_comes_in_a_fifth_of_a_second():
    load = Load(cameras=0, cloud_hz=0, imu_hz=0, joints_hz=500)
    assert [sensor.name for sensor in load.sensors] == ["joints", "pose"]
    assert load_spec(load.spec(delay_ms=3.0)).stream("joints_position").qos.depth == 100


def test_rows_beyond_the_capacity_are_counted():
    columns = Columns(("a", "b"), 2)
    for row in range(3):
        columns.add(row, -row)

    assert columns.lost == 1
    assert columns.to_dict()["b"].tolist() == [0, -1]


def test_percentiles_say_median_tail_and_worst_and_growth_is_that_of_a_minute():
    assert percentiles([]) is None
    assert percentiles(np.arange(101)) == {"p50": 50.0, "p99": 99.0, "max": 100.0, "count": 101.0}
    assert slope_per_minute([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(6.0)
    assert slope_per_minute([10.0, 20.0], [1.0, 2.0]) == pytest.approx(6.0)
    assert slope_per_minute([10.0], [1.0]) == 0


START_NS = 1_760_000_000_000_000_000
SMALL = Load(cameras=1, width=8, height=6, points=10)


@pytest.mark.ros
@pytest.mark.parametrize("sensor", SMALL.sensors, ids=lambda sensor: sensor.name)
def test_a_message_has_its_stamp_and_number_and_every_stream_of_it_can_be_decoded(sensor):
    pytest.importorskip("rclpy")
    from rclpy.serialization import deserialize_message

    from robocache_ros.bench.publisher import template
    from robocache_ros.nodes import middleware

    stamp_ns = START_NS + 123_456_789
    message = template(sensor, SMALL)
    message.stamped(0)
    data = message.stamped(stamp_ns)

    read: Any = deserialize_message(data, middleware.load_message_class(sensor.type))
    assert (read.header.stamp.sec, read.header.stamp.nanosec) == divmod(stamp_ns, 10**9)
    assert (int(read.header.frame_id), message.sent) == (1, 2)
    streams = [stream for stream in load_spec(SMALL.spec(delay_ms=3.0)).streams if stream.topic == sensor.topic]
    assert [make_decoder(stream).decode_cdr(data).stamp_ns for stream in streams] == [stamp_ns] * len(streams)
    assert streams


# The report.

MS = 1_000_000
FIRST_NS = START_NS + round(WARM_UP_S * 1e9)  # the first tick that counts
LOAD = Load(cameras=0, cloud_hz=0, imu_hz=0, pose_hz=0)
OPTIONS = Options(load=LOAD, seconds=0.1, delay_ms=3.0)
TICKS = FIRST_NS + 20 * MS * np.arange(-5, 5)  # half of them in the warm-up
PUBLISHED = {"sent": {"joints": 10}, "skipped": {"joints": 0}, "started_ns": START_NS}


@pytest.fixture
def node():
    return {
        "streams": ["joints_position"],
        "device": "cpu",
        "engine": {},
        "memory": [],
        "rows_lost": 0,
        "counters": {"joints_position": {"received": 9, "decoded": 9, "accepted": 8, "late": 1}},
        "messages.stream": np.zeros(10, np.int64),
        **{f"messages.{moment}_ns": TICKS + MS * n for n, moment in enumerate(("stamp", "arrival", "received"))},
        **{f"ticks.{moment}_ns": TICKS + 3 * MS for moment in ("made", "asked", "ready", "shared")},
        "ticks.tick_ns": TICKS,
        "ticks.newest_joint_ns": TICKS + MS,
        "ticks.published_ns": TICKS + 4 * MS,
    }


@pytest.fixture
def consumer():
    return {"tensors": {}, "rows_lost": 0, "tick_ns": TICKS, "framed_ns": TICKS + 4 * MS,
            "had_ns": TICKS + 5 * MS, "joints_ns": TICKS - MS}  # fmt: skip


@pytest.fixture
def found(node, consumer):
    return summarize(OPTIONS, PUBLISHED, node, consumer, {"node": {}})


def test_losses_count_all_messages_and_latencies_those_after_the_warm_up(found):
    joints = found["streams"]["joints"]

    assert (joints["sent"], joints["received"], joints["lost"]) == (10, 9, 1)
    assert joints["received_share"] == 0.9
    assert joints["counters"] == {"late": 1}
    assert found["ticks"] == 5
    assert joints["to_node_ms"] == {"p50": 2.0, "p99": 2.0, "max": 2.0, "count": 5.0}


def test_jitter_is_against_tick_and_delay_and_consumers_frames_are_joined_by_tick(found):
    assert found["jitter_ms"]["max"] == pytest.approx(1.0)
    assert found["made_to_consumer_ms"]["p50"] == pytest.approx(2.0)
    assert found["emission_to_consumer_ms"]["p50"] == pytest.approx(2.0)
    assert found["newest_joint_age_in_consumer_ms"]["p50"] == pytest.approx(4.0)
    assert found["earlier_joint_age_in_consumer_ms"]["p50"] == pytest.approx(6.0)


def test_jitter_of_the_naive_node_is_against_the_grid_that_fits_it_best(node):
    late = node["ticks.published_ns"].copy()
    late[7] += 2 * MS
    peer = {**node, "received": {"joints": 9}, "ticks.published_ns": late + 7 * MS}
    del peer["counters"]

    found = summarize(OPTIONS, PUBLISHED, peer, None, {"node": {}})

    assert found["jitter_ms"]["p50"] == 0.0
    assert found["jitter_ms"]["max"] == pytest.approx(2.0)


def test_report_names_each_stream_and_a_plot_is_drawn(found, tmp_path, capsys):
    print_report({"node": found})

    lines = capsys.readouterr().out.splitlines()
    assert ["joints", "10", "9", "1", "90.00", "%"] in [line.split()[:6] for line in lines]
    pytest.importorskip("matplotlib")
    write_plot({"node": found}, tmp_path / "live.png")
    assert (tmp_path / "live.png").read_bytes().startswith(b"\x89PNG")


def test_columns_stay_apart_whatever_the_numbers_are(found, capsys):
    huge = {"p50": 12345678.9, "p99": 12345678.9, "max": 12345678.9, "count": 1.0}
    found["streams"]["joints"] |= {"to_node_ms": huge, "to_tensor_on_gpu_ms": huge, "received": 10**12}
    found["streams"]["a_sensor_of_a_long_name"] = found["streams"]["joints"]
    found["made_to_consumer_ms"] = huge

    print_report({"node": found})

    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "received" in line)
    rows = [line for line in lines if line.startswith(("  joints", "  a_sensor"))]
    assert len(rows) == 2
    for row in rows:
        for title in ("to the node", "tensor on the GPU"):
            at = header.index(title)
            assert row[at - 2 : at] == "  "
            assert row[at:].startswith("12345678.900 / 12345678.900 / 12345678.900")
    values = [line for line in lines if "tensors in the consumer" in line]
    assert len({line.rstrip().rindex("  ") for line in values}) == 1
