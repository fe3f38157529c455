"""The arguments of the kernels in kernels/resample: the structures of resample/arguments.cuh."""

from __future__ import annotations

from ctypes import Structure, c_int, c_longlong, c_uint, c_void_p
from functools import cache


class Limits(Structure):
    """Limits of an alignment, in ns."""

    _fields_ = (("max_gap", c_longlong), ("max_age", c_longlong))


class StreamArguments(Structure):
    """One stream: where it is, and how it is cut into tiles."""

    _fields_ = (
        ("data", c_void_p),
        ("times", c_void_p),
        ("lengths", c_void_p),
        ("limits", Limits),
        ("samples", c_int),
        ("width", c_int),
        ("part_bits", c_int),
        ("column", c_int),
        ("group", c_int),
        ("span", c_int),
        ("tiles", c_int),
        ("traits", c_int),
        ("lanes", c_int),
        ("step", c_int),
        ("rest", c_int),
        ("reach", c_int),
        ("width_magic", c_uint),
        ("reach_magic", c_uint),
    )


class Job(Structure):
    """What all streams share."""

    _fields_ = (
        ("out", c_void_p),
        ("targets", c_void_p),
        ("valid", c_void_p),
        ("age", c_void_p),
        ("batches", c_int),
        ("count", c_int),
        ("pitch", c_int),
        ("marks", c_int),
        ("mark", c_int),
        ("count_magic", c_uint),
        ("turn", c_int),
        ("turn_magic", c_uint),
    )


# The fields that differ between calls; the plan of a launch has the others.
GIVEN = frozenset({"out", "targets", "valid", "age", "data", "times", "lengths", "max_gap", "max_age"})


@cache
def resample_arguments(streams: int) -> type[Structure]:
    """ResampleArguments for that number of streams."""
    fields = (("job", Job), ("streams", StreamArguments * streams), ("first", c_int * streams))
    return type("ResampleArguments", (Structure,), {"_fields_": fields})


class BlendArguments(Structure):
    """Rows of one source that the caller selected."""

    _fields_ = (
        ("data", c_void_p),
        ("out", c_void_p),
        ("lower", c_void_p),
        ("upper", c_void_p),
        ("weight", c_void_p),
        ("rows", c_longlong),
        ("samples", c_int),
        ("width", c_int),
        ("span", c_int),
    )
