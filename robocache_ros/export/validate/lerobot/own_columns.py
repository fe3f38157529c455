"""The columns that this package adds to LeRobot datasets: ticks, stamps and validity of the streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.validate.array_values import check_ticks, stamps_disagree
from robocache_ros.export.validate.findings import Findings
from robocache_ros.export.validate.lerobot.info_file import OWN, Info

TICK, STAMP = "robocache.tick_ns", "robocache.stamp_ns"
VALID, AGE = "robocache.valid", "robocache.age_ns"
WINDOW, MASK = "observation.window.", "robocache.mask."


class OwnColumns:
    """Checks the columns of a dataset that this package wrote. Does nothing for others.

    Args:
        findings: collects what is wrong.
        info: of the dataset.
    """

    def __init__(self, findings: Findings, info: Info) -> None:
        self._findings = findings
        self._rate_hz = round(info.fps)
        text = "is missing: the names of streams and their measured stamps are lost, and the dataset cannot be loaded"
        findings.check(info.own or TICK not in info.features, OWN, text)
        valid = info.features.get(VALID)
        names = valid.names if valid is not None else None
        self._streams = [str(name) for name in names] if isinstance(names, list) else []
        # By feature the stream of each of its columns: columns are named <stream>.<component>.
        self._sources: dict[str, NDArray[np.int64]] = {}
        for key in ("observation.state", "action"):
            labels = info.features[key].names if key in info.features else None
            if self._streams and isinstance(labels, list):
                self._sources[key] = np.array([self._source(str(label)) for label in labels], np.int64)

    def _source(self, label: str) -> int:
        of = [row for row, name in enumerate(self._streams) if label.startswith(f"{name}.")]
        return max(of, key=lambda row: len(self._streams[row]), default=-1)

    def check(self, where: str, values: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Check the columns of an episode; return by feature its values with NaN where they are missing."""
        if TICK in values:
            check_ticks(self._findings, f"{where}, {TICK}", values[TICK].reshape(-1), self._rate_hz)
        if VALID not in values or values[VALID].ndim != 2:
            self._findings.check(TICK not in values, where, f"has no {VALID} of (rows, streams): it cannot be loaded")
            return {}
        valid = values[VALID]
        if TICK in values and (AGE not in values or values[AGE].shape != valid.shape):
            self._findings.add(where, f"{AGE} does not have the shape of {VALID}: it cannot be loaded")
        self._findings.check(bool(np.isin(valid, (0, 1, 2)).all()), where, f"{VALID}: has values other than 0, 1 and 2")
        if STAMP in values and values[STAMP].shape == valid.shape:
            off = stamps_disagree(values[STAMP], valid)
            self._findings.check(not off.any(), where, f"{STAMP}: 0 and {VALID} disagree in {int(off.sum())} places")
        missing = {}
        for key, sources in self._sources.items():
            if key in values and values[key].shape[1:] == sources.shape:
                gone = (valid[:, sources] == 0) & (sources >= 0)
                zero = values[key][gone] == 0
                text = f"{key}: {int((~zero).sum())} values are not 0 where {VALID} is 0"
                self._findings.check(bool(zero.all()), where, text)
                missing[key] = np.where(gone, np.float32(np.nan), values[key])
        for key, mask in ((WINDOW + key.removeprefix(MASK), mask) for key, mask in values.items() if MASK in key):
            if key in values and values[key].shape[:2] == mask.shape:
                padding = np.broadcast_to(mask[:, :, None] == 0, values[key].shape)
                missing[key] = np.where(padding, np.float32(np.nan), values[key])
        return missing
