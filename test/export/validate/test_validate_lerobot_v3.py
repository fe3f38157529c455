from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import ExportResult
from robocache_ros.formats.validate import validate
from test.export.validate.conftest import found

DATA = "data/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"
Copy = Callable[[str], Path]


def change_json(dataset: Path, name: str, change: Callable[[Any], None]) -> None:
    value = json.loads((dataset / name).read_text())
    change(value)
    (dataset / name).write_text(json.dumps(value))


@pytest.mark.parametrize("media", ["video", "image", "none"])
def test_nothing_is_found_in_an_export(copy: Copy, media: str) -> None:
    assert found(copy(media), decode=True) == []


def test_nothing_is_found_in_a_dataset_of_another_tool() -> None:
    recordings = os.environ.get("ROBOCACHE_RECORDINGS")
    if not recordings:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    (findings,) = validate(Path(recordings) / "lerobot_v30_so101")
    assert findings.found == []
    assert findings.counted["video frames"] == findings.counted["rows"] == 1782
    assert any("checksums" in text for text in findings.unchecked)


def test_a_truncated_video(copy: Copy) -> None:
    dataset = copy("video")
    os.truncate(dataset / VIDEO, (dataset / VIDEO).stat().st_size // 2)
    (text,) = found(dataset)
    assert text.startswith(f"{VIDEO}: cannot be read")


def test_damage_within_a_video_is_found_by_decoding(copy: Copy) -> None:
    dataset = copy("video")
    with (dataset / VIDEO).open("r+b") as file:
        file.seek((dataset / VIDEO).stat().st_size // 2)
        file.write(bytes(2000))
    assert found(dataset) == []
    assert any(text.startswith(VIDEO) for text in found(dataset, decode=True))


def test_an_altered_byte_by_the_checksums(made: Callable[[str], ExportResult], tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made("none").out, tmp_path / "set"))
    assert found(dataset) == []
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dataset, check=True)
    (dataset / "meta/info.json").write_bytes((dataset / "meta/info.json").read_bytes() + b"\n")
    assert found(dataset) == ["meta/info.json: its checksum is not that in SHA256SUMS: the file was changed"]


def test_an_image_that_is_not_one(copy: Copy) -> None:
    dataset = copy("image")
    table = parquet.read_table(dataset / DATA)
    key = "observation.images.front"
    cells = table[key].to_pylist()
    cells[5] = {"bytes": b"no image", "path": None}
    at = table.column_names.index(key)
    parquet.write_table(table.set_column(at, key, pyarrow.array(cells, table[key].type)), dataset / DATA)
    (text,) = found(dataset)
    assert f"{key}, row 5: cannot be read" in text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"codebase_version": "v3.0", "fps": 0, "features": {}}', "{"])
def test_an_unusable_info_is_one_line(copy: Copy, text: str) -> None:
    dataset = copy("none")
    (dataset / "meta/info.json").write_text(text)
    if '"v3.0"' in text:
        (line,) = found(dataset)
        assert line.startswith("meta/info.json: fps is 0")
    else:
        with pytest.raises(RoboCacheError, match="not a dataset that can be validated"):
            validate(dataset)


def test_a_path_out_of_the_dataset_is_refused(copy: Copy) -> None:
    dataset = copy("none")

    def outside(info: dict[str, Any]) -> None:
        info["data_path"] = "../{chunk_index}-{file_index}.parquet"

    change_json(dataset, "meta/info.json", outside)
    assert any("is outside the dataset" in text for text in found(dataset))
