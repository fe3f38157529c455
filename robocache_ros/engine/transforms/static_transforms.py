"""Static transforms between frames: a tree, and the pose of any frame in any other frame.

They are composed here in float64 and not by tf2: the same operations in the same order give the same bits on a robot
and on a server without ROS.
"""

from __future__ import annotations

import logging
import math
import threading

from robocache_ros.decode.payloads import Matrix
from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.transforms.pose import Pose, pose_of
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import Extrinsic

log = logging.getLogger(__name__)

MAX_FRAMES = 4096  # frames with a parent; also the maximum number of cached lookups
IDENTITY: Matrix = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))


class StaticTransforms:
    """The transforms of /tf_static; the last transform of each child frame is used, as in tf2.

    Frame names come from outside: at most MAX_FRAMES transforms and as many cached lookups are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a node receives transforms and clouds in different threads
        self._parents: dict[str, tuple[str, Matrix]] = {}
        self._edges: dict[str, tuple[str, Pose]] = {}
        self.version = 0  # increases with each transform
        self._full = False  # a transform was refused because there are MAX_FRAMES, and the warning was logged
        self._found: dict[tuple[str, str], Matrix | None] = {}

    def add(self, transform: Transform) -> bool:
        """Add a transform; logs and returns False if it is not rigid, not between two frames, or one too many."""
        try:
            matrix = Extrinsic(transform.translation_m, transform.rotation_xyzw).matrix
        except (RoboCacheError, OverflowError) as error:
            problem = str(error)
        else:
            finite = all(math.isfinite(value) for row in matrix for value in row)
            problem = "" if finite else "it is not finite"
            if transform.parent == transform.child:
                problem = "both frames are the same"
        if problem:
            log.warning(
                "/tf_static: the transform from %s to %s is ignored: %s", transform.parent, transform.child, problem
            )
            return False
        with self._lock:
            if len(self._parents) >= MAX_FRAMES and transform.child not in self._parents:
                if not self._full:
                    log.warning("/tf_static: more than %d frames; the others are ignored", MAX_FRAMES)
                self._full = True
                return False
            self._parents[transform.child] = (transform.parent, matrix)
            self._edges[transform.child] = (transform.parent, pose_of(transform))
            self.version += 1
            self._found.clear()
        return True

    def edge(self, child: str) -> tuple[str, Pose] | None:
        """The parent of a frame and T_parent_child; None if /tf_static has no parent for it."""
        return self._edges.get(child)  # a tuple or None, even while another thread adds a transform

    def lookup(self, target: str, source: str) -> Matrix | None:
        """T_target_source, the pose of the frame `source` in `target`; None if they are not connected."""
        key = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            if key not in self._found:
                if len(self._found) >= MAX_FRAMES:
                    self._found.clear()
                self._found[key] = self._between(*key)
            return self._found[key]

    def _between(self, target: str, source: str) -> Matrix | None:
        above = dict(self._upwards(target))
        for frame, matrix in self._upwards(source):
            if frame in above:
                return _product(_inverse(above[frame]), matrix)
        return None

    def _upwards(self, frame: str) -> list[tuple[str, Matrix]]:
        """The frame and its ancestors, each with T_ancestor_frame; stops at a loop."""
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
    """The product A B of two transforms [R | t]."""
    return tuple(
        tuple(row[0] * b[0][j] + row[1] * b[1][j] + row[2] * b[2][j] + (row[3] if j == 3 else 0.0) for j in range(4))
        for row in a
    )


def _inverse(a: Matrix) -> Matrix:
    """The inverse [R' | -R' t] of a transform [R | t]."""
    columns = tuple(zip(*a, strict=True))
    x, y, z = columns[3]
    return tuple((*column, -(column[0] * x + column[1] * y + column[2] * z)) for column in columns[:3])
