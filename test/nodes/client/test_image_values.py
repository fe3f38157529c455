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


def stream(**image: Any) -> StreamSpec:
    front = {"topic": "/front", "type": "sensor_msgs/msg/Image", "image": image}
    return load_spec({"robocache": 1, "streams": {"front": front}}).stream("front")


IMAGENET = stream(normalize="imagenet")


def test_image_is_what_a_png_of_the_dataset_becomes() -> None:
    pil = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pil.fromarray(PIXELS.permute(1, 2, 0).numpy()).save(file, "PNG")

    stored = torch.from_numpy(np.array(pil.open(file))).permute(2, 0, 1).contiguous()
    loaded = stored.to(torch.float32).div(255)  # torchvision's ToTensor, with which LeRobotDataset reads images

    assert torch.equal(ImageConverter()(IMAGENET, PIXELS), loaded)


def test_pixel_of_200_is_0_784_whatever_the_spec_normalizes() -> None:
    image = torch.full((3, 1, 1), 200, dtype=torch.uint8)

    assert ImageConverter()(IMAGENET, image).flatten().tolist() == pytest.approx([200 / 255] * 3)


def test_spec_normalizes_on_request() -> None:
    converted = ImageConverter(normalize=True)(IMAGENET, PIXELS)

    assert torch.equal(converted, ops.normalize_image(PIXELS, "imagenet"))


def test_stream_without_normalize_is_not_normalized() -> None:
    assert torch.equal(ImageConverter(normalize=True)(stream(), PIXELS), PIXELS.to(torch.float32).div(255))


def test_pixels_are_not_copied() -> None:
    assert ImageConverter(torch.uint8)(IMAGENET, PIXELS) is PIXELS


@pytest.mark.parametrize("normalize", [{"normalize": "imagenet"}, {}], ids=["imagenet", "none"])
def test_image_of_a_node_that_normalizes_has_the_same_bits(normalize: dict[str, Any]) -> None:
    normalized = ops.normalize_image(PIXELS, normalize.get("normalize"))

    assert torch.equal(ImageConverter()(stream(**normalize), normalized), PIXELS.to(torch.float32).div(255))
    assert torch.equal(ImageConverter(torch.uint8)(stream(**normalize), normalized), PIXELS)
    assert torch.equal(ImageConverter(normalize=True)(stream(**normalize), normalized), normalized)


def test_depth_keeps_its_units() -> None:
    depth = torch.full((1, 2, 2), 1234.5)

    assert torch.equal(ImageConverter()(stream(), depth), depth)
    assert torch.equal(ImageConverter(torch.uint8)(stream(), depth), depth)


def test_image_of_unknown_size_is_empty() -> None:
    assert ImageConverter(torch.float16)(stream(), None).dtype == torch.float16


def test_other_dtype_is_refused() -> None:
    with pytest.raises(RoboCacheError, match=r"dtype: torch\.int32 is not one of"):
        ImageConverter(torch.int32)


def test_normalized_uint8_is_refused() -> None:
    with pytest.raises(RoboCacheError, match="normalize: normalised images are not uint8"):
        ImageConverter(torch.uint8, normalize=True)
