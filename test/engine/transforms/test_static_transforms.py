"""Static transforms: read from CDR, composed as matrices, and robust against any bytes."""

import math
import tracemalloc

import numpy as np
import pytest

from robocache_ros.decode.payloads import DecodeError
from robocache_ros.decode.transforms import Transform, read_transforms
from robocache_ros.engine.transforms import MAX_STATIC_FRAMES, StaticTransforms
from test.fuzz.messages import header, serialize

HALF = math.sqrt(0.5)
UP = Transform("base", "mast", (0.0, 0.0, 1.5), (0.0, 0.0, 0.0, 1.0))
LEFT = Transform("mast", "camera", (0.25, 0.0, 0.0), (0.0, 0.0, HALF, HALF))  # a quarter turn about z
TOOL = Transform("base", "tool", (0.5, -0.5, 0.0), (HALF, 0.0, 0.0, HALF))  # a quarter turn about x


def tree(*transforms):
    transforms_ = StaticTransforms()
    for transform in transforms:
        assert transforms_.add(transform)
    return transforms_


def matrix(rows):
    return np.vstack([np.array(rows), [0, 0, 0, 1]])


def test_a_chain_is_the_product_worked_out_by_hand():
    found = matrix(tree(UP, LEFT).lookup("base", "camera"))
    expected = [[0, -1, 0, 0.25], [1, 0, 0, 0], [0, 0, 1, 1.5], [0, 0, 0, 1]]
    np.testing.assert_allclose(found, expected, atol=4e-16)  # sqrt(1/2) is not exact


def test_the_way_back_is_the_inverse_and_a_frame_the_identity_in_itself():
    both = tree(UP, LEFT)
    there, back = matrix(both.lookup("base", "camera")), matrix(both.lookup("/camera", "/base"))
    np.testing.assert_allclose(there @ back, np.eye(4), atol=1e-15)
    assert both.lookup("base", "base") == ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0))


def test_frames_on_two_branches_are_connected_by_their_common_ancestor_whatever_arrives_first():
    known = tree(UP, LEFT, TOOL)
    base_tool, base_camera = (matrix(known.lookup("base", f)) for f in ("tool", "camera"))
    expected = np.linalg.inv(base_tool) @ base_camera
    np.testing.assert_allclose(matrix(known.lookup("tool", "camera")), expected, atol=1e-15)
    assert known.lookup("tool", "camera") == tree(TOOL, LEFT, UP).lookup("tool", "camera")


def test_a_transform_that_comes_later_is_found():
    known = tree(UP)
    assert known.lookup("base", "camera") is None
    known.add(LEFT)
    assert known.lookup("base", "camera") is not None


def test_a_loop_is_not_followed_forever():
    looped = tree(UP, Transform("mast", "base", (0.0, 0.0, -1.5), (0.0, 0.0, 0.0, 1.0)))
    assert looped.lookup("base", "nowhere") is None
    assert looped.lookup("base", "mast")[2][3] == 1.5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rotation_xyzw": (0.0, 0.0, 0.0, 0.0)}, "its norm is 0.0000"),
        ({"rotation_xyzw": (math.nan, 0.0, 0.0, 1.0)}, "not finite"),
        ({"translation_m": (math.inf, 0.0, 0.0)}, "not finite"),
        ({"child": "base"}, "both frames are the same"),
    ],
)
def test_an_invalid_transform_is_ignored_and_logged(changes, expected, caplog):
    assert not StaticTransforms().add(UP._replace(**changes))
    assert expected in caplog.text


def test_clouds_with_ever_new_frame_ids_take_a_bounded_amount_of_memory():
    known = tree(UP)
    tracemalloc.start()
    try:
        for i in range(2 * MAX_STATIC_FRAMES):
            known.lookup("base", f"frame_{i}")
        expected = tracemalloc.get_traced_memory()[1]
        for i in range(2 * MAX_STATIC_FRAMES, 10 * MAX_STATIC_FRAMES):
            known.lookup("base", f"frame_{i}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * expected
    assert known.lookup("base", "mast")[2][3] == 1.5


def test_transforms_of_ever_new_frames_are_ignored_from_a_limit_on_and_logged_once(caplog):
    known = StaticTransforms()
    accepted = [known.add(UP._replace(child=f"frame_{i}")) for i in range(MAX_STATIC_FRAMES + 5)]
    assert accepted == [True] * MAX_STATIC_FRAMES + [False] * 5
    assert caplog.text.count(f"more than {MAX_STATIC_FRAMES} frames") == 1
    assert known.add(UP._replace(child="frame_0", translation_m=(0.0, 0.0, 2.0)))  # a known frame may still change
    assert known.lookup("base", "frame_0")[2][3] == 2.0


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_message_is_read_and_cut_anywhere_refused(order):
    sent, entries = [UP, LEFT._replace(stamp_ns=7_000_000_009), TOOL], []
    for parent, child, position, rotation, stamp_ns in sent:
        turn = dict(zip("xyzw", rotation, strict=True))
        transform = {"translation": dict(zip("xyz", position, strict=True)), "rotation": turn}
        entries.append({"header": header(stamp_ns, parent), "child_frame_id": child, "transform": transform})
    data = serialize("tf2_msgs/msg/TFMessage", {"transforms": entries}, order)
    assert read_transforms(data) == sent
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            read_transforms(data[:size])
