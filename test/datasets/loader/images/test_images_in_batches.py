"""Images of files that are decoded into the batch: the same batches as of images that the dataset decodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from moving_streams import MovingStreams, _file

from robocache_ros.datasets import LoaderOptions, TimelineDataset, TimelineLoader, WeightedMixture, Window
from robocache_ros.datasets.undecoded_images import UndecodedImages
from robocache_ros.decode.images import jpeg_head
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import images as decoding
from robocache_ros.formats.images import write_images


class Decoded(TimelineDataset):
    """A dataset that defines its items itself."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "note": f"item {index}"}


def check_same(loader: TimelineLoader, expected: TimelineLoader) -> None:
    for batch, other in zip(loader, expected, strict=True):
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[key].dtype
                assert value.equal(other[key]), key


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize(
    ("about", "loading"),
    [
        ({}, {}),
        ({"target_hz": 20}, {"windows": (3, 2)}),
        ({"window": Window(3, 2)}, {"align_on": "workers"}),
        ({}, {"align_on": "device"}),
        ({"image_size": (8, 12)}, {}),
    ],
)
def test_batches_are_those_of_images_that_the_dataset_decodes(kind: str, about: Any, loading: Any) -> None:
    source = MovingStreams(images=kind)

    check_same(
        TimelineLoader(TimelineDataset(source, **about), 2, options=LoaderOptions(**loading)),
        loader_of(Decoded(source, **about), loading),
    )


def loader_of(dataset: TimelineDataset, loading: dict[str, Any]) -> TimelineLoader:
    return TimelineLoader(dataset, 2, options=LoaderOptions(**{**loading, "align_on": "workers"}))


def test_images_of_a_mixture_are_decoded_into_the_batch_too() -> None:
    dataset = TimelineDataset(MovingStreams(images="jpeg"))
    mixture = WeightedMixture({"a": dataset}, {"a": 1.0})

    assert isinstance(mixture.undecoded(0)["vision"], UndecodedImages)
    assert mixture.undecoded(0)["dataset"] == "a"


def test_a_dataset_that_defines_its_items_is_requested_them() -> None:
    batch = next(iter(TimelineLoader(Decoded(MovingStreams(images="jpeg")), 2)))

    assert batch["note"] == ["item 0", "item 1"]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_with_damaged_images_are_left_out_of_their_batch(workers: int) -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (1, 4)
    loader = TimelineLoader(TimelineDataset(source), 3, on_error="skip", workers=workers)

    batches = list(loader)
    loader.close()

    assert [batch["index"].tolist() for batch in batches] == [[0, 2], [3]]
    assert list(loader.skipped_samples) == [1, 4]
    assert "moving/1: vision/a: image 1: data: the jpeg of" in loader.skipped_samples[1]
    assert batches[0]["vision"][1].equal(TimelineDataset(MovingStreams(images="jpeg"))[2]["vision"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_an_error_that_names_its_sample(workers: int) -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (1,)
    loader = TimelineLoader(TimelineDataset(source), 3, workers=workers)

    with pytest.raises(RoboCacheError, match=r"sample 1: moving/1: vision/a: image 1: .*repair the file"):
        next(iter(loader))
    loader.close()


def test_a_batch_of_damaged_images_only_is_left_out() -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (2, 3)
    loader = TimelineLoader(TimelineDataset(source), 2, on_error="skip")

    assert [batch["index"].tolist() for batch in loader] == [[0, 1], [4]]


def test_an_image_that_no_sample_uses_is_not_decoded() -> None:
    source = MovingStreams(images="jpeg")
    source.broken = (3,)  # its second image, which the last window does not use
    loader = TimelineLoader(TimelineDataset(source), 1, options=LoaderOptions(windows=(2, 2)), on_error="skip")

    numbers = [int(batch["index"]) for batch in loader]

    assert 0 < len(loader.skipped_samples) < len(loader)
    assert len(numbers) + len(loader.skipped_samples) == len(loader)


def test_each_image_of_a_sample_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = decoding._decode_into
    monkeypatch.setattr(decoding, "_decode_into", lambda *a: (decoded.append(a[3]), decode(*a)))
    stream = MovingStreams(images="jpeg").read(0).streams["vision/a"]
    out = np.empty((6, 16, 16, 3), np.uint8)

    write_images(stream.values, np.array([-1, 1, 1, 0, 2, 1]), out, "file")

    assert decoded == [1, 0, 2]
    assert not out[0].any()
    assert (out[1] == out[2]).all()
    assert (out[1] == out[5]).all()


def test_files_that_begin_alike_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    checked: list[bytes] = []
    check = decoding.jpeg_picture
    monkeypatch.setattr(decoding, "jpeg_picture", lambda data, *limits: (checked.append(data), check(data, *limits))[1])
    monkeypatch.setattr(decoding, "_heads", decoding.deque(maxlen=4))
    files = [_file(np.full((16, 16, 3), value, np.uint8), "jpeg") for value in (10, 90, 200)]

    write_images(files, np.arange(3), np.empty((3, 16, 16, 3), np.uint8), "file")

    assert checked == files[:1]


def test_a_progressive_jpeg_has_no_head_by_which_others_are_known() -> None:
    plain = _file(np.zeros((16, 16, 3), np.uint8), "jpeg")

    assert plain.startswith(jpeg_head(plain))
    assert jpeg_head(plain).endswith(bytes([63, 0]))  # the end of its only scan's header
    assert jpeg_head(plain.replace(b"\xff\xc0", b"\xff\xc2")) == b""
