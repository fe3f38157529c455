"""The layout of a fused row: what `~/layout` and a dataset's provenance state about columns and streams."""

from __future__ import annotations

from robocache_ros.spec import Layout, load_spec


def test_a_column_states_its_quantity_and_a_stream_its_kind() -> None:
    streams = {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"], "unit": "rad"},
        "front": {"topic": "/front", "type": "sensor_msgs/msg/Image"},
    }
    layout = Layout(load_spec({"robocache": 1, "streams": streams})).to_dict()
    assert [(column["name"], column["quantity"], column["unit"]) for column in layout["columns"]] == [
        ("joints.a", "value", "rad"),
        ("valid:joints", "valid", "0 none, 1 aligned, 2 held"),
        ("valid:front", "valid", "0 none, 1 aligned, 2 held"),
        ("age_ms:joints", "age", "ms"),
        ("age_ms:front", "age", "ms"),
    ]
    kinds = {name: stream["kind"] for name, stream in layout["streams"].items()}
    assert kinds == {"joints": "vector", "front": "image"}
    assert not any("kind" in column for column in layout["columns"])
