"""The arguments of the kernels in kernels/voxel: the structures of voxel/arguments.cuh."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p

from robocache_ros.ops.voxel.cloud_layout import MAX_FEATURES


class Camera(Structure):
    """A rectified camera, and the colour image that is registered to its depth."""

    _fields_ = (
        ("fx", c_float),
        ("fy", c_float),
        ("cx", c_float),
        ("cy", c_float),
        ("unit", c_float),
        ("color_step", c_int),
        ("color", c_longlong),
        ("color_row", c_longlong),
    )


class Clouds(Structure):
    """Clouds as bytes, and the grid that their points are placed in."""

    _fields_ = (
        ("data", c_void_p),
        ("lengths", c_void_p),
        ("cloud_step", c_longlong),
        ("row_step", c_longlong),
        ("point_step", c_longlong),
        ("count", c_longlong),
        ("width", c_longlong),
        ("transform", c_float * 12),
        ("low", c_float * 3),
        ("size", c_float * 3),
        ("shape", c_int * 3),
        ("layout", c_int),
        ("big_endian", c_int),
        ("transformed", c_int),
        ("features", c_int),
        ("listed", c_int),
        ("reads_features", c_int),
        ("offset", c_int * (3 + MAX_FEATURES)),
        ("type", c_int * (3 + MAX_FEATURES)),
        ("camera", Camera),
    )


class ClearArguments(Structure):
    """Memory to clear."""

    _fields_ = (
        ("out", c_void_p),
        ("bytes", c_longlong),
        ("pieces", c_longlong),
        ("apart", c_longlong),
        ("tally", c_void_p),
        ("counters", c_longlong),
    )


class PlaceArguments(Structure):
    """A dense grid of each cloud."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("words", c_int),
    )


class LocateArguments(Structure):
    """The cell of each point, and its row."""

    _fields_ = (
        ("clouds", Clouds),
        ("cell", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("rows", c_void_p),
        ("limit", c_float),
    )


class SortArguments(Structure):
    """Points to sort by bins."""

    _fields_ = (
        ("clouds", Clouds),
        ("rows", c_void_p),
        ("words", c_void_p),
        ("runs", c_void_p),
        ("refused", c_void_p),
        ("tiles", c_int),
        ("tile", c_int),
        ("bits", c_int),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_float),
    )


class BinArguments(Structure):
    """Bins to reduce to voxels."""

    _fields_ = (
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("words", c_void_p),
        ("runs", c_void_p),
        ("refused", c_void_p),
        ("tally", c_void_p),
        ("cells", c_int),
        ("tiles", c_int),
        ("tile", c_int),
        ("bits", c_int),
        ("places", c_int),
        ("capacity", c_int),
        ("bytes", c_int),
        ("scale", c_float),
        ("unit", c_float),
        ("aligned", c_int),
    )


class ClaimArguments(Structure):
    """Voxels for points to claim."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
    )


class WriteArguments(Structure):
    """Claims to replace by features."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_float),
        ("aligned", c_int),
    )
