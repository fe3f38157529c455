"""Images at another size than that of their files, also of jpeg files that are decoded at a part of it."""

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
from robocache_ros.datasets import CALVINDataset, DatasetError, RTXDataset, WeightedMixture, Window, open_dataset
from robocache_ros.formats import images as decoding
from robocache_ros.formats.images import Reduction, decode_image, reduction
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.small import episode, picture, write_calvin, write_tfds
from test.exporting import export

# Jpeg files that libjpeg decodes at a part of their size: `image_resize="reduced"`.

SIZE = (48, 80)


def scene(number: int, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    """Smooth waves with an edge, as the scenes of cameras have."""
    y, x = np.mgrid[: size[0], : size[1]]
    waves = [100 + 60 * np.sin((x + 3 * number) / (5 + c)) * np.cos(y / (7 + c)) + 40 * (x > 2 * y) for c in range(3)]
    found: NDArray[np.uint8] = np.stack(waves, -1).astype(np.uint8)
    return found


def jpeg(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    return picture(pixels, "jpeg", quality=95, **options)


def scaled_by_libjpeg(data: bytes, factor: int) -> NDArray[np.uint8]:
    """What libjpeg itself decodes at 1 / `factor`, by Pillow's interface to it."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (image.width // factor, image.height // factor))
        return np.asarray(image.convert("RGB"))


def resized(pixels: NDArray[np.uint8], size: tuple[int, int], resize: str = "area") -> torch.Tensor:
    height, width = pixels.shape[:2]
    about = {"encoding": "rgb8", "width": width, "height": height, "step": 3 * width}
    return convert_image(torch.tensor(pixels).view(-1), **about, size=size, resize=resize).permute(1, 2, 0)


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
def test_the_bits_are_those_of_libjpeg_at_that_scale(fast, factor, size, options, monkeypatch):
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
def test_the_largest_reduction_that_is_not_below_the_size_is_used(size, at_least, factor):
    found = reduction(size, at_least)
    assert (found and found.factor) == factor


@pytest.mark.parametrize(("size", "factor"), [((24, 40), 2), ((20, 30), 2), ((12, 20), 4), ((5, 9), 8), ((30, 50), 1)])
def test_images_are_decoded_at_that_scale_and_the_rest_is_area(size, factor, tmp_path):
    files = [jpeg(scene(number)) for number in range(3)]
    found = dataset_of(tmp_path / "d", files, size)[0]["vision"][:, 0]
    for data, image in zip(files, found, strict=True):
        assert torch.equal(image, resized(scaled_by_libjpeg(data, factor), size))


@pytest.mark.parametrize("kinds", [("png", "png"), ("jpeg", "png"), ("png", "jpeg")])
def test_other_files_are_decoded_in_full(kinds, tmp_path):
    files = [picture(scene(number), kind) for number, kind in enumerate(kinds)]
    reduced, full = (dataset_of(tmp_path / "d", files, (24, 40), resize)[0]["vision"] for resize in ("reduced", "area"))
    assert torch.equal(reduced, full)


def test_images_that_are_not_files_are_area(tmp_path):
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
def test_files_that_are_damaged_or_of_another_size_are_refused(second, message, fast, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "_SIMPLEJPEG", fast and decoding._SIMPLEJPEG)
    dataset = dataset_of(tmp_path / "d", [jpeg(scene(0)), second], (24, 40))
    with pytest.raises(DatasetError, match=message):
        dataset[0]


def test_a_camera_of_a_layout_may_be_reduced(tmp_path):
    files = [jpeg(scene(number)) for number in range(2)]
    dataset = dataset_of(tmp_path / "d", files, (24, 40))
    camera = {"image_size": [24, 40], "resize": "reduced"}
    layout = {"streams": {"primary": camera}, "datasets": {"d": {"primary": "vision/image"}}}
    mixture = WeightedMixture({"d": dataset}, {"d": 1}, layout=layout)
    assert torch.equal(mixture[0]["vision"], dataset[0]["vision"])


# Images of any kind.


def test_cameras_of_different_sizes_become_one_tensor_of_a_size_that_is_given(tmp_path):
    path = write_calvin(tmp_path / "training")
    sample = CALVINDataset(path, image_size=(12, 16))[0]
    assert sample["vision"].shape == (9, 2, 12, 16, 3)  # 6 steps at 30 Hz are 9 ticks at 50 Hz
    assert "vision/static" not in sample
    whole = CALVINDataset(path)[0]
    assert whole["vision/static"].shape == (9, 20, 20, 3)
    assert whole["vision/gripper"].shape == (9, 8, 8, 3)
    assert "vision" not in whole
    window = CALVINDataset(path, image_size=(4, 4), window=Window(n_obs=2))[3]
    assert window["vision"].shape == (2, 2, 4, 4, 3)


@pytest.mark.parametrize("resize", ["bilinear", "nearest", "area"])
def test_the_bits_of_another_size_are_those_of_the_operation(resize, exported):
    path = exported("image") / "webdataset"
    whole = open_dataset("webdataset", path)[1]["vision/front"][0]
    small = open_dataset("webdataset", path, image_size=(60, 80), image_resize=resize)[1]["vision"][0, 0]
    assert torch.equal(small, resized(whole.numpy(), (60, 80), resize))


def test_the_bits_are_those_of_an_export_of_that_size(bag, spec, tmp_path):
    exports = {}
    for name, size in (("small", [60, 80]), ("source", None)):
        raw = spec.to_dict()
        raw["streams"] = {key: raw["streams"][key] for key in ("gripper", "wrist", "action")}
        raw["streams"]["wrist"]["image"] = {"size": size} if size else {}
        options = DatasetOptions(formats=("webdataset",), media="image")
        exports[name] = export([bag], load_spec(raw), tmp_path / name, options).out
    small = open_dataset("webdataset", exports["small"])[0]["vision"]
    assert torch.equal(open_dataset("webdataset", exports["source"], image_size=(60, 80))[0]["vision"], small)


def test_an_image_without_a_sample_stays_black(exported):
    dataset = open_dataset("webdataset", exported("image") / "webdataset", image_size=(8, 8))
    stream = dataset.streams_of(0).streams["vision/front"]
    assert stream.values.frames(np.array([0])).shape == (1, 8, 8, 3)
