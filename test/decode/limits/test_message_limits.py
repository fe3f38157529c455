"""Limits on what one message may hold, and error texts that stay one short line whatever it held."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode import DecodeError, ImagePayload, decode_compressed, make_decoder
from robocache_ros.decode.payloads import MAX_ELEMENTS, MAX_NAMES, MAX_POINTS, MAX_TEXT_BYTES, MAX_TRANSFORMS
from robocache_ros.decode.transforms import read_transforms
from test.decode.conftest import CASES

JOINTS, IMAGE, CLOUD = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2"
FORGED = "a\n[ERROR] [fusion_node]: forged \x1b[31m\u202e"


def refusal(decoder, data):
    """The error of a message, after checking that its text is fit for a log."""
    with pytest.raises(DecodeError) as caught:
        decoder.decode_cdr(data)
    text = str(caught.value)
    assert len(text) < 200
    assert text.isprintable()
    return caught.value


def fields(names, **keys):
    return [{"name": name, "offset": 0, "datatype": 7, "count": 1, **keys} for name in names]


def test_as_many_and_as_long_joint_names_as_are_allowed_are_read(stream_of, cdr):
    names = ["a", *(f"{i:0{MAX_TEXT_BYTES - 1}}" for i in range(MAX_NAMES - 1))]
    decoder = make_decoder(stream_of(JOINTS, names=["a"]))
    assert decoder.decode_cdr(cdr(JOINTS, {"name": names, "position": [2.0] * MAX_NAMES})).value.tolist() == [2.0]


def test_ever_new_joint_names_take_a_bounded_amount_of_memory(stream_of, cdr):
    decoder = make_decoder(stream_of(JOINTS, names=["a"]))

    def send(first, count):
        for i in range(first, first + count):
            names = [f"{i}_{k}".ljust(200) for k in range(200)]
            refusal(decoder, cdr(JOINTS, {"name": names, "position": [0.0] * 200}))
        gc.collect()  # the tracebacks of the errors

    tracemalloc.start()
    try:
        send(0, 20)
        before = tracemalloc.get_traced_memory()[0]
        send(20, 40)
        assert tracemalloc.get_traced_memory()[0] < before + (1 << 18)
    finally:
        tracemalloc.stop()


MANY = [f"joint_{i}" for i in range(MAX_NAMES + 1)]
GRID = {"origin_m": (0.0, 0.0, 0.0), "size_m": (0.1, 0.1, 0.1), "shape": (8, 8, 8), "frame": "base"}
LONG = "f" * (MAX_TEXT_BYTES + 1)


@pytest.mark.parametrize(
    ("kind", "keys", "values", "cause"),
    [
        # Names in a message cannot forge or flood the log, nor can its values.
        (JOINTS, {"names": ["x"]}, {"name": [FORGED], "position": [1.0]}, "joint_missing"),
        (JOINTS, {"names": ["x"]}, {"name": [f"{i:400}" for i in range(1000)]}, "joint_missing"),
        (IMAGE, {}, {"encoding": FORGED}, "bad_encoding"),
        (IMAGE, {}, {"encoding": "e" * 400}, "bad_encoding"),
        ("sensor_msgs/msg/CompressedImage", {}, {"format": FORGED}, "bad_encoding"),
        ("sensor_msgs/msg/CompressedImage", {}, {"format": FORGED + "png"}, "bad_image"),
        (CLOUD, {}, {"fields": fields([FORGED, "y" * 400])}, "bad_fields"),
        (CLOUD, {}, {"fields": fields(["x", "y", "z", FORGED], datatype=77), "point_step": 12}, "bad_fields"),
        (CLOUD, {}, {"fields": fields(["x", "y", "z", FORGED * 9], count=77), "point_step": 12}, "bad_fields"),
        ("std_msgs/msg/Float64MultiArray", {"dim": 2}, {"data": np.full(2, 1e308)}, "range"),
        # More, longer and larger than a robot has.
        (JOINTS, {"names": ["a"]}, {"name": MANY, "position": [0.0] * len(MANY)}, "bad_length"),
        (JOINTS, {"names": ["a"]}, {"name": [LONG], "position": [0.0]}, "bad_length"),
        (IMAGE, {}, {"width": 16385, "height": 1, "encoding": "mono8", "step": 16385, "data": bytes(16385)},
         "image_size"),
        (CLOUD, {}, {"height": 1, "width": MAX_POINTS + 1, "point_step": 1, "data": bytes(MAX_POINTS + 1),
                     "fields": fields("xyz", datatype=1)}, "cloud_size"),  # a byte each, all at the same place
        (CLOUD, {"voxels": GRID}, {"header": {"frame_id": LONG}, "fields": fields("xyz"), "point_step": 12},
         "bad_length"),
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_in_one_short_line(stream_of, cdr, kind, keys, values, cause):
    assert refusal(make_decoder(stream_of(kind, **keys)), cdr(kind, values)).cause == cause


@pytest.mark.parametrize(("encoding", "step"), [("32FC1", 9), ("32FC1", 10), ("16UC1", 5), ("mono16", 5)])
def test_rows_that_begin_within_a_value_are_refused(stream_of, cdr, encoding, step):
    values = {"width": 2, "height": 3, "encoding": encoding, "step": step, "data": bytes(3 * step)}
    error = refusal(make_decoder(stream_of(IMAGE)), cdr(IMAGE, values))
    assert error.cause == "image_size"
    assert str(error).startswith(f"step: {step} is not a multiple of ")


def test_an_image_that_shrinks_below_its_layout_is_refused(stream_of, cdr):
    decoder = make_decoder(stream_of(IMAGE))
    values = {"width": 2, "height": 3, "encoding": "mono8", "step": 2}
    assert len(decoder.decode_cdr(cdr(IMAGE, {**values, "data": bytes(7)})).value.data) == 6
    assert refusal(decoder, cdr(IMAGE, {**values, "data": bytes(5)})).cause == "image_size"


def test_a_sequence_that_takes_long_to_walk_is_refused(stream_of):
    stream = stream_of("my_msgs/msg/Thing", field="x", dim=1, stamp="receive", align="hold")
    decoder = make_decoder(stream, {"my_msgs/msg/Thing": "string[] names\nuint8 x"})
    count = MAX_ELEMENTS + 1
    error = refusal(decoder, b"\0\1\0\0" + count.to_bytes(4, "little") + bytes(4 * count + 1))
    assert error.cause == "bad_length"


def test_more_transforms_than_a_robot_has_are_refused(cdr):
    data = cdr("tf2_msgs/msg/TFMessage", {"transforms": [{}] * (MAX_TRANSFORMS + 1)})
    with pytest.raises(DecodeError) as error:
        read_transforms(data)
    assert error.value.cause == "bad_length"


_EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
_CASES = st.sampled_from(CASES)
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


@settings(max_examples=300)
@given(
    case=_CASES,
    edits=_EDITS,
    cut=st.integers(0, 1 << 16),
    length=st.none() | st.tuples(st.integers(0, 1 << 16), _WORDS),
    little=st.booleans(),
)
def test_altered_bytes_and_lengths_give_a_sample_or_an_error(case, edits, cut, length, little):
    data = bytearray(case.cdr(little))
    if length is None:
        for place, value in edits:
            data[place % len(data)] = value
        data = data[: 1 + cut % (2 * len(data))]
    else:
        start = length[0] % (len(data) // 4) * 4
        data[start : start + 4] = length[1].to_bytes(4, "little" if little else "big")
    altered = bytes(data)
    decoder = case.decoder
    check_inside(sample_or_error(decoder, altered), altered)
    sample_or_error(decoder, memoryview(altered))


@given(case=_CASES, head=st.sampled_from([b"", b"\0\0\0\0", b"\0\1\0\0"]), body=st.binary(max_size=200))
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


@settings(max_examples=100)
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
