"""The image encodings, the layout of an image's bytes, and the check that every pixel is inside them."""

from __future__ import annotations

from dataclasses import dataclass

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import check_choice

MAX_PIXELS = 16384  # a side; keeps the resize weights and positions of both backends inside 32 bits

PACKED, YUV422, NV12, BAYER, U16, F32 = range(6)
RESIZE = {"nearest": 0, "bilinear": 1, "area": 2}  # enum Resize of pixel.cuh


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The layout of a raw image's bytes, not checked; hashable."""

    encoding: str
    width: int  # pixels
    height: int  # rows
    step: int  # bytes from a row to the next
    big_endian: bool


@dataclass(frozen=True)
class Format:
    """An encoding: its family, the bytes of a pixel and where its channels are."""

    name: str
    family: int
    pixel_bytes: int
    offsets: tuple[int, ...]  # PACKED: byte of R, G, B (or of grey); YUV422: of Y0, U, Y1, V; BAYER: x, y of the red
    alias_of: str = ""  # another name of this encoding

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey and depth."""
        return len(self.offsets) if self.family == PACKED else 1 if self.is_float else 3

    @property
    def value_bytes(self) -> int:
        """Bytes of a channel's value."""
        return {U16: 2, F32: 4}.get(self.family, 1)

    def rows(self, height: int) -> int:
        """Rows of `step` bytes in an image of `height`."""
        return height * 3 // 2 if self.family == NV12 else height

    @property
    def is_float(self) -> bool:
        """Whether values stay float32 in the units of the message, instead of uint8."""
        return self.family in (U16, F32)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("rgb8", PACKED, 3, (0, 1, 2)),
        Format("bgr8", PACKED, 3, (2, 1, 0)),
        Format("8UC3", PACKED, 3, (2, 1, 0), "bgr8"),  # OpenCV's order, which cv_bridge assumes too
        Format("rgba8", PACKED, 4, (0, 1, 2)),
        Format("bgra8", PACKED, 4, (2, 1, 0)),
        Format("8UC4", PACKED, 4, (2, 1, 0), "bgra8"),
        Format("mono8", PACKED, 1, (0,)),
        Format("8UC1", PACKED, 1, (0,), "mono8"),
        Format("mono16", U16, 2, (0,)),
        Format("16UC1", U16, 2, (0,)),
        Format("32FC1", F32, 4, (0,)),
        Format("yuv422", YUV422, 2, (1, 0, 3, 2)),
        Format("uyvy", YUV422, 2, (1, 0, 3, 2), "yuv422"),
        Format("yuv422_yuy2", YUV422, 2, (0, 1, 2, 3)),
        Format("yuyv", YUV422, 2, (0, 1, 2, 3), "yuv422_yuy2"),
        Format("nv12", NV12, 1, ()),
        Format("bayer_rggb8", BAYER, 1, (0, 0)),
        Format("bayer_bggr8", BAYER, 1, (1, 1)),
        Format("bayer_gbrg8", BAYER, 1, (0, 1)),
        Format("bayer_grbg8", BAYER, 1, (1, 0)),
    )
}


def image_format(encoding: str) -> Format:
    """The format of a ROS encoding; raises RoboCacheError, which names the supported ones."""
    check_choice("encoding", encoding, FORMATS)
    return FORMATS[encoding]


def check_image(fmt: Format, width: int, height: int, step: int, nbytes: int) -> None:
    """Raise RoboCacheError if a pixel is outside the bytes, or the encoding does not support the size."""
    for name, value in (("width", width), ("height", height)):
        if not 1 <= value <= MAX_PIXELS:
            raise RoboCacheError(f"{name}: {value} of a {fmt.name} image is not in 1..{MAX_PIXELS}")
    if fmt.family in (YUV422, NV12) and width % 2:
        raise RoboCacheError(f"width: {width} is odd; {fmt.name} stores pixels in pairs")
    if fmt.family == NV12 and height % 2:
        raise RoboCacheError(f"height: {height} is odd; nv12 stores rows in pairs")
    if fmt.family == BAYER and min(width, height) < 2:
        raise RoboCacheError(f"width, height: {width} x {height} is too small for {fmt.name}; its pattern is 2 x 2")
    if step < width * fmt.pixel_bytes:
        raise RoboCacheError(f"step: {step} bytes is less than a row of {width} {fmt.name} pixels; correct the message")
    rows = fmt.rows(height)
    if step * rows > nbytes:
        raise RoboCacheError(
            f"data: {nbytes} bytes, but {rows} rows of step {step} are {step * rows}; the image is truncated"
        )
