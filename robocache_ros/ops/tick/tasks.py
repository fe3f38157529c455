"""The inputs of the kernels of a tick: the structures of kernels/tick/row.cuh and tasks.cuh."""

from __future__ import annotations

from ctypes import Structure, c_double, c_float, c_int, c_longlong, c_void_p

from robocache_ros.ops.image.cuda.arguments import ConvertArguments
from robocache_ros.ops.voxel.cuda.arguments import Clouds

ZERO, KEEP, MAKE = 0, 1, 2  # enum Action


class RowTask(Structure):
    """One vector stream of a row."""

    _fields_ = (
        ("samples", c_void_p),
        ("lower", c_longlong),
        ("upper", c_longlong),
        ("weight", c_float),
        ("width", c_int),
        ("column", c_int),
        ("method", c_int),
    )


class WindowTask(Structure):
    """One stream of a row whose value is computed from all samples since the last tick."""

    _fields_ = (
        ("samples", c_void_p),
        ("slots", c_void_p),
        ("count", c_int),
        ("dim", c_int),
        ("width", c_int),
        ("column", c_int),
        ("reduction", c_int),
        ("unused", c_int),
    )


class RowTarget(Structure):
    """The addresses that a row is written to."""

    _fields_ = (
        ("row", c_void_p),
        ("again", c_void_p),
        ("host", c_void_p),
        ("status", c_void_p),
        ("values", c_int),
        ("statuses", c_int),
    )


class RowArguments(Structure):
    """The addresses of a row's target and tasks."""

    _fields_ = (
        ("target", c_void_p),
        ("tasks", c_void_p),
        ("windows", c_void_p),
        ("streams", c_int),
        ("window_count", c_int),
    )


class Target(Structure):
    """The address that an image or a grid is written to, and the action."""

    _fields_ = (
        ("out", c_void_p),
        ("before", c_void_p),
        ("bytes", c_longlong),
        ("action", c_int),
        ("unused", c_int),
    )


class ImageTask(Structure):
    """One image."""

    _fields_ = (("target", Target), ("convert", ConvertArguments))


class CloudTask(Structure):
    """One voxel grid."""

    _fields_ = (
        ("target", Target),
        ("clouds", Clouds),
        ("sums", c_void_p),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_double),
    )


class TaskArguments(Structure):
    """The address of the task of an image or a cloud: ImageArguments and CloudArguments."""

    _fields_ = (("task", c_void_p),)


class TaskHead(Structure):
    """The beginning of an image's or a cloud's task, which differs between ticks."""

    _fields_ = (("target", Target), ("data", c_void_p))
