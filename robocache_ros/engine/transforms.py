"""Static transforms between frames: a tree, and the pose of any frame in any other.

Composed here in float64, live as of recordings, and not by tf2: the same operations in the same order give the same
bits on a robot and on a server that has no ROS.
"""

from __future__ import annotations

import logging
import math
import threading

from robocache_ros.decode.payloads import Matrix
from robocache_ros.decode.transforms import Transform
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import Extrinsic

log = logging.getLogger(__name__)

IDENTITY: Matrix = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))


class StaticTransforms:
    """The transforms of /tf_static; the last one of a child frame counts, as in tf2."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a node hears of transforms in another thread than of clouds
        self._parents: dict[str, tuple[str, Matrix]] = {}
        self._found: dict[tuple[str, str], Matrix | None] = {}

    def add(self, transform: Transform) -> bool:
        """Take one in; False, with a word in the log, for one that is no rigid transform to another frame."""
        try:
            matrix = Extrinsic(transform.translation_m, transform.rotation_xyzw).matrix
        except (RoboCacheError, OverflowError) as error:
            problem = str(error)
        else:
            finite = all(math.isfinite(value) for row in matrix for value in row)
            problem = "" if finite else "it is not finite"
            if transform.parent == transform.child:
                problem = "they are one frame"
        if problem:
            log.warning(
                "/tf_static: the transform from %s to %s is left out: %s", transform.parent, transform.child, problem
            )
            return False
        with self._lock:
            self._parents[transform.child] = (transform.parent, matrix)
            self._found.clear()
        return True

    def lookup(self, target: str, source: str) -> Matrix | None:
        """T_target_source, the pose of the frame `source` in `target`; None while they are not connected."""
        key = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            if key not in self._found:
                self._found[key] = self._between(*key)
            return self._found[key]

    def _between(self, target: str, source: str) -> Matrix | None:
        above = dict(self._upwards(target))
        for frame, matrix in self._upwards(source):
            if frame in above:
                return _product(_inverse(above[frame]), matrix)
        return None

    def _upwards(self, frame: str) -> list[tuple[str, Matrix]]:
        """The frame and all above it, each with T_above_frame; a loop, which a tree has not, ends it."""
        path = [(frame, IDENTITY)]
        seen = {frame}
        while frame in self._parents:
            frame, matrix = self._parents[frame]
            if frame in seen:
                break
            seen.add(frame)
            path.append((frame, _product(matrix, path[-1][1])))
        return path


def _product(a: Matrix, b: Matrix) -> Matrix:
    """A B of two [R | t]."""
    return tuple(
        tuple(row[0] * b[0][j] + row[1] * b[1][j] + row[2] * b[2][j] + (row[3] if j == 3 else 0.0) for j in range(4))
        for row in a
    )


def _inverse(a: Matrix) -> Matrix:
    """[R' | -R' t] of an [R | t]."""
    columns = tuple(zip(*a, strict=True))
    x, y, z = columns[3]
    return tuple((*column, -(column[0] * x + column[1] * y + column[2] * z)) for column in columns[:3])
