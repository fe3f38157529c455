"""Which executor the options of an export name, and what they reserve for a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.recordings import spec
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.executors import (
    LocalProcesses,
    Machines,
    RayTasks,
    Resources,
    chosen_executor,
    stated_needs,
)
from robocache_ros.exporter.pieces import Plan, estimated_needs
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions

GB = 10**9


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"executor": "spark"}, "executor: 'spark' is not one of local, ray"),
        ({"address": "head:6379"}, "address: is an option of Ray; add --executor ray"),
        ({"per_task": "cpus=2"}, "per-task: is an option of Ray; add --executor ray"),
        ({"executor": "ray", "jobs": 2}, "jobs: is for processes of this machine; with --executor ray, use --per-task"),
        ({"executor": "ray", "per_task": "cores=2"}, "per-task: 'cores=2'; write for example cpus=2,gpus=0.25"),
        ({"executor": "ray", "per_task": "cpus=2GB"}, "per-task: 'cpus=2GB'; write"),
        ({"executor": "ray", "per_task": "cpus=1,cpus=2"}, "per-task: 'cpus=1,cpus=2'; write"),
        ({"executor": "ray", "per_task": "cpus=0"}, "per-task: cpus is not in the range up to 1,024"),
        ({"executor": "ray", "per_task": "memory=99999999GB"}, "per-task: memory is not in the range"),
    ],
)
def test_an_option_that_is_wrong_is_one_line(options, expected):
    with pytest.raises(RoboCacheError) as error:
        chosen_executor(**options)
    assert str(error.value).startswith(expected)


def test_what_is_stated_replaces_what_is_estimated():
    assert isinstance(chosen_executor(), LocalProcesses)
    assert isinstance(chosen_executor("ray", address="head:6379"), RayTasks)
    estimated = Resources(1.0, 0.0, 2 * GB)
    assert stated_needs("")(estimated) == estimated
    assert stated_needs("cpus=0.5, gpus=0.25, memory=4GB")(estimated) == Resources(0.5, 0.25, 4 * GB)
    assert stated_needs("memory=1GiB")(estimated) == replace(estimated, memory_bytes=1 << 30)


def test_memory_grows_with_cameras_and_datasets_and_not_without_end_with_the_recording():
    def memory(cameras: int, size: int, datasets: int = 1) -> int:
        plan = Plan((), load_spec(spec(cameras)), DatasetOptions(), {})
        return estimated_needs([plan] * datasets, size).memory_bytes

    assert memory(0, 10**6) < memory(1, 10**6) < memory(3, 10**6) < memory(3, 10**6, datasets=2)
    assert memory(0, GB) == memory(0, 100 * GB)


class Nodes:
    """Stands in for the module `ray`: the machines of a cluster."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.resources = resources

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": each} for each in self.resources] + [{"Alive": False, "Resources": {}}]


def test_slots_are_what_fits_on_each_machine_and_those_that_come_are_counted_after_a_while():
    now, nodes = 0.0, Nodes({"memory": 64 * GB}, {"CPU": 4, "memory": 5 * GB})
    machines = Machines(nodes, lambda: now)
    assert machines.fitting(Resources(1, 0, 8 * GB)).memory_bytes == 5 * GB  # of a machine with cores
    assert machines.slots(Resources()) == 4
    nodes.resources += ({"CPU": 8, "GPU": 1, "memory": 64 * GB},)
    assert machines.slots(Resources()) == 4
    now = 5.0
    slots = {Resources(): 12, Resources(3): 3, Resources(1, 0, 2 * GB): 10, Resources(1, 0.25): 4}
    assert {needs: machines.slots(needs) for needs in slots} == slots


def test_no_machine_is_one_slot_for_the_one_that_will_start(caplog):
    machines = Machines(Nodes({"memory": 64 * GB}))
    assert [machines.slots(Resources()) for _ in range(2)] == [1, 1]
    (reported,) = caplog.messages
    assert "no machine of the cluster has 1 cores, 0 GPUs and 0.0 GB; waiting for one" in reported
