"""Recordings at URLs whose server fails: what passes is waited for, everything else is one line with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from test.fleet.fault_proxy import Faults
from test.fleet.s3_server import Bucket
from test.fleet.test_remote_recordings import SPEC, TYPES, contents, messages


@pytest.fixture
def spec() -> FusionSpec:
    return load_spec(SPEC)


@pytest.fixture
def recorded(tmp_path: Path) -> list[Path]:
    """Three recordings."""
    return [write_bag(tmp_path / f"run_{n}", TYPES, messages(1.0, 50_000)) / f"run_{n}.mcap" for n in range(3)]


@pytest.fixture
def refused(spec: FusionSpec, tmp_path: Path) -> Callable[[str], str]:
    """Exports a recording; returns the line of the error."""

    def run(url: str) -> str:
        with pytest.raises(RoboCacheError) as raised:
            export([url], spec, tmp_path / "refused")
        (line,) = str(raised.value).splitlines()
        assert len(line) < 200
        return line

    return run


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_export_completes_while_requests_fail(
    seed: int, recorded: list[Path], spec: FusionSpec, faulty_s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    urls = [faulty_s3.put(f"raw/{path.name}", path) for path in recorded]
    faults.share, faults.seed = 0.2, seed

    export(urls, spec, tmp_path / "remote")

    export(recorded, spec, tmp_path / "local")
    assert any(request.status in (0, 500, 503) for request in faults.requests)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")


def test_a_recording_that_is_not_there_is_named(s3: Bucket, refused: Callable[[str], str]) -> None:
    assert refused(f"{s3.url}/none.mcap").startswith(f"{s3.url}/none.mcap: no such recording; give")


def test_a_bucket_that_is_not_there_is_named(s3: Bucket, refused: Callable[[str], str]) -> None:
    assert refused(f"{s3.url}-none/a.mcap") == f"{s3.url}-none/a.mcap: no such bucket; correct the URL"


def test_a_recording_that_may_not_be_read_is_named(
    faulty_s3: Bucket, faults: Faults, recorded: list[Path], refused: Callable[[str], str]
) -> None:
    url = faulty_s3.put("a.mcap", recorded[0])
    faults.deny_reads = True

    assert refused(url) == f"{url}: no permission to read; check the credentials and the permissions on the bucket"


def test_credentials_that_have_expired_are_named(
    faulty_s3: Bucket, faults: Faults, recorded: list[Path], refused: Callable[[str], str]
) -> None:
    url = faulty_s3.put("a.mcap", recorded[0])
    faults.expired = True

    assert refused(url) == f"{url}: the credentials have expired; renew them and run the same command again"


def test_credentials_that_expire_in_between_end_the_export_which_is_continued(
    recorded: list[Path], spec: FusionSpec, faulty_s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    urls = [faulty_s3.put(f"raw/{path.name}", path) for path in recorded]
    converted: list[str] = []

    def expire(event: object) -> None:
        if type(event).__name__ == "Converted":
            converted.append(type(event).__name__)
            faults.expired = True

    with pytest.raises(RoboCacheError, match=r"run_1\.mcap: the credentials have expired") as raised:
        export(urls, spec, tmp_path / "remote", progress=expire)
    faults.expired = False
    again = export(urls, spec, tmp_path / "remote")

    assert len(str(raised.value).splitlines()) == 1
    assert "1 of 3 recordings were converted by an earlier export and reused" in again.notes
    export(recorded, spec, tmp_path / "local")
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")


def test_a_recording_that_is_replaced_meanwhile_is_not_used(
    recorded: list[Path], spec: FusionSpec, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robocache_ros.storage import paths

    url = s3.put("a.mcap", recorded[0])
    whole = paths.part_of

    def replaced(system: object, name: str, start: int, stop: int) -> bytes:
        data = whole(system, name, start, stop)
        s3.put("a.mcap", recorded[1])
        return data

    monkeypatch.setattr(paths, "part_of", replaced)

    with pytest.raises(RoboCacheError, match=r"a\.mcap: changed while it was downloaded; try again"):
        export([url], spec, tmp_path / "out")

    assert not (tmp_path / "out" / "meta").exists()
