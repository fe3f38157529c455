"""A resolved spec is written and read back the same, whatever it declares."""

import json

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.spec import Layout, load_spec
from robocache_ros.spec.strict_yaml import load

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
TOPICS = NAMES.map("/{}".format)


def optional(**keys):
    return st.fixed_dictionaries({}, optional=keys)


def numbers(low, high, above=False):
    return st.floats(low, high, exclude_min=above) | st.sampled_from([high] if above else [low, high])


COMMON = optional(
    max_gap_ms=numbers(0, 1e7, True),
    max_age_ms=numbers(0, 1e7),
    latency_ms=numbers(-1e5, 1e5),
    max_skew_ms=numbers(0, 1e13, True),
    rate_hz=numbers(0, 1e5, True),
    role=st.sampled_from(["observation", "action"]),
    unit=st.sampled_from(["rad", "yes", "1:30", "m/s²"]),
    pair_ms=numbers(0, 1e4),
    stamp=st.just("receive"),
    qos=optional(reliability=st.just("reliable"), depth=st.integers(1, 10_000)),
)
TRIPLES = st.lists(numbers(-1e6, 1e6), min_size=3, max_size=3)
IMAGE = optional(
    size=st.lists(st.integers(1, 16384), min_size=2, max_size=2),
    crop=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(1, 9)).map(list),
    resize=st.sampled_from(["bilinear", "nearest", "area"]),
    normalize=st.sampled_from(["imagenet", {"mean": [0, 0.5, 1], "std": [1, 1e-9, 10]}]),
)
GRID = st.fixed_dictionaries(
    {
        "origin_m": TRIPLES,
        "size_m": numbers(0, 1e4, True) | st.lists(numbers(0, 1e4, True), min_size=3, max_size=3),
        "shape": st.lists(st.integers(1, 64), min_size=3, max_size=3),
    },
    optional={"extrinsic": TRIPLES.map(lambda t: {"translation_m": t, "rotation_xyzw": [0, 0.6, 0, -0.8]})},
)


def merged(**required):
    return st.tuples(COMMON, st.fixed_dictionaries({"topic": TOPICS, **required})).map(lambda two: two[0] | two[1])


JOINTS = st.lists(st.text("aß 0.", min_size=1), min_size=1, unique=True)
STREAMS = st.one_of(
    merged(type=st.just("sensor_msgs/msg/JointState"), names=JOINTS),
    merged(type=st.just("geometry_msgs/msg/PoseStamped"), field=st.just("pose.orientation"), align=st.just("slerp")),
    merged(type=st.just("std_msgs/msg/Float64MultiArray"), dim=st.sampled_from([1, 7, 1000])),
    merged(type=st.just("my_msgs/msg/Rig"), field=st.just(["a", "b.c"]), offset=st.just([1.5, 0.0])),
    merged(type=st.just("sensor_msgs/msg/Image"), image=IMAGE),
    merged(type=st.just("sensor_msgs/msg/CompressedImage")),
    merged(type=st.just("sensor_msgs/msg/PointCloud2"), voxels=GRID),
    merged(type=st.just("tf2_msgs/msg/TFMessage"), frames=st.just(["base_link", "tool0"])),
    merged(type=st.just("sensor_msgs/msg/Image"), voxels=GRID, camera_info=TOPICS, color=TOPICS),
)
SPECS = st.fixed_dictionaries(
    {"robocache": st.just(1), "streams": st.dictionaries(NAMES, STREAMS, min_size=1, max_size=4)},
    optional={
        "rate_hz": st.integers(1, 1000),
        "horizon": st.integers(1, 10_000),
        "delay_ms": numbers(1, 60_000),
        "lead_ms": numbers(0, 1),
        "emit": st.sampled_from(["fixed", "eager"]),
    },
).map(load_spec)


@given(SPECS)
@settings(max_examples=40)
def test_a_resolved_spec_reads_back_the_same(spec):
    written = spec.to_dict()
    assert load_spec(written) == spec
    assert load_spec(json.loads(Layout(spec).to_json())["spec"]) == spec
    assert load_spec(load(yaml.safe_dump(written, sort_keys=False, allow_unicode=True)).value) == spec
