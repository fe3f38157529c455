"""Batches whose jpeg files are decoded on the device, here by a decoder in the place of nvJPEG."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from counting_episodes import Counting
from moving_streams import MovingStreams
from numpy.typing import NDArray

from robocache_ros.datasets import LoaderOptions, TimelineDataset, TimelineLoader
from robocache_ros.datasets.loader import prefetch as device_alignment
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.order import Request
from robocache_ros.datasets.loader.prefetch import OnDevice, Prefetcher
from robocache_ros.datasets.loader.reading import BatchReader, Sample
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.images import decode_image

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


def check_same(batch: Batch | None, expected: dict[str, Any]) -> None:
    assert batch is not None
    for key, tensor in batch.tensors.items():
        assert tensor.equal(expected[key]), key


def expected_batch() -> dict[str, Any]:
    return next(iter(TimelineLoader(TimelineDataset(MovingStreams(images="jpeg")), 4)))


def test_files_are_decoded_into_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(decoded(Decoder(), monkeypatch).batch, expected_batch())


def test_files_that_the_gpu_refuses_are_decoded_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(decoded(Decoder((0, 3)), monkeypatch).batch, expected_batch())


def test_a_file_that_nothing_can_read_is_an_error_that_names_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RoboCacheError, match="sample 0: vision/a: neither jpeg nor png"):
        decoded(Decoder((0,), damaged=True), monkeypatch)


def test_a_sample_with_such_a_file_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    item = decoded(Decoder((0,), damaged=True), monkeypatch, skip=True)

    assert item.batch is not None
    assert item.batch.samples == (1, 2, 3)
    assert [number for number, _ in item.description.skipped] == [0]
    kept = expected_batch()
    check_same(item.batch, {key: each[1:] for key, each in kept.items() if isinstance(each, torch.Tensor)})


def test_nvjpeg_needs_a_gpu(counting: Counting) -> None:
    with pytest.raises(RoboCacheError, match="jpeg: gpu needs a CUDA device"):
        TimelineLoader(counting, 2, options=LoaderOptions(jpeg="gpu"))
