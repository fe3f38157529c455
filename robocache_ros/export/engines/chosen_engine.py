"""The engine that the options of a command name."""

from __future__ import annotations

import re
from collections.abc import Callable

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.engines.local_processes import LocalProcesses
from robocache_ros.export.engines.ray_tasks import RayTasks
from robocache_ros.export.engines.task_engine import Engine, Resources
from robocache_ros.remote.cache_limit import UNITS

ENGINES = ("here", "ray")
_MAXIMUM = {"cpus": 1024, "gpus": 64, "memory": 1 << 44}
_NEED = re.compile(r"(cpus|gpus|memory)=(\d{1,15}(?:\.\d{1,6})?)(MB|GB|MiB|GiB|)")


def chosen_engine(
    on: str = "here", *, jobs: int | None = None, address: str | None = None, per_task: str | None = None
) -> Engine:
    """Return the engine of an export.

    Args:
        on: `here`: processes of this machine; `ray`.
        jobs: number of processes, here; None: the number of cores.
        address: of a cluster of Ray, as for `RayTasks`.
        per_task: what Ray reserves for a recording, such as `cpus=2,gpus=0.25,memory=4GB`; the others are estimated.

    Errors:
        RoboCacheError: an option is wrong, or is not one of this engine.
    """
    if on not in ENGINES:
        raise RoboCacheError(f"on: {printable(on, 40)!r} is not one of {', '.join(ENGINES)}")
    if on == "ray":
        if jobs is not None:
            raise RoboCacheError("jobs: is for processes of this machine; with --on ray, use --per-task cpus=...")
        return RayTasks(address, stated_needs(per_task or ""))
    for name, value in (("address", address), ("per-task", per_task)):
        if value is not None:
            raise RoboCacheError(f"{name}: is an option of Ray; add --on ray")
    return LocalProcesses(jobs)


def stated_needs(per_task: str) -> Callable[[Resources], Resources]:
    """Return what replaces the resources of tasks by stated ones, such as `cpus=2,memory=4GB`; empty: nothing."""
    stated: dict[str, float] = {}
    for part in filter(None, per_task.replace(" ", "").split(",")):
        found = _NEED.fullmatch(part)
        name = found[1] if found else ""
        if not found or name in stated or (found[3] and name != "memory"):
            raise RoboCacheError(
                f"per-task: {printable(per_task, 60)!r}; write for example cpus=2,gpus=0.25,memory=4GB"
            )
        stated[name] = float(found[2]) * UNITS[found[3]]
        if stated[name] > _MAXIMUM[name] or (name == "cpus" and not stated[name]):
            raise RoboCacheError(f"per-task: {name} is not in the range up to {_MAXIMUM[name]:,}; correct it")

    def used(needs: Resources) -> Resources:
        return Resources(
            stated.get("cpus", needs.cpus),
            stated.get("gpus", needs.gpus),
            int(stated.get("memory", needs.memory_bytes)),
        )

    return used
