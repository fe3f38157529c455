"""Exports recordings as `robocache export` does, and prints the time without imports. Run by the benchmarks."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Export; the argument is a JSON object: bags, spec, out, jobs, the options of the export, and device."""
    from robocache_ros.exporter.executors.base import return_freed_memory
    from robocache_ros.exporter.job import export
    from robocache_ros.formats.registry import load_format
    from robocache_ros.spec import load_spec
    from robocache_ros.spec.dataset import DatasetOptions

    wanted: dict[str, Any] = json.loads(sys.argv[1])
    options = DatasetOptions(**{**wanted["options"], "formats": tuple(wanted["options"].get("formats", ["lerobot"]))})
    for name in options.formats:
        load_format(name)
    return_freed_memory()
    before = cpu_seconds()
    spec = load_spec(wanted["spec"])
    more = {"jobs": wanted["jobs"], "device": wanted.get("device", "cpu")}
    done = export([Path(bag) for bag in wanted["bags"]], spec, wanted["out"], options, **more)
    told = {"seconds": done.seconds, "cpu_seconds": cpu_seconds() - before, "rows": done.frames}
    print(json.dumps(told))


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
