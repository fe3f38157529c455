"""The message types that a spec knows, and what a type or a field implies."""

import re
from collections.abc import Mapping, Sequence

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
CLOUD_TYPE = "sensor_msgs/msg/PointCloud2"
LASER_TYPE = "sensor_msgs/msg/LaserScan"
CAMERA_INFO_TYPE = "sensor_msgs/msg/CameraInfo"
JOINT_TYPE = "sensor_msgs/msg/JointState"
TF_TYPE = "tf2_msgs/msg/TFMessage"
TF, TF_STATIC = "/tf", "/tf_static"
TRANSFORM_ALIGNMENTS = ("linear", "hold", "nearest")  # of linear: the position, and the orientation on the sphere
POSE_COMPONENTS = ("px", "py", "pz", "qx", "qy", "qz", "qw")
WINDOW = "window"  # the `align` of a stream whose ticks use all samples since the last tick
REDUCTIONS = ("mean", "rms", "max", "min")  # of a window to one row
MAX_WIDTH = 65536  # values of a sample, and of a window
# NumPy types of PointField.datatype, which counts from 1.
POINT_DATATYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")

_XYZ, _XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
# Components of the fields whose width the message type fixes, by the last part of the field's path.
FIELD_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("orientation", "rotation"), _XYZW),
    **dict.fromkeys(("position", "translation", "linear", "angular", "force", "torque", "vector", "point"), _XYZ),
    **dict.fromkeys(("linear_acceleration", "angular_velocity"), _XYZ),
    **{axis: (axis,) for axis in _XYZW},
}

ROUNDED = ("latitude", "longitude")  # float32 has steps of a metre in these; they need an offset


def components_of(paths: Sequence[str]) -> tuple[str, ...] | None:
    """Labels of the values at some fields, by their names; of an unknown field one. None: one field, not known."""
    known = [FIELD_COMPONENTS.get(path.rpartition(".")[2], ()) for path in paths]
    if len(paths) == 1:
        return known[0] or None
    labels = ((path, part) for path, parts in zip(paths, known, strict=True) for part in parts or ("",))
    return tuple(f"{path}.{part}" if part and part != path.rpartition(".")[2] else path for path, part in labels)


def full_type_hint(name: str) -> str:
    """What to write for a type that is not of the form package/msg/Name."""
    package, _, rest = name.partition("/")
    return f"write {package}/msg/{rest}" if re.fullmatch(r"[A-Za-z]\w*/[A-Za-z]\w*", name) else "change it"
