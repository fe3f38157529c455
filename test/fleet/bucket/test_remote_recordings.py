"""Exports from a bucket to a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.exporter.progress import Converted, Event
from robocache_ros.spec import FusionSpec
from test.fleet.bucket.conftest import NO_MEDIA, Contents, objects
from test.fleet.fault_proxy import Faults
from test.fleet.s3_server import Bucket


def urls(bucket: Bucket, bags: list[Path]) -> list[str]:
    return [bucket.put(f"raw/{bag.name}", bag) for bag in bags]


def fetched(faults: Faults, recording: str) -> int:
    """The bytes of a recording that were sent."""
    return sum(each.sent for each in faults.requests if each.method == "GET" and f"/raw/{recording}/" in each.path)


def test_an_export_that_continues_downloads_no_recording_that_is_converted(
    faulty_s3: Bucket,
    faults: Faults,
    bags: list[Path],
    spec: FusionSpec,
    local: Callable[..., Contents],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recordings = urls(faulty_s3, bags)

    def stop(event: Event) -> None:
        if isinstance(event, Converted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(recordings, spec, f"{faulty_s3.url}/out", NO_MEDIA, progress=stop)
    size = sum(file.stat().st_size for file in bags[0].iterdir())
    assert fetched(faults, bags[0].name) >= size // 2
    faults.requests.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another machine"))
    export(recordings, spec, f"{faulty_s3.url}/out", NO_MEDIA)
    assert sum(fetched(faults, bag.name) for bag in bags[1:]) > 0
    assert fetched(faults, bags[0].name) < size // 10
    assert set(objects(faulty_s3)) == set(local())
