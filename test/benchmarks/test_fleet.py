"""The model of exports with Ray, on cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet import Costs, end_of_linear, speedups

COSTS = Costs(task_s=10.0, driver_s=0.001, merge_s=0.0)


def test_workers_share_the_conversions_evenly_within_the_cores_of_one_machine():
    assert [COSTS.seconds(16, workers) for workers in (1, 2, 4, 16)] == [160.0, 80.0, 40.0, 10.0]
    assert COSTS.seconds(17, 16) == 20.0
    assert [replace(COSTS, core_s=4.0).seconds(10, workers) for workers in (1, 2, 5)] == [100.0, 50.0, 40.0]


def test_a_recording_waits_for_its_requests_and_its_bytes_and_all_for_the_driver_and_the_bucket():
    costs = replace(COSTS, requests=40, latency_s=0.025, read_bytes=900e6, written_bytes=100e6, worker_bytes_s=100e6)
    assert costs.recording_s == pytest.approx(10 + 1 + 10)
    assert COSTS.seconds(100_000, 100_000) == pytest.approx(100.0)
    costs = replace(COSTS, read_bytes=1e9, bucket_bytes_s=10e9)
    assert costs.seconds(1000, 1000) == pytest.approx(100.0)


def test_the_merge_ends_what_is_linear():
    costs = replace(COSTS, driver_s=0.0, merge_s=0.1)
    assert speedups(costs, 1000, [10]) == [pytest.approx(10100 / 1100)]
    assert end_of_linear(costs, 1000, 256) == (11, "the merge")  # 12 need 840 + 100 s, and 935 at most


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (replace(COSTS, driver_s=1.0), "the driver"),
        (replace(COSTS, start_s=500.0), "the start"),
        (replace(COSTS, read_bytes=1e9, bucket_bytes_s=1e9), "the bucket"),
    ],
)
def test_the_limit_is_the_stage_that_takes_the_most(costs, expected):
    assert end_of_linear(costs, 1000, 64)[1] == expected
