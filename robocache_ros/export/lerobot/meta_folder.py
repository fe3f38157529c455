"""The files in a LeRobot dataset's meta/ folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec


def write_tasks(meta: Path, task: str) -> None:
    """Write tasks.parquet, which names the task of every frame."""
    pyarrow = need("pyarrow", "export")
    # The metadata that pandas writes for a frame with the task as index. LeRobot looks up tasks by this index.
    tasks = pyarrow.table({"task_index": np.zeros(1, np.int64), "task": [task]})
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
        ],
    }
    tasks = tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
    need("pyarrow.parquet", "export").write_table(tasks, meta / "tasks.parquet")


def write_json(path: Path, value: Any) -> None:
    """Write a human-readable JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def image_contract(spec: FusionSpec, stored: Mapping[str, str]) -> dict[str, Any]:
    """Return by image stream how pixels are stored, and the normalization in the spec.

    A dataset contains pixels before normalization. The training code normalizes them once.
    """
    return {
        stream.name: {
            "stored": stored.get(stream.name, "not stored"),
            "normalized": False,
            "normalize": asdict(stream.image.normalize) if stream.image and stream.image.normalize else None,
        }
        for stream in spec.streams
        if stream.kind == "image"
    }
