"""The requests that an export from a bucket to a bucket sends for a recording."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import bags, spec  # noqa: F401 - fixtures
from test.fleet.fault_proxy import Faults
from test.fleet.s3_server import Bucket

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "export_on_many_machines.md"


def counted(faults: Faults) -> Counter[str]:
    """The requests by the rows of the page, which are forgotten then."""
    found: Counter[str] = Counter()
    for request in faults.requests:
        listing = request.method == "GET" and "list-type" in request.path
        found["LIST" if listing else {"HEAD": "GET, HEAD", "GET": "GET, HEAD"}.get(request.method, request.method)] += 1
    faults.restart()
    return found


def test_a_recording_has_at_most_the_requests_of_the_page(
    faulty_s3: Bucket,
    faults: Faults,
    bags: list[Path],  # noqa: F811
    spec: FusionSpec,  # noqa: F811
) -> None:
    for bag in bags:
        for file in bag.iterdir():
            faulty_s3.put(f"raw/{bag.name}/{file.name}", file)
    found = []
    for count in (1, 2):
        recordings = [f"{faulty_s3.url}/raw/{bag.name}" for bag in bags[-count:]]
        export(recordings, spec, f"{faulty_s3.url}/out{count}", DatasetOptions())
        found.append(counted(faults))
    rows = re.findall(r"^\| (GET, HEAD|PUT|LIST|DELETE) \| ([0-9]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 4
    one, two = found
    assert [name for name, number in rows if two[name] - one[name] > int(number)] == []
