"""Jpeg files that libjpeg decodes at a part of their size: `image_resize="reduced"`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from robocache_ros import convert_image
from robocache_ros.datasets import CALVINDataset, DatasetError, RTXDataset, TimelineLoader, WeightedMixture, Window
from robocache_ros.formats import images as decoding
from robocache_ros.formats.images import Reduction, decode_image, reduction
from test.datasets.small import episode, write_calvin, write_tfds

SIZE = (48, 80)


def scene(number: int, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    """Smooth waves with an edge, as the scenes of cameras have."""
    y, x = np.mgrid[: size[0], : size[1]]
    waves = [100 + 60 * np.sin((x + 3 * number) / (5 + c)) * np.cos(y / (7 + c)) + 40 * (x > 2 * y) for c in range(3)]
    found: NDArray[np.uint8] = np.stack(waves, -1).astype(np.uint8)
    return found


def jpeg(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=95, **options)
    return file.getvalue()


def scaled_by_libjpeg(data: bytes, factor: int) -> NDArray[np.uint8]:
    """What libjpeg itself decodes at 1 / `factor`, by Pillow's interface to it."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (image.width // factor, image.height // factor))
        return np.asarray(image.convert("RGB"))


def area(pixels: NDArray[np.uint8], size: tuple[int, int]) -> torch.Tensor:
    height, width = pixels.shape[:2]
    data = torch.tensor(pixels).view(-1)
    found = convert_image(data, encoding="rgb8", width=width, height=height, step=3 * width, size=size, resize="area")
    return found.permute(1, 2, 0)


def dataset_of(folder: Path, files: list[bytes], size: tuple[int, int], resize: str = "reduced", **options: Any) -> Any:
    given = episode(len(files))
    given["observation/image"] = files
    if not folder.exists():
        write_tfds(folder, [given])
    return RTXDataset(folder, target_hz=5, image_size=size, image_resize=resize, **options)


@pytest.mark.parametrize("fast", [True, False], ids=["simplejpeg", "pillow"])
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("size", [(8, 8), (9, 15), (64, 48), (49, 83)])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}], ids=str)
def test_the_bits_are_those_of_libjpeg_at_that_scale(
    fast: bool, factor: int, size: tuple[int, int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fast:
        pytest.importorskip("simplejpeg")
    monkeypatch.setattr(decoding, "_SIMPLEJPEG", fast)
    for pixels in (scene(1, size), scene(1, size)[..., 0]):  # of colour, and grey
        data = jpeg(pixels, **options)
        found = decode_image(data, "file", Reduction(factor, size))
        assert found.shape[:2] == Reduction(factor, size).reduced
        assert (found == scaled_by_libjpeg(data, factor)).all()


@pytest.mark.parametrize(
    ("size", "at_least", "factor"),
    [
        ((256, 256), (128, 128), 2),
        ((256, 256), (129, 100), None),
        ((480, 640), (224, 224), 2),
        ((480, 640), (120, 160), 4),
        ((480, 640), (120, 161), 2),
        ((255, 255), (64, 64), 4),
        ((480, 640), (1, 1), 8),
        ((7, 99), (1, 1), None),
    ],
)
def test_the_largest_reduction_that_is_not_below_the_size_is_used(
    size: tuple[int, int], at_least: tuple[int, int], factor: int | None
) -> None:
    found = reduction(size, at_least)
    assert (found and found.factor) == factor


@pytest.mark.parametrize(("size", "factor"), [((24, 40), 2), ((20, 30), 2), ((12, 20), 4), ((5, 9), 8), ((30, 50), 1)])
def test_images_are_decoded_at_that_scale_and_the_rest_is_area(
    size: tuple[int, int], factor: int, tmp_path: Path
) -> None:
    files = [jpeg(scene(number)) for number in range(3)]
    found = dataset_of(tmp_path / "d", files, size)[0]["vision"][:, 0]
    for data, image in zip(files, found, strict=True):
        assert torch.equal(image, area(scaled_by_libjpeg(data, factor), size))


@pytest.mark.parametrize("window", [None, Window(n_obs=2)])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_decode_the_same_bits(window: Window | None, workers: int, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "d", [jpeg(scene(number)) for number in range(5)], (24, 40), window=window)
    expected = list(TimelineLoader(dataset, 2))
    assert expected
    with_workers = list(TimelineLoader(dataset, 2, workers=workers))
    for batch, same in zip(expected, with_workers, strict=True):
        assert torch.equal(batch["vision"], same["vision"])


def test_the_pixels_are_near_those_of_area(tmp_path: Path) -> None:
    files = [jpeg(scene(number)) for number in range(3)]
    reduced, full = (
        dataset_of(tmp_path / "d", files, (24, 40), resize)[0]["vision"].float() for resize in ("reduced", "area")
    )
    # Both remove what a pixel of the result cannot show, with another filter; they differ around edges.
    assert 0 < (reduced - full).abs().mean() < 1.5
    assert (reduced.mean() - full.mean()).abs() < 0.5


@pytest.mark.parametrize("kinds", [("png", "png"), ("jpeg", "png"), ("png", "jpeg")])
def test_other_files_are_decoded_in_full(kinds: tuple[str, ...], tmp_path: Path) -> None:
    files = []
    for number, kind in enumerate(kinds):
        file = io.BytesIO()
        Image.fromarray(scene(number)).save(file, kind)
        files.append(file.getvalue())
    reduced, full = (dataset_of(tmp_path / "d", files, (24, 40), resize)[0]["vision"] for resize in ("reduced", "area"))
    assert torch.equal(reduced, full)


def test_images_that_are_not_files_are_area(tmp_path: Path) -> None:
    path = write_calvin(tmp_path / "training")
    reduced, full = (CALVINDataset(path, image_size=(4, 4), image_resize=how)[0] for how in ("reduced", "area"))
    assert torch.equal(reduced["vision"], full["vision"])


@pytest.mark.parametrize("fast", [True, False], ids=["simplejpeg", "pillow"])
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (jpeg(scene(1))[:-30], r"vision/image: image 1: .*end"),
        (jpeg(scene(1, (47, 79))), r"vision/image: image 1 is \(47, 79\), the first \(48, 80\)"),  # reduced, they agree
        (jpeg(scene(1, (24, 40))), r"vision/image: image 1 is \(24, 40\), the first \(48, 80\)"),
    ],
)
def test_files_that_are_damaged_or_of_another_size_are_refused(
    second: bytes, message: str, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_SIMPLEJPEG", fast and decoding._SIMPLEJPEG)
    dataset = dataset_of(tmp_path / "d", [jpeg(scene(0)), second], (24, 40))
    with pytest.raises(DatasetError, match=message):
        dataset[0]


def test_a_camera_of_a_layout_may_be_reduced(tmp_path: Path) -> None:
    files = [jpeg(scene(number)) for number in range(2)]
    dataset = dataset_of(tmp_path / "d", files, (24, 40))
    camera = {"image_size": [24, 40], "resize": "reduced"}
    layout = {"streams": {"primary": camera}, "datasets": {"d": {"primary": "vision/image"}}}
    mixture = WeightedMixture({"d": dataset}, {"d": 1}, layout=layout)
    assert torch.equal(mixture[0]["vision"], dataset[0]["vision"])
