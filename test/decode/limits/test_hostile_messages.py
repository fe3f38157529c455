"""Whatever the bytes are, decoding ends in a sample or in a DecodeError, and nothing outside the message is read."""

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode import DecodeError, ImagePayload, decode_compressed

_EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
_WORDS = st.sampled_from([0, 1, 0x7F, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8])


def sample_or_error(decoder, data):
    try:
        return decoder.decode_cdr(data)
    except DecodeError:
        return None


def check_inside(sample, data):
    """A payload's view is inside the message."""
    if sample is not None and not isinstance(sample.value, np.ndarray) and len(sample.value.data):
        begin, first = (a.__array_interface__["data"][0] for a in (sample.value.data, np.frombuffer(data, np.uint8)))
        assert first <= begin <= begin + len(sample.value.data) <= first + len(data)


@settings(max_examples=100)
@given(edits=_EDITS, cut=st.integers(0, 1 << 16), little=st.booleans())
def test_altered_bytes_give_a_sample_or_an_error(case, edits, cut, little):
    data = bytearray(case.cdr(little))
    for place, value in edits:
        data[place % len(data)] = value
    altered = bytes(data[: 1 + cut % (2 * len(data))])
    decoder = case.decoder
    check_inside(sample_or_error(decoder, altered), altered)
    sample_or_error(decoder, memoryview(altered))


@settings(max_examples=100)
@given(place=st.integers(0, 1 << 16), word=_WORDS, little=st.booleans())
def test_an_altered_length_gives_a_sample_or_an_error(case, place, word, little):
    data = bytearray(case.cdr(little))
    start = place % (len(data) // 4) * 4
    data[start : start + 4] = word.to_bytes(4, "little" if little else "big")
    altered = bytes(data)
    check_inside(sample_or_error(case.decoder, altered), altered)


@settings(max_examples=100)
@given(head=st.sampled_from([b"", b"\0\0\0\0", b"\0\1\0\0"]), body=st.binary(max_size=200))
def test_random_bytes_give_a_sample_or_an_error(case, head, body):
    sample_or_error(case.decoder, head + body)


def test_every_single_altered_byte_gives_a_sample_or_an_error(case):
    decoder, data = case.decoder, case.cdr()
    for place in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            sample_or_error(decoder, data[:place] + bytes([value]) + data[place + 1 :])


def test_a_forged_length_allocates_nothing_of_its_size(case):
    decoder, data = case.decoder, case.cdr()
    sample_or_error(decoder, data)
    tracemalloc.start()
    try:
        for place in range(4, len(data) - 3, 4):
            sample_or_error(decoder, data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=400)
@given(
    kind=st.sampled_from(["rgb.jpeg", "grey.png", "rgb.png", "deep.png", "metres.depth"]),
    edits=_EDITS,
    kept=st.just(1.0) | st.floats(0, 1),
)
def test_an_altered_picture_gives_an_image_or_an_error(pictures, kind, edits, kept):
    payload = pictures[kind]
    data = bytearray(payload.data.tobytes())
    for place, value in edits:
        data[place % len(data)] = value
    altered = np.frombuffer(bytes(data[: round(kept * len(data))]), np.uint8)
    try:
        image = decode_compressed(ImagePayload(altered, payload.encoding, source=payload.source))
    except DecodeError:
        return
    assert len(image.data) == image.height * image.step
