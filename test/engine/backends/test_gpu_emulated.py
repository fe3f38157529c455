"""The host side of the GPU backend, with host code in place of its launches: the same frames as the CPU backend."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import robocache_ros.engine.engine as engine_module
from robocache_ros.alignments import NAMES, alignment
from robocache_ros.engine import FusionEngine
from robocache_ros.engine.backends import cpu, gpu
from robocache_ros.engine.backends.gpu import ALIGNMENT, Staging
from robocache_ros.engine.backends.media import converter_on
from robocache_ros.errors import RoboCacheError
from robocache_ros.reductions import SPEC_REDUCTIONS
from robocache_ros.spec import load_spec

REDUCTIONS = len(SPEC_REDUCTIONS)


@pytest.mark.parametrize(
    ("backend", "seed"),
    [
        *(("emulated", seed) for seed in range(REDUCTIONS)),
        *(pytest.param("cuda", seed, marks=pytest.mark.gpu) for seed in range(2 * REDUCTIONS)),
    ],
    indirect=["backend"],
)
def test_frames_are_those_of_the_cpu_backend_bit_for_bit(mixture, backend, seed, caplog):
    caplog.set_level(logging.ERROR)
    rng = np.random.default_rng(seed)
    spec = mixture.spec(*mixture.reductions[seed % len(mixture.reductions)], emit=("fixed", "eager")[seed % 2])
    options = {"normalized": seed // 2 % 2 == 1, "payload_bytes": {"front": 64 * 48 * 3} if seed % 3 else None}
    assert mixture.compare(backend(spec, **options), FusionEngine(spec, **options), mixture.messages(rng), rng) > 30


def test_a_stream_of_each_alignment_has_the_bits_of_the_cpu_backend(mixture, emulated):
    rng, kind = np.random.default_rng(1), "std_msgs/msg/Float64MultiArray"
    dims = {name: 5 if alignment(name).group == 1 else alignment(name).group for name in NAMES}
    streams = {n: {"topic": f"/{n}", "type": kind, "dim": d, "align": n, "max_gap_ms": 30} for n, d in dims.items()}
    streams["angle_deg"] |= {"align": "angle", "unit": "deg"}
    spec = load_spec({"robocache": 1, "streams": streams})
    arrivals = mixture.t0 + np.sort(rng.integers(0, 2000, 500)) * mixture.ms
    messages = []
    for arrival in arrivals.tolist():
        name = str(rng.choice(NAMES))
        value = rng.uniform(0.1, 360 if name == "angle_deg" else 3, dims[name]).astype(np.float32)
        messages.append((name, arrival - int(rng.integers(0, 30 * mixture.ms)), arrival, value))
    assert mixture.compare(emulated(spec), FusionEngine(spec), messages, rng) > 30


@pytest.mark.parametrize("emit", ["fixed", "eager"])
def test_windows_have_the_bits_of_the_cpu_backend(mixture, backend, emit):
    rng = np.random.default_rng(7)
    spec, messages = mixture.windowed(rng, emit)
    engine = backend(spec)
    assert mixture.compare(engine, FusionEngine(spec), messages, rng) > 30
    assert engine.lost("touch")["window_overflow"] > 0


def one_image(mixture, emulated, name="front"):
    """An engine with one image of a stream, and the image."""
    rng = np.random.default_rng(3)
    engine = emulated(mixture.spec())
    engine.advance(mixture.t0)
    payloads = [m[3] for m in mixture.messages(rng, 400) if m[0] == name]
    payload = max(payloads, key=lambda payload: payload.data.size)  # the others may be truncated
    engine.push(name, mixture.t0, mixture.t0, payload)
    return engine, payload


def test_an_image_that_is_held_is_converted_once(mixture, backend):
    engine, _ = one_image(mixture, backend)
    first = engine.advance(mixture.t0 + 20 * mixture.ms).media["front"]
    assert first.any()
    first.fill_(7)  # a second conversion would not show it
    held = engine.advance(mixture.t0 + 40 * mixture.ms)
    assert held.valid[0, 3] == 1
    assert (held.media["front"] == 7).all()


def test_a_compressed_image_that_several_ticks_use_is_decoded_once(mixture, emulated, monkeypatch):
    decoded = []
    decode = gpu.decode_compressed
    monkeypatch.setattr(gpu, "decode_compressed", lambda image: decoded.append(image) or decode(image))
    engine, used = one_image(mixture, emulated, "jpeg")
    for tick in range(1, 4):
        assert engine.advance(mixture.t0 + tick * 20 * mixture.ms).valid[0, 7] == 1
    assert sum(image is used for image in decoded) == 1


def test_a_tensor_stays_as_it_is_while_the_next_ticks_are_made(mixture, emulated):
    engine, _ = one_image(mixture, emulated)
    kept = engine.advance(mixture.t0 + 20 * mixture.ms)
    before = mixture.bits(kept)
    for tick in range(8, 8 + gpu.DECODED_SLOTS + 1):  # the image is too old by now: zeros
        engine.advance(mixture.t0 + tick * 20 * mixture.ms, limit=1)
    assert mixture.bits(kept) == before


def test_a_sample_that_outgrows_its_slots_is_kept_and_counted(mixture, emulated, caplog):
    rng = np.random.default_rng(1)
    engine = emulated(mixture.spec(), payload_bytes={"cloud": 16})
    sent = [m for m in mixture.messages(rng, 200) if m[0] == "cloud"][:5]
    reference = FusionEngine(engine.spec)
    assert mixture.compare(engine, reference, sent, rng) > 0
    assert engine.counters()["reallocations"] >= 1
    assert "where the buffer has 256" in caplog.text


def test_memory_is_listed_by_stream_and_purpose(mixture, emulated):
    rows = emulated(mixture.spec("mean", ("z",)), payload_bytes={"front": 64 * 48 * 3}).memory()
    table = {(r.stream, r.purpose, r.place): r for r in rows}
    assert table["front", "samples", "gpu"].slot_bytes == 64 * 48 * 3
    assert table["front", "frames", "gpu"].total_bytes == 4 * 3 * 24 * 32
    assert table["joints", "samples", "host"].slot_bytes == 28
    assert table["cloud", "sums", "gpu"].total_bytes == 2 * 8 * 20**3
    assert table["unsized", "samples", "gpu"].slot_bytes == 0  # unknown until its first image
    assert table["", "staging", "pinned"].total_bytes == 4 * 2**20


def test_too_little_memory_is_an_error_with_the_stream_and_the_amount(mixture, emulated, monkeypatch):
    def zeros(shape, **options):
        if np.prod(shape) > 1e9:
            raise torch.cuda.OutOfMemoryError
        return make(shape, **options)

    make = torch.zeros
    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (2**30, 2**31))
    with pytest.raises(RoboCacheError, match=r"streams\.front: its samples need 2,100\.0 MiB .* 1,024\.0 of the 2,048"):
        emulated(mixture.spec(), payload_bytes={"front": 100 * 2**20})


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cuda", {}, r"cuda.*no CUDA device.*cpu or auto"),
        ("cpu", {"jpeg": "gpu"}, "needs a GPU"),
        ("cpu", {"jpeg": "nvjpeg"}, "is not one of cpu, gpu"),
        ("cpu", {"payload_bytes": {"rear": 1}}, r"payload_bytes\.rear"),
    ],
)
def test_a_gpu_a_jpeg_decoder_and_a_stream_that_are_not_there_are_refused(
    mixture, monkeypatch, device, options, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RoboCacheError, match=expected):
        FusionEngine(mixture.spec(), device, **options)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_recording_converted_on_another_device_has_the_bits_of_the_cpu(mixture, monkeypatch, normalized):
    """With the host in place of the GPU."""
    rng = np.random.default_rng(2)
    options = {"unbounded": True, "normalized": normalized, "channels_last": True}
    reference = FusionEngine(mixture.spec("mean", ("z",)), **options)
    monkeypatch.setattr(engine_module, "resolve_device", lambda _name: torch.device("cuda", 0))
    monkeypatch.setattr(cpu, "converter_on", lambda _device, *given: converter_on(torch.device("cpu"), *given))
    engine = FusionEngine(mixture.spec("mean", ("z",)), "cuda", **options)
    assert engine.device.type == "cpu"
    assert mixture.compare(engine, reference, mixture.messages(rng), rng) > 30


SIZE = 16 * ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 4)), max_size=60))
def test_pieces_of_in_flight_copies_do_not_overlap(steps):
    staging, in_flight = Staging(SIZE), []  # (head, first, past)
    for size, done in steps:
        for _ in range(min(done, len(in_flight))):
            staging.release(in_flight.pop(0)[0])
        offset = staging.claim(size)
        if offset is None:
            assert in_flight or staging.head % SIZE  # only an empty ring is one contiguous piece
            continue
        assert offset >= 0
        assert offset + size <= SIZE
        assert all(offset + size <= first or past <= offset or not size for _, first, past in in_flight)
        in_flight.append((staging.head, offset, offset + size))


def test_released_bytes_are_free_again():
    staging = Staging(SIZE)
    for _ in range(5):
        assert staging.claim(SIZE) == 0
        assert staging.claim(1) is None
        staging.release(staging.head)
