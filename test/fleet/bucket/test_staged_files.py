"""Tasks of other machines put the files of a dataset into a bucket, from where they are copied into the target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export, export_together, outputs_of
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import Elsewhere
from test.fleet.bucket.conftest import NO_MEDIA, Contents, hidden, objects
from test.fleet.s3_server import Bucket

VIDEO = DatasetOptions(formats=("lerobot", "robomimic"), rate_hz=10, preset="ultrafast", codec="h264")
VECTORS = DatasetOptions(formats=("mcap", "diffusion_policy"), media="none")


@pytest.mark.parametrize("options", [VIDEO, pytest.param(VECTORS, marks=pytest.mark.slow)], ids=["video", "vectors"])
def test_the_datasets_have_the_bytes_of_local_ones(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents], options: DatasetOptions
) -> None:
    export(bags, spec, f"{s3.url}/out", options, executor=Elsewhere(remote=True))
    assert objects(s3) == local(options)
    assert hidden(s3) == [".robocache/complete.json"]


@pytest.mark.slow
def test_a_dataset_is_replaced(s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents]) -> None:
    mcap = DatasetOptions(formats=("mcap",), media="none")
    export(bags, spec, f"{s3.url}/out", mcap, executor=Elsewhere(remote=True))
    assert objects(s3) == local(mcap)
    export(bags, spec, f"{s3.url}/out", NO_MEDIA, executor=Elsewhere(remote=True), overwrite=True)
    assert objects(s3) == local()


@pytest.mark.slow
def test_several_datasets_are_listed_as_local_ones(
    s3: Bucket, bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    options = DatasetOptions(formats=("webdataset", "mcap"), media="none")
    outputs = outputs_of([("panda", spec)], [10, 5], options)
    export_together(bags[:1], outputs, f"{s3.url}/out", executor=Elsewhere(remote=True))
    export_together(bags[:1], outputs, tmp_path / "out")
    there = {f.relative_to(tmp_path / "out").as_posix(): f for f in (tmp_path / "out").rglob("*") if f.is_file()}
    assert objects(s3) == {name: file.read_bytes() for name, file in there.items()}


def test_the_target_is_empty_until_all_files_are_written(
    s3: Bucket, bags: list[Path], spec: FusionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []
    executor = Elsewhere(remote=True)
    map_ = executor.map

    def watched(work, tasks, progress):  # type: ignore[no-untyped-def]
        yield from map_(work, tasks, progress)
        found.append(set(objects(s3)))

    monkeypatch.setattr(executor, "map", watched)
    export(bags, spec, f"{s3.url}/out", DatasetOptions(formats=("robomimic",), media="none"), executor=executor)
    assert found == [set(), set()]
    assert "dataset.hdf5" in objects(s3)
