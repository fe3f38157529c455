"""Limits on what one message may cost; what exceeds them is refused and counted as a bad message.

Each is several times what real sensors send, and small enough that the worst message costs a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_NAMES = 1024  # joint names or point fields of a message; a humanoid with hands has 100 joints
# Of a joint name, a field name, a frame, an encoding or a format: the 256 characters that a spec may give a name.
MAX_TEXT_BYTES = 1024
MAX_ELEMENTS = 65_536  # of a sequence whose elements are read one by one, such as strings
MAX_TRANSFORMS = 4096  # of a message of /tf or /tf_static
MAX_POINTS = 2**23  # of a cloud; a structured-light scanner of 5 megapixels is the largest known
MAX_MEMORY = 8  # lists of names that a decoder remembers

MAX_DEFINITION_BYTES = 2**20  # of a message definition with all the types it needs
MAX_TYPES = 1024  # in one definition
MAX_DEPTH = 32  # of messages within messages
MAX_LEAVES = 16_384  # numbers and strings of a type, an array counted once
MAX_FIXED_BYTES = 2**30  # of a type's arrays of fixed length


@dataclass(frozen=True)
class ImageLimits:
    """What an image may have. The defaults cover 8K video (7680x4320), the largest cameras of robots.

    pixels: of a colour or grey image. depth_pixels: of a compressedDepth image; the largest depth cameras have 5
    million. scans: of a jpeg; encoders of progressive jpegs write about 10. segments: of a jpeg before its first scan.
    chunks: of a png; encoders write one for every 8 KiB or more.
    """

    pixels: int = 2**25
    depth_pixels: int = 2**24
    scans: int = 16
    segments: int = 1024
    chunks: int = 32_768


IMAGE_LIMITS = ImageLimits()
