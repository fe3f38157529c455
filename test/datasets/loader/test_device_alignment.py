"""Batches that are aligned or decoded as a whole have the bits of samples one by one."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from memory_episodes import CHANGED, MovingStreams, _file
from numpy.typing import NDArray

from robocache_ros.datasets import ShuffledRuns, TimelineDataset, WeightedMixture, Window, open_dataset
from robocache_ros.datasets.loader import packing
from robocache_ros.datasets.loader import prefetch as device_alignment
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.order import Request
from robocache_ros.datasets.loader.prefetch import OnDevice, Prefetcher
from robocache_ros.datasets.loader.reading import BatchReader, Sample
from robocache_ros.datasets.undecoded_images import UndecodedImages
from robocache_ros.decode.images import jpeg_head
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import images as decoding
from robocache_ros.formats.images import decode_image, write_images
from test.datasets.small import first_batch, loader_of, same


def batches(dataset: Any, align_on: str = "auto", **options: Any) -> list[dict[str, Any]]:
    return list(map(on_cpu, loader_of(dataset, shuffle=True, seed=1, align_on=align_on, **options)))


def on_cpu(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, list) else value.cpu() for key, value in batch.items()}


def check_same(dataset: Any, **options: Any) -> None:
    expected = batches(dataset, "workers", **options)
    assert expected
    assert same(batches(dataset, "device", **options), expected)


@pytest.mark.parametrize(
    ("window", "marks", "images"),
    [
        (None, False, ""),
        (None, True, "arrays"),
        (None, False, "png"),
        (Window(n_obs=3, horizon=5, action_offset=1), True, ""),
        (Window(n_obs=3, horizon=5, action_offset=1), False, "arrays"),
        (Window(2, 2, -1), True, "png"),
        (Window(2, 2, -1), False, "arrays"),
    ],
)
def test_a_batch_aligned_as_a_whole_has_the_bits_of_its_samples(window, marks, images):
    check_same(TimelineDataset(MovingStreams(images=images, marks=marks), window=window))


@pytest.mark.parametrize(("window", "marks"), [(None, True), (Window(n_obs=3, horizon=5, action_offset=1), False)])
def test_streams_that_are_sent_without_padding_have_the_bits_of_samples(window, marks, monkeypatch):
    monkeypatch.setattr(packing, "MIN_JOIN_SAVING_BYTES", -(2**20))
    check_same(TimelineDataset(MovingStreams(marks=marks), window=window))


class CamerasOnly(MovingStreams):
    def read(self, index: int) -> Any:
        episode = super().read(index)
        for name in [name for name in episode.streams if not name.startswith("vision")]:
            del episode.streams[name]
        return episode


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (MovingStreams(), {"windows": (5, 3)}),
        (MovingStreams(), {"ragged": "concat"}),
        (MovingStreams(), {"workers": 1}),
        *((MovingStreams(), {**CHANGED, "cache": cache}) for cache in ("none", "host")),
        (MovingStreams(limits=2), {}),  # samples of different limits are aligned one by one
        (CamerasOnly(), {}),
    ],
)
def test_batches_of_other_options_and_streams_have_the_bits_of_samples(source, options):
    check_same(TimelineDataset(source), **options)


def test_a_mixture_and_a_dataset_of_aligned_items_have_the_bits_of_samples(counting):
    parts = {name: TimelineDataset(MovingStreams(marks=marks)) for name, marks in (("a", True), ("b", False))}
    check_same(WeightedMixture(parts, {"a": 2, "b": 1}))
    check_same(counting)


def test_an_export_has_the_bits_of_samples(exported):
    folder = exported("image")
    check_same(open_dataset("lerobot", folder / "lerobot"))
    check_same(open_dataset("robomimic", folder / "robomimic", obs_modality="image"))


# Images of files that are decoded into the batch: the same batches as of images that the dataset decodes.


class Decoded(TimelineDataset):
    """A dataset that defines its items itself."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "note": f"item {index}"}


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize(
    ("about", "loading"),
    [
        ({}, {}),
        ({"target_hz": 20}, {"windows": (3, 2)}),
        ({"window": Window(3, 2)}, {"align_on": "workers"}),
        ({}, {"align_on": "device"}),
        ({"image_size": (8, 12)}, {}),
        *(({"image_size": (7, 8), "image_resize": "reduced", "window": window}, {}) for window in (None, Window(2))),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_of_images_that_the_dataset_decodes(kind, workers, about, loading):
    source = MovingStreams(images=kind)
    expected = list(loader_of(Decoded(source, **about), 2, **{**loading, "align_on": "workers"}))
    for batch in expected:
        assert all(note.startswith("item ") for note in batch.pop("note"))  # the dataset is asked for its items
    assert same(list(loader_of(TimelineDataset(source, **about), 2, workers=workers, **loading)), expected)


def test_images_of_a_mixture_are_decoded_into_the_batch_too():
    dataset = TimelineDataset(MovingStreams(images="jpeg"))
    mixture = WeightedMixture({"a": dataset}, {"a": 1.0})
    assert isinstance(mixture.undecoded(0)["vision"], UndecodedImages)
    assert mixture.undecoded(0)["dataset"] == "a"


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_with_damaged_images_are_left_out_of_their_batch(workers):
    source = MovingStreams(7, images="jpeg")
    source.broken = (1, 3, 4, 5)  # one of a batch, and all of the next one
    with loader_of(TimelineDataset(source), 3, on_error="skip", workers=workers) as loader:
        batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == [[0, 2], [6]]
    assert list(loader.skipped_samples) == [1, 3, 4, 5]
    assert "moving/1: vision/a: image 1: data: the jpeg of" in loader.skipped_samples[1]
    assert batches[0]["vision"][1].equal(TimelineDataset(MovingStreams(images="jpeg"))[2]["vision"])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("align_on", ["auto", "device"])
def test_a_damaged_image_is_an_error_that_names_its_sample(workers, align_on):
    source = MovingStreams(images="jpeg")
    source.broken = (1,)
    with (
        loader_of(TimelineDataset(source), 3, workers=workers, align_on=align_on) as loader,
        pytest.raises(RoboCacheError, match=r"sample 1: moving/1: vision/a: image 1: .*repair the file"),
    ):
        next(iter(loader))


def test_an_image_that_no_sample_uses_is_not_decoded():
    source = MovingStreams(images="jpeg")
    source.broken = (3,)  # its second image, which the last window does not use
    loader = loader_of(TimelineDataset(source), 1, windows=(2, 2), on_error="skip")
    numbers = [int(batch["index"]) for batch in loader]
    assert 0 < len(loader.skipped_samples) < len(loader)
    assert len(numbers) + len(loader.skipped_samples) == len(loader)


def test_each_image_of_a_sample_is_decoded_once(monkeypatch):
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


def test_files_that_begin_alike_are_checked_once(monkeypatch):
    pytest.importorskip("simplejpeg")
    checked: list[bytes] = []
    check = decoding.jpeg_picture
    monkeypatch.setattr(decoding, "jpeg_picture", lambda data, *limits: (checked.append(data), check(data, *limits))[1])
    monkeypatch.setattr(decoding, "_heads", decoding.deque(maxlen=4))
    files = [_file(np.full((16, 16, 3), value, np.uint8), "jpeg") for value in (10, 90, 200)]
    write_images(files, np.arange(3), np.empty((3, 16, 16, 3), np.uint8), "file")
    assert checked == files[:1]


def test_a_progressive_jpeg_has_no_head_by_which_others_are_known():
    plain = _file(np.zeros((16, 16, 3), np.uint8), "jpeg")
    assert plain.startswith(jpeg_head(plain))
    assert jpeg_head(plain).endswith(bytes([63, 0]))  # the end of its only scan's header
    assert jpeg_head(plain.replace(b"\xff\xc0", b"\xff\xc2")) == b""


# Batches whose jpeg files are decoded on the device, here by a decoder in the place of nvJPEG.

CPU = torch.device("cpu")


class Decoder:
    """Decodes files in host memory with the decoder of the CPU; refuses those of some numbers."""

    def __init__(self, refused: tuple[int, ...] = (), damaged: bool = False) -> None:
        self.refused, self.damaged = refused, damaged

    def decode(
        self, addresses: NDArray[np.int64], sizes: NDArray[np.int64], out: torch.Tensor, places: NDArray[np.int64]
    ) -> list[int]:
        for number, (address, size) in enumerate(zip(addresses.tolist(), sizes.tolist(), strict=True)):
            if number in self.refused:
                if self.damaged:
                    ctypes.memset(address, 0, size)
                continue
            pixels = decode_image(ctypes.string_at(address, size), "file")
            out[places[number]] = torch.tensor(pixels)
        return list(self.refused)


def decoded(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, *, skip: bool = False) -> OnDevice:
    """A batch of four episodes whose files the decoder decodes."""
    monkeypatch.setattr(device_alignment, "_decoder", lambda device: decoder)
    reader = BatchReader(TimelineDataset(MovingStreams(images="jpeg")), skip, raw=True, jpeg_files=True)
    requests = iter([Request([Sample(number, number) for number in range(4)])])
    return next(Prefetcher(reader, 0, 1, CPU, 2**30).batches(requests, 1, {}, lambda batch: batch))


def check_batch(batch: Batch | None, expected: dict[str, Any]) -> None:
    assert batch is not None
    for key, tensor in batch.tensors.items():
        assert tensor.equal(expected[key]), key


def expected_batch() -> dict[str, Any]:
    return first_batch(TimelineDataset(MovingStreams(images="jpeg")), 4)


@pytest.mark.parametrize("refused", [(), (0, 3)])
def test_files_are_decoded_into_the_batch_on_the_cpu_where_the_gpu_refuses_them(refused, monkeypatch):
    check_batch(decoded(Decoder(refused), monkeypatch).batch, expected_batch())


def test_a_file_that_nothing_can_read_is_an_error_that_names_its_sample(monkeypatch):
    with pytest.raises(RoboCacheError, match="sample 0: vision/a: neither jpeg nor png"):
        decoded(Decoder((0,), damaged=True), monkeypatch)


def test_a_sample_with_such_a_file_can_be_skipped(monkeypatch):
    item = decoded(Decoder((0,), damaged=True), monkeypatch, skip=True)
    assert item.batch is not None
    assert item.batch.samples == (1, 2, 3)
    assert [number for number, _ in item.description.skipped] == [0]
    kept = expected_batch()
    check_batch(item.batch, {key: each[1:] for key, each in kept.items() if isinstance(each, torch.Tensor)})


# A GPU: the bits of the CPU, and nvJPEG's pixels nearly so.


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, Window(3, 5, 1), Window(3, 5, 1, n_images=2)], ids=str)
@pytest.mark.parametrize("marks", [False, True], ids=["recorded", "exported"])
@pytest.mark.parametrize("images", ["", "arrays", "png"])
def test_a_gpu_aligns_batches_with_the_bits_of_the_cpu(window, marks, images):
    dataset = TimelineDataset(MovingStreams(images=images, marks=marks), window=window)
    assert same(batches(dataset, device="cuda"), batches(dataset, device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("marks", [False, True], ids=["recorded", "exported"])
def test_streams_that_are_sent_without_padding_have_the_bits_of_the_cpu(marks, monkeypatch):
    monkeypatch.setattr(packing, "MIN_JOIN_SAVING_BYTES", -(2**20))
    dataset = TimelineDataset(MovingStreams(marks=marks), window=Window(n_obs=3, horizon=5, action_offset=1))
    assert same(batches(dataset, device="cuda"), batches(dataset, "workers", device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2}, {"windows": (5, 3)}, {"ragged": "concat"}, {"cache": "device"}, {"cache": "host"}],
    ids=str,
)
def test_changes_of_samples_have_the_bits_of_the_cpu(options):
    dataset = TimelineDataset(MovingStreams())
    options |= CHANGED
    assert same(batches(dataset, device="cuda", **options), batches(dataset, device="cpu", **options))


@pytest.mark.gpu
@pytest.mark.parametrize("shuffle", [True, ShuffledRuns(4, 8)], ids=str)
@pytest.mark.parametrize(
    "room", [{"cuda": 30_000, "cpu": 30_000}, {"cuda": 0, "cpu": 30_000}, {"cuda": 30_000, "cpu": 0}, {}]
)
def test_a_cache_in_several_places_has_the_bits_of_the_cpu_without_one(shuffle, room, monkeypatch):
    dataset = TimelineDataset(MovingStreams(), window=Window(3, 5, 1, n_images=1))
    if room:
        monkeypatch.setattr("robocache_ros.datasets.loader.cache.free_bytes", lambda place: room[place.type])
    loader = loader_of(dataset, 4, shuffle=shuffle, device="cuda", cache="auto", workers=1)
    read = loader_of(dataset, 4, shuffle=shuffle)
    for cached, expected in zip([*loader, *loader, *loader], [*read, *read, *read], strict=True):
        assert same([on_cpu(cached)], [expected])
    kept = [next(iter(each._data.observed.values())).device.type for _, _, each in loader._cached]
    assert kept == [place for place, nbytes in room.items() if nbytes] if room else ["cuda"]


@pytest.mark.gpu
def test_workers_may_align_for_a_gpu():
    dataset = TimelineDataset(MovingStreams())
    assert same(batches(dataset, "workers", device="cuda"), batches(dataset, "device", device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"workers": 1}, {"cache": "device"}], ids=str)
