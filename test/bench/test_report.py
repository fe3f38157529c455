"""The report of a run, from notes made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robocache_ros.bench.load import WARM_UP_S, Load, Options
from robocache_ros.bench.report import print_report, summarize, write_plot

MS = 1_000_000
START_NS = 1_760_000_000_000_000_000
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
        "counters": {"joints_position": {"received": 9, "decoded": 9, "accepted": 8, "late": 1}},
        "engine": {},
        "memory": [],
        "rows_lost": 0,
        "messages.stream": np.zeros(10, np.int64),
        "messages.stamp_ns": TICKS,
        "messages.arrival_ns": TICKS + MS,
        "messages.received_ns": TICKS + 2 * MS,
        "ticks.tick_ns": TICKS,
        "ticks.made_ns": TICKS + 3 * MS,
        "ticks.asked_ns": TICKS + 3 * MS,
        "ticks.ready_ns": TICKS + 3 * MS,
        "ticks.newest_joint_ns": TICKS + MS,
        "ticks.shared_ns": TICKS + 3 * MS,
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

    assert ["joints", "10", "9", "1", "90.00", "%"] in [
        line.split()[:6] for line in capsys.readouterr().out.splitlines()
    ]
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
