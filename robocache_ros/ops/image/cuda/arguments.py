"""The arguments of the kernels in kernels/image: the structures of image/arguments.cuh."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_longlong, c_uint, c_void_p


class Image(Structure):
    """The bytes of an image, and the crop."""

    _fields_ = (
        ("data", c_void_p),
        ("step", c_longlong),
        ("width", c_int),
        ("height", c_int),
        ("top", c_int),
        ("left", c_int),
        ("rows", c_int),
        ("columns", c_int),
        ("pixel_bytes", c_int),
        ("offset", c_int * 4),
        ("big_endian", c_int),
        ("channels", c_int),
    )


class Affine(Structure):
    """(value - mean) / std of each channel."""

    _fields_ = (("given", c_int), ("mean", c_float * 3), ("std", c_float * 3))


class ConvertArguments(Structure):
    """An image, and its conversion."""

    _fields_ = (
        ("image", Image),
        ("affine", Affine),
        ("out", c_void_p),
        ("width", c_int),
        ("height", c_int),
        ("element", c_int),
    )


class AreaImageArguments(Structure):
    """Area means of any 8-bit image."""

    _fields_ = (("convert", ConvertArguments), ("per_block", c_int), ("vector", c_int))


class Axis(Structure):
    """One axis of area means, in lowest terms."""

    _fields_ = (("source", c_int), ("out", c_int), ("magic", c_uint), ("least", c_int))


class AreaArguments(Structure):
    """Area means of a packed image whose rows are aligned."""

    _fields_ = (("convert", ConvertArguments), ("across", Axis), ("down", Axis), ("per_block", c_int))


class NormalizeArguments(Structure):
    """Planes of uint8 to normalise."""

    _fields_ = (
        ("image", c_void_p),
        ("affine", Affine),
        ("out", c_void_p),
        ("planes", c_longlong),
        ("plane", c_longlong),
        ("channels", c_int),
    )
