"""Images as a policy asks for them, against those that a dataset gives."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros import ops
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.fused_subscriber import ImageConverter
from robocache_ros.spec import StreamSpec, load_spec

PIXELS = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(3, 16, 16)
SHARES = PIXELS.to(torch.float32).div(255)  # as torchvision's ToTensor, with which LeRobotDataset reads images
DEPTH = torch.full((1, 2, 2), 1234.5)
UINT8: dict[str, Any] = {"dtype": torch.uint8}


def stream(normalize: str | None = None) -> StreamSpec:
    image = {"normalize": normalize} if normalize else {}
    front = {"topic": "/front", "type": "sensor_msgs/msg/Image", "image": image}
    return load_spec({"robocache": 1, "streams": {"front": front}}).stream("front")


def test_image_is_what_a_png_of_the_dataset_becomes():
    pil = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pil.fromarray(PIXELS.permute(1, 2, 0).numpy()).save(file, "PNG")

    stored = torch.from_numpy(np.array(pil.open(file))).permute(2, 0, 1).contiguous()

    assert torch.equal(ImageConverter()(stream("imagenet"), PIXELS), stored.to(torch.float32).div(255))


@pytest.mark.parametrize("normalize", ["imagenet", None])
@pytest.mark.parametrize("node_normalizes", [False, True])
def test_pixels_and_depth_are_those_of_the_dataset_and_normalized_on_request(normalize, node_normalizes):
    spec, normalized = stream(normalize), ops.normalize_image(PIXELS, normalize)
    image = normalized if node_normalizes else PIXELS

    assert torch.equal(ImageConverter()(spec, image), SHARES)
    assert torch.equal(ImageConverter(normalize=True)(spec, image), normalized if normalize else SHARES)
    assert torch.equal(ImageConverter(**UINT8)(spec, image), PIXELS)
    assert node_normalizes or ImageConverter(**UINT8)(spec, image) is PIXELS  # not copied
    for options in ({}, UINT8):
        assert torch.equal(ImageConverter(**options)(spec, DEPTH), DEPTH)


def test_image_of_unknown_size_is_empty():
    assert ImageConverter(torch.float16)(stream(), None).dtype == torch.float16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": torch.int32}, r"dtype: torch\.int32 is not one of"),
        ({**UINT8, "normalize": True}, "normalize: normalised images are not uint8"),
    ],
)
def test_other_values_are_refused(options, words):
    with pytest.raises(RoboCacheError, match=words):
        ImageConverter(**options)