def test_nvjpeg_differs_little(options):
    dataset = TimelineDataset(MovingStreams(images="jpeg"))
    cpu, gpu = (batches(dataset, device="cuda", **options), batches(dataset, device="cuda", jpeg="gpu", **options))
    for first, second in zip(cpu, gpu, strict=True):
        assert (first["vision"].int() - second["vision"].int()).abs().float().mean() < 2
        assert same([{**first, "vision": [0]}], [{**second, "vision": [0]}])


@pytest.mark.gpu
def test_files_of_another_kind_are_decoded_by_the_workers():
    dataset = TimelineDataset(MovingStreams(images="png"))
    assert same(batches(dataset, device="cuda", jpeg="gpu"), batches(dataset, device="cpu"))


@pytest.mark.gpu
def test_a_file_without_an_end_is_an_error_that_names_it():
    source = MovingStreams(images="jpeg")
    source.broken = (2,)
    with pytest.raises(RoboCacheError, match="sample 2: moving/2: vision/a: image 1"):
        batches(TimelineDataset(source), device="cuda", jpeg="gpu")


@pytest.mark.gpu
def test_memory_of_the_gpu_is_flat():
    dataset = TimelineDataset(MovingStreams(images="jpeg"))
    loader = loader_of(dataset, 4, device="cuda", jpeg="gpu")
    used = []
    for _ in range(60):
        for batch in loader:
            assert batch["vision"].is_cuda
        used.append(torch.cuda.memory_allocated())  # not reserved: that depends on when the GPU is done with each block
    assert used[-1] == used[30]
