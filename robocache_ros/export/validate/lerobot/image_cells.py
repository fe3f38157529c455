"""Images in the data table of a LeRobot dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from robocache_ros.errors import printable
from robocache_ros.export.validate.array_values import image_size
from robocache_ros.export.validate.findings import Findings
from robocache_ros.export.validate.lerobot.info_file import Info
from robocache_ros.export.validate.lerobot.own_columns import OwnColumns


def check_images(findings: Findings, info: Info, where: str, table: Any, own: OwnColumns) -> None:
    """Check that every row of an episode has an image of the feature's size; decode it with `findings.decode`.

    A row that repeats the bytes of the row before is not looked at again.
    """
    for key, feature in info.features.items():
        if feature.dtype != "image":
            continue
        if key not in table.column_names:
            findings.add(where, f"column {printable(key, 60)} is missing")
            continue
        before = len(findings.found)
        last, same = b"", np.zeros(len(table), np.bool_)
        for row, cell in enumerate(table[key]):
            value = cell.as_py()
            data = value.get("bytes") if isinstance(value, dict) else None
            if not data:
                findings.add(where, f"{key}: row {row} has no image")
                break
            if data == last:
                same[row] = True
                continue
            last = data
            with findings.reading(f"{where}, {key}, row {row}", ValueError):
                found = image_size(data, decode=findings.decode)
                findings.counted["decoded frames"] += findings.decode
                if feature.size is not None and found != feature.size:
                    findings.add(where, f"{key}: row {row} is {found[0]}x{found[1]}, not {feature.size}")
                    break
            findings.counted["images"] += 1
        if len(findings.found) == before:
            own.check_repeated(where, key, same)
