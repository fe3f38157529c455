"""Limits on the cost of one message; a message that exceeds one is refused and counted as a bad message.

Each is several times what real sensors send, and small enough that the worst message costs a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_NAMES = 1024  # joint names or point fields of a message; a humanoid with hands has 100 joints
# A joint name, field name, frame, encoding or format; a spec allows names of 256 characters.
MAX_TEXT_BYTES = 1024
MAX_ELEMENTS = 65_536  # elements of a sequence that are read one by one, such as strings
MAX_TRANSFORMS = 4096  # in a message of /tf or /tf_static
MAX_POINTS = 2**23  # in a cloud; the largest known sensor is a structured-light scanner of 5 megapixels
MAX_MEMORY = 8  # lists of names that a decoder caches

MAX_DEFINITION_BYTES = 2**20  # a message definition with all the types that it needs
MAX_TYPES = 1024  # in one definition
MAX_DEPTH = 32  # messages nested in messages
MAX_LEAVES = 16_384  # numbers and strings of a type; an array counts once
MAX_FIXED_BYTES = 2**30  # a type's arrays of fixed length


@dataclass(frozen=True)
class ImageLimits:
    """Limits of an image. The defaults cover 8K video (7680x4320), the largest cameras of robots.

    pixels: in a colour or grey image. depth_pixels: in a compressedDepth image; the largest depth cameras have 5
    million. scans: in a jpeg; encoders of progressive jpegs write about 10. segments: in a jpeg before its first scan.
    chunks: in a png; encoders write one for every 8 KiB or more.
    """

    pixels: int = 2**25
    depth_pixels: int = 2**24
    scans: int = 16
    segments: int = 1024
    chunks: int = 32_768


IMAGE_LIMITS = ImageLimits()
