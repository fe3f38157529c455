"""How a depth image, and the colour image over it, lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

# Encoding: NumPy's type, PointField's datatype, units of depth to the metre (REP 118).
DEPTHS = {"16UC1": ("u2", 4, 1000.0), "mono16": ("u2", 4, 1000.0), "32FC1": ("f4", 7, 1.0)}
# Encoding: bytes of a pixel, and where red, green and blue are in it.
COLORS = {
    "rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)), "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
}  # fmt: skip


@dataclass(frozen=True)
class Color:
    """The colour image over a depth image, of its size."""

    at: int  # bytes from the depth image's first to its first
    step: int  # bytes from a row to the next
    encoding: str


@dataclass(frozen=True)
class DepthLayout:
    """A checked layout: the depth, and the colour, of every pixel lies inside the bytes."""

    encoding: str
    width: int
    height: int
    step: int
    big_endian: bool
    camera: tuple[float, float, float, float]  # fx, fy, cx, cy; float32 values
    color: Color | None
    # Of each feature: 0..2 for x, y, z in the grid's frame, 3 + the byte of a pixel's colour.
    sources: tuple[int, ...]
