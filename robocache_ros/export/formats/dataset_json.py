"""The JSON files of datasets: metadata, and the provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.formats.lerobot.meta_folder import image_contract


def write_json(path: Path, value: Any) -> None:
    """Write a human-readable JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_provenance(path: Path, dataset: ExportedDataset, encodings: Mapping[str, str]) -> None:
    """Write the provenance, and how images and voxels are stored, given the encoding of each image stream."""
    stored = {stream.name: dataset.stored(stream.name, encodings.get(stream.name)) for stream in dataset.spec.media}
    write_json(path, {**dataset.provenance, "images": image_contract(dataset.spec, stored)})
