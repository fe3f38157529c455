"""Windows in a LeRobot dataset: features of shape [n, D], with a mask and the ages of the samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.spec.layout import Layout

# A policy may read the values. The others are not below `observation.`, so that a policy does not use them as input.
VALUES, MASK, AGES = "observation.window.{}", "robocache.mask.{}", "robocache.sample_age_ms.{}"


class WindowColumns:
    """The columns of all windows that are not reduced."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._streams = [stream for stream in layout.spec.vectors if stream.rows]

    def columns(self, frames: Frames) -> dict[str, NDArray[Any]]:
        """Return (T, n, D) float32 values, (T, n) int64 mask and (T, n) float32 ages of each window, by feature."""
        columns: dict[str, NDArray[Any]] = {}
        fused, ages = frames.fused.numpy(), frames.sample_age_ms
        for stream in self._streams:
            assert ages is not None
            age = ages[:, self._layout.sample_ages[stream.name]]
            values = fused[:, self._layout.slots[stream.name]]
            columns[VALUES.format(stream.name)] = values.reshape(len(values), *stream.shape)
            columns[MASK.format(stream.name)] = (age >= 0).astype(np.int64)
            columns[AGES.format(stream.name)] = age
        return columns

    def features(self) -> dict[str, Any]:
        """Return the entries of meta/info.json."""
        features: dict[str, Any] = {}
        for s in self._streams:
            features[VALUES.format(s.name)] = {
                "dtype": "float32",
                "shape": list(s.shape),
                "names": list(s.components),
            }
            features[MASK.format(s.name)] = {"dtype": "int64", "shape": [s.rows], "names": None}
            features[AGES.format(s.name)] = {"dtype": "float32", "shape": [s.rows], "names": None}
        return features
