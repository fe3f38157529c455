"""Fixtures of the decoders' tests: messages, streams and pictures."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import ImagePayload, Sample
from robocache_ros.spec import StreamSpec
from test.decode.cdr.message_builders import Case, assert_same, make_stream, serialize
from test.decode.cdr.message_cases import CASES


@pytest.fixture(scope="session", params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of message in turn."""
    one = request.param
    assert isinstance(one, Case)
    return one


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """Every kind of message by name."""
    return CASES


@pytest.fixture(scope="session")
def stream_of() -> Callable[..., StreamSpec]:
    """Make a stream of a message type."""
    return make_stream


@pytest.fixture(scope="session")
def cdr() -> Callable[..., bytes]:
    """Serialize a message from its type and values."""
    return serialize


@pytest.fixture(scope="session")
def same() -> Callable[[Sample, Sample], None]:
    """Assert that two samples are equal in every field."""
    return assert_same


def _file(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def _payload(data: bytes, encoding: str, source: str = "") -> ImagePayload:
    return ImagePayload(np.frombuffer(data, np.uint8), encoding, source=source)


@pytest.fixture(scope="session")
def pixels() -> dict[str, np.ndarray]:
    """What the pictures were made of: (16, 24[, 3]) ramps that a jpeg keeps well."""
    y, x = np.mgrid[0:16, 0:24]
    deep = (1000 * y + 7 * x).astype(np.uint16)
    deep[3, 4] = 0
    grey = (10 * x + y).astype(np.uint8)
    return {"grey": grey, "rgb": np.stack([grey, grey[::-1], grey[:, ::-1]], -1), "deep": deep}


@pytest.fixture(scope="session")
def pictures(pixels: dict[str, np.ndarray]) -> dict[str, ImagePayload]:
    """The pictures, compressed; metres.depth is quantised inverse depth with a 20 and b 0.5."""
    deep = _file(pixels["deep"], "png")
    return {
        "rgb.jpeg": _payload(_file(pixels["rgb"], "jpeg", quality=95, subsampling=0), "jpeg"),
        "grey.jpeg": _payload(_file(pixels["grey"], "jpeg", quality=95), "jpeg"),
        "grey.png": _payload(_file(pixels["grey"], "png"), "png"),
        "rgb.png": _payload(_file(pixels["rgb"], "png"), "png"),
        "deep.png": _payload(deep, "png"),
        "metres.depth": _payload(struct.pack("<iff", 0, 20.0, 0.5) + deep, "compressedDepth", "32FC1"),
        "millimetres.depth": _payload(struct.pack("<iff", 0, 0.0, 0.0) + deep, "compressedDepth", "16UC1"),
    }
