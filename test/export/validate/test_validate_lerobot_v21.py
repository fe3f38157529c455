from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.validate.conftest import found, without_checksums

DATA = "data/chunk-000/episode_{:06d}.parquet"
VIDEO = "videos/chunk-000/observation.images.front/episode_{:06d}.mp4"


@pytest.fixture(scope="module")
def exported(bags: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v21") / "out"
    return export(bags, spec, out, DatasetOptions(formats=("lerobot21",)), report=False).out


@pytest.fixture
def dataset(exported: Path, tmp_path: Path) -> Path:
    return without_checksums(exported, tmp_path / "set")


def change_json(dataset: Path, name: str, change: Callable[[Any], None]) -> None:
    value = json.loads((dataset / "meta" / name).read_text())
    change(value)
    (dataset / "meta" / name).write_text(json.dumps(value))


def test_nothing_is_found_in_an_export(dataset: Path) -> None:
    assert found(dataset, decode=True) == []


def test_a_missing_data_file(dataset: Path) -> None:
    (dataset / DATA.format(1)).unlink()
    assert f"{DATA.format(1)}: is missing" in found(dataset)


def test_a_missing_video(dataset: Path) -> None:
    (dataset / VIDEO.format(0)).unlink()
    assert found(dataset) == [f"{VIDEO.format(0)}: is missing"]


def test_statistics_that_gr00t_would_overwrite(dataset: Path) -> None:
    change_json(dataset, "stats.json", lambda stats: stats["action"].pop("q99"))
    assert found(dataset) == ["meta/stats.json: action has no q99: GR00T overwrites the file"]


def test_a_modality_beyond_the_columns(dataset: Path) -> None:
    change_json(dataset, "modality.json", lambda modality: modality["action"]["action"].update(end=9))
    text = "meta/modality.json: action.action: 0 to 9 are not columns of action, which has 7"
    assert text in found(dataset)


def test_a_line_that_is_not_json_is_one_finding(dataset: Path) -> None:
    (dataset / "meta/episodes.jsonl").write_text('{"episode_index": 0,\n')
    (text,) = found(dataset)
    assert text.startswith("meta/episodes.jsonl: line 1: not JSON")


@pytest.mark.parametrize("length", [10**13, 10**400])
def test_an_episode_longer_than_its_video_is_a_finding(dataset: Path, length: int) -> None:
    path = dataset / "meta/episodes.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "length": length}), *others]))

    assert any(text.startswith(f"{VIDEO.format(0)}, episode 0: 1000000000") for text in found(dataset))
