"""Limits on what one message may hold, and error texts that stay one short line whatever it held."""

import gc
import tracemalloc

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.payloads import MAX_ELEMENTS, MAX_NAMES, MAX_POINTS, MAX_TEXT_BYTES, MAX_TRANSFORMS
from robocache_ros.decode.transforms import read_transforms
from test.decode.conftest import GRID, decoded, make_stream, serialize

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


def test_as_many_and_as_long_joint_names_as_are_allowed_are_read():
    names = ["a", *(f"{i:0{MAX_TEXT_BYTES - 1}}" for i in range(MAX_NAMES - 1))]
    assert decoded(JOINTS, {"name": names, "position": [2.0] * MAX_NAMES}, names=["a"]).value.tolist() == [2.0]


def test_ever_new_joint_names_take_a_bounded_amount_of_memory():
    decoder = make_decoder(make_stream(JOINTS, names=["a"]))

    def send(first, count):
        for i in range(first, first + count):
            names = [f"{i}_{k}".ljust(200) for k in range(200)]
            refusal(decoder, serialize(JOINTS, {"name": names, "position": [0.0] * 200}))
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
        ("std_msgs/msg/Float64MultiArray", {"dim": 2}, {"data": [1e308] * 2}, "range"),
        # More, longer and larger than a robot has.
        (JOINTS, {"names": ["a"]}, {"name": MANY, "position": [0.0] * len(MANY)}, "bad_length"),
        (JOINTS, {"names": ["a"]}, {"name": [LONG], "position": [0.0]}, "bad_length"),
        (IMAGE, {}, {"width": 16385, "height": 1, "encoding": "mono8", "step": 16385, "data": bytes(16385)},
         "image_size"),
        (CLOUD, {}, {"height": 1, "width": MAX_POINTS + 1, "point_step": 1, "data": bytes(MAX_POINTS + 1),
                     "fields": fields("xyz", datatype=1)}, "cloud_size"),  # a byte each, all at the same place
        (CLOUD, {"voxels": {**GRID, "frame": "base"}},
         {"header": {"frame_id": LONG}, "fields": fields("xyz"), "point_step": 12}, "bad_length"),
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_in_one_short_line(kind, keys, values, cause):
    assert refusal(make_decoder(make_stream(kind, **keys)), serialize(kind, values)).cause == cause


@pytest.mark.parametrize(("encoding", "step"), [("32FC1", 9), ("32FC1", 10), ("16UC1", 5), ("mono16", 5)])
def test_rows_that_begin_within_a_value_are_refused(encoding, step):
    values = {"width": 2, "height": 3, "encoding": encoding, "step": step, "data": bytes(3 * step)}
    error = refusal(make_decoder(make_stream(IMAGE)), serialize(IMAGE, values))
    assert error.cause == "image_size"
    assert str(error).startswith(f"step: {step} is not a multiple of ")


def test_an_image_that_shrinks_below_its_layout_is_refused():
    decoder = make_decoder(make_stream(IMAGE))
    values = {"width": 2, "height": 3, "encoding": "mono8", "step": 2}
    assert len(decoder.decode_cdr(serialize(IMAGE, {**values, "data": bytes(7)})).value.data) == 6
    assert refusal(decoder, serialize(IMAGE, {**values, "data": bytes(5)})).cause == "image_size"


def test_a_sequence_that_takes_long_to_walk_is_refused():
    stream = make_stream("my_msgs/msg/Thing", field="x", dim=1, stamp="receive", align="hold")
    decoder = make_decoder(stream, {"my_msgs/msg/Thing": "string[] names\nuint8 x"})
    count = MAX_ELEMENTS + 1
    error = refusal(decoder, b"\0\1\0\0" + count.to_bytes(4, "little") + bytes(4 * count + 1))
    assert error.cause == "bad_length"


def test_more_transforms_than_a_robot_has_are_refused():
    data = serialize("tf2_msgs/msg/TFMessage", {"transforms": [{}] * (MAX_TRANSFORMS + 1)})
    with pytest.raises(DecodeError) as error:
        read_transforms(data)
    assert error.value.cause == "bad_length"


def sample_or_error(decoder, data):
    try:
        return decoder.decode_cdr(data)
    except DecodeError:
        return None


def test_every_single_altered_byte_gives_an_error_or_a_sample_inside_the_message(case):
    decoder, data = case.decoder, case.cdr()
    for place in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            altered = data[:place] + bytes([value]) + data[place + 1 :]
            sample = sample_or_error(decoder, altered)
            if sample is not None and not isinstance(sample.value, np.ndarray) and len(view := sample.value.data):
                begin, first = view.ctypes.data, np.frombuffer(altered, np.uint8).ctypes.data
                assert first <= begin <= begin + len(view) <= first + len(altered)


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
