"""The path of a dataset: local, or a URL whose files are downloaded when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robocache_ros.remote.any_path import any_path


def dataset_path(
    path: str | Path,
    *,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Return the path of a dataset; see `any_path`. Downloaded files are in robocache_ros/datasets by default."""
    return any_path(path, "datasets", cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=storage_options)
