"""The GPU backend's host side, its launches carried out by host code: the same frames as the CPU backend."""

import logging

import numpy as np
import pytest
import torch

from robocache_ros.engine import FusionEngine, choose
from robocache_ros.engine import rings as rings_module
from robocache_ros.errors import RoboCacheError

REDUCTIONS = [("occupancy", ()), ("count", ()), ("mean", ("intensity", "z")), ("max", ("intensity",))]


@pytest.mark.parametrize("seed", range(8))
def test_frames_are_those_of_the_cpu_backend_bit_for_bit(mixture, emulated, seed, caplog):
    caplog.set_level(logging.ERROR)
    rng = np.random.default_rng(seed)
    spec = mixture.spec(*REDUCTIONS[seed % 4], emit=("fixed", "eager")[seed % 2])
    options = {"normalized": seed // 2 % 2 == 1, "payload_bytes": {"front": 64 * 48 * 3} if seed % 3 else None}
    engine = emulated(spec, **options)
    assert mixture.compare(engine, FusionEngine(spec, **options), mixture.messages(rng), rng) > 30


def one_image(mixture, emulated, name="front"):
    """An engine that has shown one image of a stream, and the image."""
    rng = np.random.default_rng(3)
    engine = emulated(mixture.spec())
    engine.advance(mixture.t0)
    payloads = [m[3] for m in mixture.messages(rng, 400) if m[0] == name]
    payload = max(payloads, key=lambda payload: payload.data.size)  # the others may be cut short
    engine.push(name, mixture.t0, mixture.t0, payload)
    return engine, payload


def test_an_image_that_is_held_is_converted_once(mixture, emulated):
    engine, _ = one_image(mixture, emulated)
    first = engine.advance(mixture.t0 + 20 * mixture.ms).media["front"].clone()
    engine._backend._rings["front"]._raw.fill_(7)  # what a second conversion would see
    held = engine.advance(mixture.t0 + 40 * mixture.ms)
    assert held.valid[0, 3] == 1
    assert torch.equal(held.media["front"], first)
    assert first.any()


def test_only_a_compressed_image_that_a_tick_uses_is_decoded_and_only_once(mixture, emulated, monkeypatch):
    decoded = []
    decode = rings_module.decode_compressed
    monkeypatch.setattr(rings_module, "decode_compressed", lambda image: decoded.append(image) or decode(image))
    engine, used = one_image(mixture, emulated, "jpeg")
    engine.push("jpeg", mixture.t0 - 5 * mixture.ms, mixture.t0, used)  # an older one, which no tick takes
    for tick in range(1, 4):
        assert engine.advance(mixture.t0 + tick * 20 * mixture.ms).valid[0, 7] == 1
    assert decoded == [used]


def test_a_tensor_stays_as_it_is_while_the_next_ticks_are_made(mixture, emulated):
    engine, _ = one_image(mixture, emulated)
    kept = engine.advance(mixture.t0 + 20 * mixture.ms)
    before = mixture.bits(kept)
    for tick in range(8, 8 + rings_module.DECODED_SLOTS + 1):  # the image is too old by now: zeros
        engine.advance(mixture.t0 + tick * 20 * mixture.ms, limit=1)
    assert mixture.bits(kept) == before


def test_a_sample_that_outgrows_its_slots_is_taken_in_and_counted(mixture, emulated, caplog):
    rng = np.random.default_rng(1)
    engine = emulated(mixture.spec(), payload_bytes={"cloud": 16})
    sent = [m for m in mixture.messages(rng, 200) if m[0] == "cloud"][:5]
    reference = FusionEngine(engine.spec)
    assert mixture.compare(engine, reference, sent, rng) > 0
    assert engine.counters()["reallocations"] >= 1
    assert "where 256 were the most" in caplog.text


def test_the_memory_that_is_held_is_told_by_stream_and_purpose(mixture, emulated):
    rows = emulated(mixture.spec("mean", ("z",)), payload_bytes={"front": 64 * 48 * 3}).memory()
    table = {(r.stream, r.purpose, r.place): r for r in rows}
    assert table["front", "samples", "gpu"].slot_bytes == 64 * 48 * 3
    assert table["front", "frames", "gpu"].total_bytes == 4 * 3 * 24 * 32
    assert table["joints", "samples", "gpu"].slot_bytes == 28
    assert table["cloud", "sums", "gpu"].total_bytes == 2 * 8 * 20**3
    assert table["whole", "samples", "gpu"].slot_bytes == 0  # its first image will show it
    assert table["", "staging", "pinned"].total_bytes == 4 * 2**20


def test_memory_that_is_not_there_is_told_with_the_stream_and_the_amount(mixture, emulated, monkeypatch):
    def zeros(shape, **options):
        if np.prod(shape) > 1e9:
            raise torch.cuda.OutOfMemoryError
        return make(shape, **options)

    make = torch.zeros
    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (2**30, 2**31))
    with pytest.raises(RoboCacheError, match=r"streams\.front: its samples need 2,100\.0 MiB .* 1,024\.0 of the 2,048"):
        emulated(mixture.spec(), payload_bytes={"front": 100 * 2**20})


def test_memory_for_a_stream_that_is_not_there_is_refused(mixture):
    with pytest.raises(RoboCacheError, match=r"payload_bytes\.rear"):
        FusionEngine(mixture.spec(), payload_bytes={"rear": 1})


def test_a_gpu_that_is_not_there_is_refused_with_the_way_out(mixture, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RoboCacheError, match=r"cuda.*no CUDA device.*cpu or auto"):
        FusionEngine(mixture.spec(), "cuda")


def test_auto_is_the_cpu_where_no_gpu_is_and_says_so(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose.resolve_device("auto").type == "cpu"
    assert "auto is the CPU here" in caplog.text


@pytest.mark.parametrize(("jpeg", "said"), [("gpu", "needs a GPU"), ("nvjpeg", "is not one of cpu, gpu")])
def test_jpeg_is_decoded_where_it_can_be(mixture, jpeg, said):
    with pytest.raises(RoboCacheError, match=said):
        FusionEngine(mixture.spec(), "cpu", jpeg=jpeg)


@pytest.mark.parametrize("device", ["gpu", "mps", ""])
def test_a_device_of_another_kind_is_refused(device):
    with pytest.raises(RoboCacheError, match="is not one of auto, cpu, cuda"):
        choose.resolve_device(device)


def test_recordings_are_not_taken_by_a_gpu(mixture, monkeypatch):
    monkeypatch.setattr(choose, "resolve_device", torch.device)
    with pytest.raises(RoboCacheError, match="fused with device: cpu"):
        FusionEngine(mixture.spec(), "cuda", unbounded=True)
