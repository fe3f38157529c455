"""Message types supported by a spec, the values implied by a type or a field, and the syntax of their names."""

import re
from collections.abc import Mapping, Sequence

from robocache_ros.spec.keys import pattern

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
# Each message has one picture of a video in H.264 or H.265. Only recordings of them are read.
VIDEO_TYPES = ("foxglove_msgs/msg/CompressedVideo", "ffmpeg_image_transport_msgs/msg/FFMPEGPacket")
PICTURE_TYPES = (*IMAGE_TYPES, *VIDEO_TYPES)
CLOUD_TYPE = "sensor_msgs/msg/PointCloud2"
LASER_TYPE = "sensor_msgs/msg/LaserScan"
CAMERA_INFO_TYPE = "sensor_msgs/msg/CameraInfo"
JOINT_TYPE = "sensor_msgs/msg/JointState"
TF_TYPE = "tf2_msgs/msg/TFMessage"
TF, TF_STATIC = "/tf", "/tf_static"
TRANSFORM_ALIGNMENTS = ("linear", "hold", "nearest")  # linear: linear position, spherical orientation
POSE_COMPONENTS = ("px", "py", "pz", "qx", "qy", "qz", "qw")
WINDOW = "window"  # `align` of a stream whose ticks use all samples since the last tick
REDUCTIONS = ("mean", "rms", "max", "min")  # reductions of a window to one row
MAX_WIDTH = 65536  # maximum number of values of a sample, and of a window
# NumPy types by PointField.datatype, which starts at 1.
POINT_DATATYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")

_TOPIC = r"^/[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*$"  # ROS 1 allows a part to start with a digit
_TYPE = r"^[A-Za-z][A-Za-z0-9_]*/msg/[A-Za-z][A-Za-z0-9_]*$"
# ROS 2 fields are always lower case; ROS 1 and IDL fields may not be.
_FIELD = r"^[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?(\.[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?)*$"

_XYZ, _XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
# Components of fields with a width fixed by the message type, by the last part of the field path.
FIELD_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("orientation", "rotation"), _XYZW),
    **dict.fromkeys(("position", "translation", "linear", "angular", "force", "torque", "vector", "point"), _XYZ),
    **dict.fromkeys(("linear_acceleration", "angular_velocity"), _XYZ),
    **{axis: (axis,) for axis in _XYZW},
}

ROUNDED = ("latitude", "longitude")  # float32 has a resolution of about a meter for these; they require an offset


def components_of(paths: Sequence[str]) -> tuple[str, ...] | None:
    """Return labels of the values of fields, by name; one per unknown field. None for a single unknown field."""
    known = [FIELD_COMPONENTS.get(path.rpartition(".")[2], ()) for path in paths]
    if len(paths) == 1:
        return known[0] or None
    labels = ((path, part) for path, parts in zip(paths, known, strict=True) for part in parts or ("",))
    return tuple(f"{path}.{part}" if part and part != path.rpartition(".")[2] else path for path, part in labels)


def full_type_hint(name: str) -> str:
    """Return a hint for a type that does not have the form package/msg/Name."""
    package, _, rest = name.partition("/")
    return f"write {package}/msg/{rest}" if re.fullmatch(r"[A-Za-z]\w*/[A-Za-z]\w*", name) else "change it"


topic_name = pattern("an absolute topic name such as /panda/joint_states", _TOPIC)
topic_in_namespace = pattern(
    "a topic such as /panda/joint_states, or joint_states in the namespace", _TOPIC.replace("^/", "^/?")
)
message_type = pattern("a message type such as sensor_msgs/msg/JointState", _TYPE, full_type_hint)
field_path = pattern("a field's path such as pose.orientation", _FIELD)
