"""A recording fused in pieces: the same frames as in one piece, in memory that does not grow."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode import ImagePayload
from robocache_ros.engine import FusionEngine, offline
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.engine.conftest import MS, T0

STREAM = {"topic": "/v", "type": "geometry_msgs/msg/Vector3Stamped", "field": "vector.x"}
STREAM |= {"max_gap_ms": 50, "max_age_ms": 60, "max_skew_ms": 100}
NAMES = ("v", "w")


def spec(emit, lead_ms=0, on_invalid="split", align="linear"):
    timeline = {"delay_ms": 20, "lead_ms": lead_ms, "emit": emit}
    streams = dict.fromkeys(NAMES, STREAM | {"on_invalid": on_invalid, "align": align})
    return load_spec({"robocache": 1, **timeline, "streams": streams})


class Pushes:
    """Replaces Ingest: a message is (stamp in ms, number or image), not CDR."""

    vectors = frozenset()

    def __init__(self, fusion):
        self.engine = FusionEngine(fusion, unbounded=True)
        self.counters = {stream.name: Counter() for stream in fusion.streams}

    def serialized(self, stream, data, arrival_ns):
        stamp_ms, value = data
        value = value if isinstance(value, ImagePayload) else np.array([value], np.float32)
        self.engine.push(stream, T0 + stamp_ms * MS, arrival_ns, value)


def messages(samples):
    """`(stream, stamp_ms, delay_ms)` to what a log holds, in its order."""
    log = [(name, T0 + (stamp + delay) * MS, (stamp, number)) for number, (name, stamp, delay) in enumerate(samples)]
    return sorted(log, key=lambda message: message[1])


recordings = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1500), st.integers(0, 150)), max_size=80)


@settings(max_examples=60)
@given(
    recordings,
    st.sampled_from(["fixed", "eager"]),
    st.sampled_from(offline.VISIBILITIES),
    st.integers(1, 9),
    st.sampled_from(["split", "hold"]),
    st.sampled_from(["linear", "nearest", "next"]),
)
def test_frames_in_pieces_are_those_of_the_recording_in_one_piece(samples, emit, visibility, chunk, on_invalid, align):
    log = messages(samples)
    fusion = spec(emit, on_invalid=on_invalid, align=align)
    pieces = list(offline.run(log, Pushes(fusion), T0 + 5, T0 + 1500 * MS, visibility=visibility, chunk=chunk))
    complete = Pushes(fusion)
    for message in log:
        complete.serialized(message[0], message[2], message[1])
    ticks = np.concatenate([piece.ticks_ns for piece in pieces])
    assert ticks.tolist() == [T0 + i * 20 * MS for i in range(1, 76)]
    deadlines = complete.engine.deadlines(ticks) if visibility == "deployed" else None
    expected = complete.engine.resolve(ticks, deadlines)
    assert torch.equal(torch.cat([piece.rows() for piece in pieces]), expected.rows())


@pytest.mark.parametrize(("visibility", "seen"), [("deployed", [0.0, 2.0]), ("ideal", [1.0, 2.0])])
def test_a_deployed_tick_sees_what_a_robot_made_it_of(visibility, seen):
    # The second sample of the first tick arrives at 17 ms: the tick is computed at 15 and published at 20.
    log = messages([("v", -5, 5), ("v", 0, 17), ("v", 20, 15)])
    frames = list(offline.run(log, Pushes(spec("fixed", 5)), T0, T0 + 20 * MS, visibility=visibility))
    assert torch.cat([f.fused for f in frames])[:, 0].tolist() == seen


@pytest.mark.parametrize(("on_invalid", "last"), [("split", (0, 0.0, 0)), ("hold", (2, 1.0, 980 * MS))])
def test_a_stream_that_falls_silent_is_invalid_or_held_with_its_age(on_invalid, last):
    log = messages([("v", 0, 0), ("v", 20, 0)])
    fusion = spec("fixed", on_invalid=on_invalid)
    frames = list(offline.run(log, Pushes(fusion), T0, T0 + 1000 * MS, chunk=4))[-1]
    assert (int(frames.valid[-1, 0]), float(frames.fused[-1, 0]), int(frames.age_ns[-1, 0])) == last


def test_memory_holds_the_samples_between_the_log_and_the_ticks_that_await_them():
    samples = [("v", stamp, 0) for stamp in range(0, 20_000, 2)]
    pushes = Pushes(spec("fixed"))
    memory = pushes.engine.memory()
    frames = list(offline.run(messages(samples), pushes, T0, T0 + 20_000 * MS, chunk=8))
    assert sum(len(f) for f in frames) == 1001
    assert pushes.engine.memory() == memory  # slots are added where samples need more


HEIGHT, WIDTH = 6, 8
TICK_BYTES = 3 * HEIGHT * WIDTH


def pieces(size, first_ms, **limits):
    """Of a recording with a grey image each 20 ms, from a time on."""
    stream = {"topic": "/i", "type": "sensor_msgs/msg/Image", "max_age_ms": 60, "max_skew_ms": 20}
    stream |= {"image": {"size": size}} if size else {}
    log = []
    for ms in range(first_ms, 2000, 20):
        image = ImagePayload(np.full(TICK_BYTES, ms // 20 % 256, np.uint8), "rgb8", WIDTH, HEIGHT, 3 * WIDTH)
        log.append(("i", T0 + ms * MS, (ms, image)))
    pushes = Pushes(load_spec({"robocache": 1, "streams": {"i": stream}}))
    return list(offline.run(log, pushes, T0, T0 + 2000 * MS, chunk=32, **limits))


@pytest.mark.parametrize(("size", "first_ms"), [(None, 0), (None, 100), (None, 1000), ([HEIGHT, WIDTH], 100)])
def test_the_images_of_one_piece_have_no_more_bytes_than_the_limit_and_frames_do_not_depend_on_it(size, first_ms):
    found, expected = pieces(size, first_ms, chunk_bytes=5 * TICK_BYTES), pieces(size, first_ms)
    assert max(part.media["i"].nbytes for part in found) == 5 * TICK_BYTES
    if first_ms < 1000:  # the images before it have no size
        assert torch.equal(torch.cat([p.media["i"] for p in found]), torch.cat([p.media["i"] for p in expected]))
        assert expected[0].media["i"].shape[1:] == (3, HEIGHT, WIDTH)  # also if it comes after the first tick
    assert torch.equal(torch.cat([p.rows() for p in found]), torch.cat([p.rows() for p in expected]))


def test_a_piece_has_as_many_ticks_as_allowed_or_one_where_an_image_is_larger_than_the_limit():
    assert max(len(part) for part in pieces(None, 0)) == 32
    assert {len(part) for part in pieces(None, 0, chunk_bytes=1)} == {1}


def test_an_unknown_visibility_is_refused():
    with pytest.raises(RoboCacheError, match="visibility: 'real' is not one of ideal, deployed"):
        next(offline.run([], Pushes(spec("fixed")), T0, T0, visibility="real"))


TICK_NS = 1_700_000_000_020_000_000


def vector(dim, **more):
    return {"topic": "/t", "type": "std_msgs/msg/Float64MultiArray", "dim": dim, **more}


COMMAND = vector(1, align="hold", role="action")
LAYOUT = Layout(load_spec({"robocache": 1, "streams": {"joints": vector(2), "command": COMMAND, "tool": vector(3)}}))


def frame(*valid):
    """A frame of two ticks, with `valid` of the newest."""
    row = [1.0, 2.0, 9.0, 3.0, 4.0, 5.0, *valid, 0.0, 0.0, 0.0]
    return split_window(LAYOUT, TICK_NS, torch.tensor([[0.0] * len(row), row]))


def test_mapping_gives_the_observations_and_finds_the_actions():
    made = frame(1, 1, 1)
    assert list(made.keys()) == ["joints", "tool"]
    assert {name: value[-1].tolist() for name, value in dict(made).items()} == {"joints": [1, 2], "tool": [3, 4, 5]}
    assert "command" in made
    assert made["command"][-1].tolist() == [9]
    assert "camera" not in made


def test_missing_stream_is_named_with_those_that_the_frame_has():
    with pytest.raises(KeyError, match=r"fornt: the frame has joints, command, tool; name image and voxel streams in"):
        frame(1, 1, 1)["fornt"]


@pytest.mark.parametrize(("valid", "expected"), [((1, 0, 2), True), ((1, 1, 0), False)], ids=["action", "observation"])
def test_all_are_valid_where_each_observation_has_a_value_at_the_tick(valid, expected):
    assert frame(*valid).all_valid is expected


def test_repr_is_one_line_of_a_screen():
    assert repr(frame(1, 0, 1)) == (
        "<FusedFrame tick 1700000000.020000000; joints 2x2, command 2x1, tool 2x3; invalid: command>"
    )
    many = {f"a_stream_with_a_long_name_{k}": torch.zeros(2, k) for k in range(50)}
    crowded = FusedFrame(TICK_NS, torch.zeros(2), many, dict.fromkeys(many, torch.zeros(2)), {})
    assert len(repr(crowded)) <= 120
    assert "and 49 more" in repr(crowded)


def test_frame_without_tensors_is_true():
    assert FusedFrame(TICK_NS, torch.zeros(1), {}, {}, {})


def test_row_for_lerobot_needs_the_layout():
    with pytest.raises(RoboCacheError, match=r"frame\.lerobot: the layout is not known"):
        FusedFrame(TICK_NS, torch.zeros(1), {}, {}, {}).lerobot()


def test_a_grey_image_has_three_channels_in_a_row_for_lerobot_as_in_a_dataset():
    spec = load_spec({"robocache": 1, "streams": {"front": {"topic": "/front", "type": "sensor_msgs/msg/Image"}}})
    image = torch.tensor([[[0, 255]]], dtype=torch.uint8)
    row = FusedFrame(TICK_NS, torch.zeros(1), {"front": image}, {}, {}, {}, Layout(spec)).lerobot()
    assert row["observation.images.front"].tolist() == [[[0, 1]]] * 3
