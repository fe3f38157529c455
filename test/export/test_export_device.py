"""Images and clouds converted on a GPU: the dataset of the CPU, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.convert import Conversion
from robocache_ros.exporter.datasets import device_of
from robocache_ros.exporter.job import export
from robocache_ros.exporter.pieces import Plan
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROOT, named

PANDA = ROOT / "test" / "data" / "panda_lift"
PROVENANCE = ("meta/robocache.json", "SHA256SUMS")  # which name the device


def data(out: Path) -> dict[str, bytes]:
    files = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    return {name: content for name, content in files.items() if name not in PROVENANCE}


def provenance(out: Path) -> str:
    return str(json.loads((out / PROVENANCE[0]).read_text(encoding="utf-8"))["device"])


def test_jpeg_on_a_gpu_needs_one() -> None:
    with pytest.raises(RoboCacheError, match="jpeg: 'gpu' needs a GPU, and device 'cpu' is the CPU"):
        device_of("cpu", DatasetOptions(jpeg="gpu"))


def test_an_unknown_device_is_refused_before_anything_is_written(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    with pytest.raises(RoboCacheError, match="is not one of auto, cpu, cuda"):
        export(bags, spec, tmp_path / "set", device="npu")
    assert not (tmp_path / "set").exists()


def test_a_piece_does_not_depend_on_the_device_unless_nvjpeg_decodes(
    spec: FusionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    recording = PlannedRecording(PANDA)
    on_cpu = Plan((recording,), spec, DatasetOptions(), {})
    nvjpeg = replace(on_cpu, options=DatasetOptions(jpeg="gpu"), device="cuda:0")
    keys = [
        plan.key(recording, [])
        for plan in (on_cpu, replace(on_cpu, device="cuda:0"), nvjpeg, replace(nvjpeg, device="cuda:1"))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_too_little_gpu_memory_is_one_line(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Conversion, "run", full)
    with pytest.raises(RoboCacheError, match=r"lift: not enough GPU memory; use fewer --jobs, or --device cpu"):
        export(bags[:1], spec, tmp_path / "set")


@pytest.mark.gpu
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dataset_made_on_a_gpu_has_the_bits_of_the_cpu(spec: FusionSpec, tmp_path: Path, jobs: int) -> None:
    """Of a recording with images, which are resized, and clouds, which become voxels."""
    assert {stream.kind for stream in spec.media} == {"image", "cloud"}
    options, bags = DatasetOptions(media="image"), [PANDA] * jobs
    cpu = export(bags, spec, tmp_path / "a" / "set", options, jobs=jobs).out
    cuda = export(bags, spec, tmp_path / "b" / "set", options, jobs=jobs, device="cuda").out
    assert data(cuda) == data(cpu)
    assert provenance(cpu) == "cpu"
    assert provenance(cuda).startswith("cuda:0 (")


@pytest.mark.gpu
def test_pieces_of_the_cpu_are_reused_on_a_gpu(spec: FusionSpec, tmp_path: Path) -> None:
    options, seen = DatasetOptions(media="none"), list[str]()
    export([PANDA], spec, tmp_path / "a", options, pieces=tmp_path / "pieces")
    export([PANDA], spec, tmp_path / "b", options, pieces=tmp_path / "pieces", device="auto", progress=named(seen))
    assert seen == []


@pytest.mark.gpu
def test_the_provenance_of_nvjpeg_says_that_pixels_may_differ(spec: FusionSpec, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    out = export([PANDA], spec, tmp_path / "set", DatasetOptions(jpeg="gpu"), device="cuda").out
    assert "jpeg decoded by nvJPEG on " in provenance(out)
    assert provenance(out).endswith("whose pixels may differ")
