"""The engine on a real GPU: the bits of the CPU, no allocation in the steady state, behaviour under pressure."""

import gc
import io
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros.bags.reader import Bag
from robocache_ros.decode import CloudPayload, ImagePayload, PointField
from robocache_ros.engine import FusionEngine, Ingest, offline
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.engine.conftest import delay_uploads

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]
MS = 1_000_000


@pytest.mark.parametrize("emit", ["fixed", "eager"])
def test_the_frames_of_a_robot_are_those_of_its_recording(mixture, emit):
    """The GPU fed live, in the order of arrival, against the CPU over all of panda_lift."""
    spec = load_spec({**load_spec(ROOT / "config" / "panda_lift.yaml").to_dict(), "emit": emit})
    with Bag(ROOT / "test" / "data" / "panda_lift") as bag:
        definitions = bag.definitions
        streams = {}
        for stream in spec.streams:
            streams.setdefault(stream.topic, []).append(stream.name)
        messages = [(n, m.log_ns, m.data) for m in bag.messages(set(streams)) for n in streams[m.topic]]
    live = FusionEngine(spec, "cuda")
    ingest = Ingest(spec, live, definitions)
    live.advance(messages[0][1])
    got, now = [], 0
    for name, log_ns, data in messages:
        if log_ns > now:  # all that arrived before is pushed
            got += one_by_one(live, log_ns - 1)
            now = log_ns
        ingest.serialized(name, data, log_ns)
    got += one_by_one(live, now + 200 * MS)

    recorded = Ingest(spec, FusionEngine(spec, unbounded=True), definitions)
    first, last = int(got[0].ticks_ns[0]), int(got[-1].ticks_ns[0])
    chunks = offline.run(messages, recorded, first, last, visibility="deployed")
    expected = [frames[k : k + 1] for frames in chunks for k in range(len(frames))]
    assert len(got) == len(expected) > 400
    for one, other in zip(got, expected, strict=True):
        assert mixture.bits(one) == mixture.bits(other)
    complete = np.concatenate([frames.valid for frames in expected]).min(axis=1)
    assert (complete > 0).sum() > 300  # the comparison is of values, not of zeros


def one_by_one(engine, now_ns):
    """The frames due by now, each copied from the GPU before the next is made."""
    copies = []
    while len(frames := engine.advance(now_ns, limit=1)):
        frames.done.synchronize()
        media = {name: tensor.cpu() for name, tensor in frames.media.items()}
        copies.append(type(frames)(frames.ticks_ns, frames.fused.cpu(), frames.valid, frames.age_ns, media))
    return copies


FIELDS = tuple(PointField(name, 4 * i, 7, 1) for i, name in enumerate("xyz"))
STREAMS = {
    "joints": {"topic": "/j", "type": "std_msgs/msg/Float64MultiArray", "dim": 7, "align": "linear"},
    "front": {"topic": "/f", "type": "sensor_msgs/msg/Image", "image": {"size": [24, 32], "normalize": "imagenet"}},
    "cloud": {
        "topic": "/c",
        "type": "sensor_msgs/msg/PointCloud2",
        "voxels": {"origin_m": [-1, -1, -1], "size_m": 0.1, "shape": [20, 20, 20], "reduce": "mean", "features": ["z"]},
    },
}


