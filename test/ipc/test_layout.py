from __future__ import annotations

import json

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import Field, RingLayout

FIELDS = (
    Field("fused", "float32", (4, 3)),
    Field("front", "uint8", (3, 5, 7)),
    Field("age_ns", "int64", (4,), host=True),
)


def test_description_reads_back_the_same() -> None:
    layout = RingLayout(FIELDS, 8, "cuda", meta='{"rate_hz": 50}')

    assert RingLayout.from_json(layout.to_json()) == layout


def test_fields_start_on_aligned_offsets_and_do_not_overlap() -> None:
    layout = RingLayout(FIELDS, 8, "cpu")

    assert layout.offsets == {"fused": 0, "front": 256, "age_ns": 0}
    assert (layout.slot_bytes, layout.host_bytes) == (512, 256)


def test_another_protocol_is_named() -> None:
    text = json.dumps({**json.loads(RingLayout(FIELDS, 8, "cpu").to_json()), "protocol": 99})

    with pytest.raises(RoboCacheError, match="protocol: 99, this side speaks 1"):
        RingLayout.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"protocol": 1}', '{"protocol": 1, "fields": 3}', b"\xff"])
def test_what_is_no_description_is_refused(text: str | bytes) -> None:
    with pytest.raises(RoboCacheError, match="ring description"):
        RingLayout.from_json(text)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("x", "complex64", (1,)), "x: dtype 'complex64' is not one of"),
        (("x", "uint8", (-1,)), "x: shape"),
        (("x", "bfloat16", (1,), True), "x: bfloat16"),
    ],
)
def test_impossible_field_is_named(field: tuple[str, str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(RoboCacheError, match=message):
        Field(*field)


def test_one_slot_is_too_few() -> None:
    with pytest.raises(RoboCacheError, match=r"slots: 1 is not in 2\.\.1024"):
        RingLayout(FIELDS, 1, "cpu")
