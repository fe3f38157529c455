"""Two short recordings and their local export, to compare with exports to a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import bags, spec  # noqa: F401 - fixtures
from test.fleet.s3_server import Bucket

Contents = dict[str, bytes]
NO_MEDIA = DatasetOptions(media="none")


def contents(folder: Path) -> Contents:
    """Every file of a folder."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def objects(bucket: Bucket, prefix: str = "out/") -> Contents:
    """Every object of a dataset in a bucket, without the records of its export."""
    names = (key[len(prefix) :] for key in bucket.keys(prefix))
    return {name: bucket.read(prefix + name) for name in names if not name.startswith(".robocache/")}


def hidden(bucket: Bucket, prefix: str = "out/") -> list[str]:
    """The names of the records and the pieces of exports to a target."""
    return [key[len(prefix) :] for key in bucket.keys(prefix) if key.startswith(f"{prefix}.robocache/")]


@pytest.fixture(scope="session")
def local(
    bags: list[Path],  # noqa: F811
    spec: FusionSpec,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Contents]:
    """The files of a local export, by its options."""
    made: dict[DatasetOptions, Contents] = {}

    def make(options: DatasetOptions = NO_MEDIA) -> Contents:
        if options not in made:
            made[options] = contents(export(bags, spec, tmp_path_factory.mktemp("local") / "out", options).out)
        return made[options]

    return make
