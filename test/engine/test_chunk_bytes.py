"""How many ticks of a recording are fused at once: bounded by the bytes of their images."""

import numpy as np
import pytest
import torch

from robocache_ros.decode import ImagePayload
from robocache_ros.engine import FusionEngine, offline
from robocache_ros.spec import load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9
HEIGHT, WIDTH = 6, 8
TICK_BYTES = 3 * HEIGHT * WIDTH


class Images:
    """Replaces Ingest: a message is the grey level of an image, stamped when it arrives."""

    vectors = frozenset()

    def __init__(self, size):
        image = {"image": {"size": size}} if size else {}
        stream = {"topic": "/i", "type": "sensor_msgs/msg/Image", "max_age_ms": 60, "max_skew_ms": 20, **image}
        self.engine = FusionEngine(load_spec({"robocache": 1, "streams": {"i": stream}}), unbounded=True)

    def serialized(self, stream, level, arrival_ns):
        data = np.full(TICK_BYTES, level, np.uint8)
        payload = ImagePayload(data, "rgb8", WIDTH, HEIGHT, 3 * WIDTH)
        self.engine.push(stream, arrival_ns, arrival_ns, payload)


def pieces(size, first_ms, **limits):
    log = [("i", T0 + ms * MS, ms // 20 % 256) for ms in range(first_ms, 2000, 20)]
    return list(offline.run(log, Images(size), T0, T0 + 2000 * MS, chunk=32, **limits))


@pytest.mark.parametrize("size", [None, [HEIGHT, WIDTH]])
@pytest.mark.parametrize("first_ms", [0, 100, 1000])
def test_the_images_of_one_piece_have_no_more_bytes_than_the_limit(size, first_ms):
    found = pieces(size, first_ms, chunk_bytes=5 * TICK_BYTES)
    assert max(part.media["i"].nbytes for part in found) == 5 * TICK_BYTES


@pytest.mark.parametrize("size", [None, [HEIGHT, WIDTH]])
@pytest.mark.parametrize("first_ms", [0, 100])
def test_the_frames_do_not_depend_on_the_limit(size, first_ms):
    found, expected = pieces(size, first_ms, chunk_bytes=5 * TICK_BYTES), pieces(size, first_ms)
    assert torch.equal(torch.cat([p.media["i"] for p in found]), torch.cat([p.media["i"] for p in expected]))
    assert torch.equal(torch.cat([p.rows() for p in found]), torch.cat([p.rows() for p in expected]))


def test_images_larger_than_the_limit_are_fused_tick_by_tick():
    assert {len(part) for part in pieces(None, 0, chunk_bytes=1)} == {1}


def test_small_images_are_fused_in_pieces_of_as_many_ticks_as_allowed():
    assert max(len(part) for part in pieces(None, 0)) == 32


def test_the_first_piece_shows_the_size_of_an_image_that_comes_after_its_first_tick():
    assert pieces(None, 100)[0].media["i"].shape[1:] == (3, HEIGHT, WIDTH)