def steady(mixture, **options):
    """An engine, and a function that pushes the samples of tick k and returns the frame."""
    spec = load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 0, "horizon": 16, "streams": STREAMS})
    engine = FusionEngine(spec, "cuda", **options)
    rng = np.random.default_rng(0)
    joints = rng.normal(size=(64, 7)).astype(np.float32)
    images = rng.integers(0, 255, (4, 192 * 48), dtype=np.uint8)
    points = [rng.normal(size=(n, 3)).astype(np.float32).view(np.uint8).reshape(-1) for n in (200, 150, 90)]
    engine.advance(mixture.t0 - 1)

    def step(k):
        now = mixture.t0 + k * 20 * MS
        for i in range(4):
            engine.push("joints", None, now - (15 - 5 * i) * MS, joints[(4 * k + i) % 64])
        if k % 2 == 0:
            engine.push("front", now - 3 * MS, now, ImagePayload(images[k // 2 % 4], "rgb8", 64, 48, 192))
        if k % 5 == 0:
            data = points[k // 5 % 3]
            engine.push("cloud", now - 3 * MS, now, CloudPayload(data, len(data) // 12, 1, 12, len(data), FIELDS))
        return engine.advance(now, limit=1)

    return engine, step


def test_nothing_is_allocated_in_ten_thousand_ticks(mixture):
    import cupy

    class Count(cupy.cuda.MemoryHook):
        name = "count"
        calls = 0

        def alloc_preprocess(self, **_):
            self.calls += 1

        def malloc_preprocess(self, **_):
            self.calls += 1

    def allocated():
        stats = {**torch.cuda.memory_stats(), **{f"host.{k}": v for k, v in torch.cuda.host_memory_stats().items()}}
        return {key: value for key, value in stats.items() if key.endswith(".allocated") and "bytes" not in key}

    engine, step = steady(mixture)
    for k in range(100):
        step(k)

    def counters():  # a GPU that is also used by others stalls
        return {name: count for name, count in engine.counters().items() if name != "stalls"}

    before, counted = allocated(), counters()
    assert any(before.values())
    with Count() as count:
        for k in range(100, 10_100):
            assert step(k).rows().shape == (1, 13)
    assert allocated() == before
    assert count.calls == 0
    assert counters() == counted


def test_a_tick_waits_for_the_copies_that_it_needs(mixture):
    _, step = steady(mixture)
    engine, after = steady(mixture)
    for k in range(4):  # graphs are captured
        assert torch.equal(after(k).media["front"], step(k).media["front"])
    expected = step(4).media["front"].cpu()
    delay_uploads(engine)
    frames = after(4)
    assert not frames.done.query()  # the host has not waited, the tick does
    assert torch.equal(frames.media["front"].cpu(), expected)


def test_a_host_that_is_faster_than_the_copies_waits_and_counts_it(mixture):
    engine, step = steady(mixture)
    step(0)
    delay_uploads(engine)
    data = np.zeros(192 * 48, np.uint8)
    for i in range(1000):  # 9 MB where the pinned ring has 4
        engine.push("front", mixture.t0 + i * 1000, mixture.t0, ImagePayload(data, "rgb8", 64, 48, 192))
    assert engine.counters()["stalls"] >= 1
    assert engine.lost("front")["overrun"] > 900


def test_a_gpu_without_the_memory_refuses_at_configure_and_names_the_amount(mixture):
    with pytest.raises(RoboCacheError, match=r"streams\.front: its samples need [\d,.]+ MiB .* are free"):
        steady(mixture, payload_bytes={"front": 10**11})
    _, step = steady(mixture)  # the GPU still works
    assert step(0).valid.all()


def test_a_released_engine_frees_its_memory_at_once(mixture):
    engine, step = steady(mixture)
    step(0)
    del engine, step  # what all engines share is allocated now
    gc.collect()
    gc.disable()  # a reference cycle would keep it until the next collection
    try:
        before = torch.cuda.memory_allocated()
        engine, step = steady(mixture)
        for k in range(3):
            step(k)
        assert torch.cuda.memory_allocated() > before
        del engine, step
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_jpeg_decoded_by_nvjpeg_is_near_the_cpu_decoder(mixture):
    pytest.importorskip("torchvision")
    from PIL import Image

    rows, columns = np.mgrid[0:48, 0:64]
    picture = np.stack([rows * 4, columns * 3, rows + columns], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=95)
    data = np.frombuffer(file.getvalue(), np.uint8)
    image = {"topic": "/p", "type": "sensor_msgs/msg/CompressedImage", "image": {"size": [48, 64]}}
    spec = load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 20, "streams": {"front": image}})
    shown = []
    for jpeg in ("cpu", "gpu"):
        engine = FusionEngine(spec, "cuda", jpeg=jpeg)
        engine.advance(mixture.t0)
        engine.push("front", mixture.t0, mixture.t0, ImagePayload(data[:200], "jpeg"))  # truncated
        engine.push("front", mixture.t0 - MS, mixture.t0, ImagePayload(data, "jpeg"))
        shown.append(engine.advance(mixture.t0 + 20 * MS).media["front"].cpu().int())
        assert engine.lost("front")["corrupt"] == 1
    assert shown[0].any()
    # Two decoders of one file may differ by their rounding and by how they upsample colours; this one is smooth.
    assert (shown[0] - shown[1]).abs().max() <= 8
