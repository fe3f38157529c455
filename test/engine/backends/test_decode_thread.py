"""Compressed images are decoded outside the tick's thread: a tick waits for one, but only up to a limit."""

import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.decode import ImagePayload, decode_compressed
from robocache_ros.engine import FusionEngine
from robocache_ros.engine.backends import gpu, media
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, T0

FRONT = {"topic": "/p", "type": "sensor_msgs/msg/CompressedImage", "image": {"size": [16, 16]}, "max_age_ms": 50}
WAIT_S = 30.0


@pytest.fixture
def spec():
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 0, "streams": {"front": FRONT}})


@pytest.fixture(params=["cpu", "gpu"])
def make(request, spec):
    """A live engine on either backend; that of the GPU without a GPU."""
    if request.param == "cpu":
        return lambda: FusionEngine(spec)
    emulated = request.getfixturevalue("emulated")
    return lambda: emulated(spec)


@pytest.fixture
def slow(monkeypatch):
    """Images named in `blocked` are decoded only once `release` is set."""
    state = SimpleNamespace(blocked=[], encodings=set(), started=threading.Event(), release=threading.Event())

    def decode(image):
        state.encodings.add(image.encoding)
        if any(image is other for other in state.blocked):
            state.started.set()
            assert state.release.wait(WAIT_S)
        return decode_compressed(image)

    for module in (media, gpu):
        monkeypatch.setattr(module, "decode_compressed", decode)
    yield state
    state.release.set()


def forbid_waiting(monkeypatch):
    for name in ("WAIT_S", "PROCESSOR_S"):
        monkeypatch.setattr(media, name, 0.0)


def png(grey):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), grey, np.uint8)).save(file, "PNG")
    return ImagePayload(np.frombuffer(file.getvalue(), np.uint8), "png")


def push(engine, stamp_ms, image):
    return engine.push("front", T0 + stamp_ms * MS, T0 + stamp_ms * MS, image)


def test_the_decoders_are_loaded_before_the_first_image(make, slow):
    make()
    assert slow.encodings == {"jpeg", "png"}


def test_a_tick_waits_for_the_image_that_it_selects(make, slow):
    engine, image = make(), png(7)
    slow.blocked.append(image)
    engine.advance(T0 - 1)
    push(engine, 0, image)

    def release():
        slow.started.wait(WAIT_S)
        slow.release.set()

    threading.Thread(target=release).start()
    frames = engine.advance(T0)
    assert frames.valid.tolist() == [[1]]
    assert frames.media["front"].unique().tolist() == [7]
    assert engine.lost("front")["too_slow"] == 0


def test_an_image_past_the_limit_is_dropped_and_counted_and_those_around_it_are_used(make, slow, monkeypatch, caplog):
    engine, bomb = make(), png(9)
    slow.blocked.append(bomb)
    engine.advance(T0 - 1)
    push(engine, 0, png(7))
    assert engine.advance(T0).media["front"].unique().tolist() == [7]
    with monkeypatch.context() as patched:
        forbid_waiting(patched)
        push(engine, 20, bomb)
        frames = engine.advance(T0 + 20 * MS)
    assert frames.media["front"].unique().tolist() == [7]
    assert frames.age_ns.tolist() == [[20 * MS]]
    assert engine.lost("front") == {"overrun": 0, "corrupt": 0, "too_slow": 1}
    assert "front: a sample is dropped: decoding it takes longer than" in caplog.text
    slow.release.set()
    push(engine, 40, png(8))
    assert engine.advance(T0 + 40 * MS).media["front"].unique().tolist() == [8]


def test_an_image_that_is_not_decoded_ahead_is_decoded_when_a_tick_selects_it(make, monkeypatch):
    monkeypatch.setattr(media, "AHEAD_BYTES", 0)
    engine = make()
    engine.advance(T0 - 1)
    push(engine, -10, png(6))
    push(engine, 0, png(7))
    assert engine.advance(T0).media["front"].unique().tolist() == [7]


def test_a_recording_is_fused_without_a_limit(spec, monkeypatch):
    forbid_waiting(monkeypatch)
    engine = FusionEngine(spec, unbounded=True)
    push(engine, 0, png(7))
    frames = engine.resolve(np.array([T0]))
    assert torch.equal(frames.media["front"], torch.full((1, 3, 16, 16), 7, dtype=torch.uint8))
    assert engine.lost("front")["too_slow"] == 0


def test_the_thread_ends_with_its_engine(make):
    before = set(threading.enumerate())
    engine = make()
    push(engine, 0, png(7))
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "decode front"
    del engine
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["Image", "CompressedImage"])
def test_an_image_that_takes_the_place_of_the_oldest_is_the_one_that_is_used(kind):
    front = {**FRONT, "type": f"sensor_msgs/msg/{kind}", "rate_hz": 10, "max_age_ms": 500}
    engine = FusionEngine(load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 0, "streams": {"front": front}}))
    engine.advance(T0 - 1)
    for number in range(60):  # three times as many as declared
        grey = np.full(32 * 32 * 3, number, np.uint8)
        push(engine, number * 33, ImagePayload(grey, "rgb8", 32, 32, 96) if kind == "Image" else png(number))
        frames = engine.advance(T0 + number * 33 * MS)
        for tick_ns, image in zip(frames.ticks_ns, frames.media["front"], strict=True):
            assert image.unique().tolist() == [(tick_ns - T0) // (33 * MS)]
