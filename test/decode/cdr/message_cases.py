"""Messages of every kind a decoder reads, built alike as rosbags and as rclpy objects, with the values they hold."""

from __future__ import annotations

import numpy as np

from robocache_ros.decode import CloudPayload, ImagePayload, PointField
from test.decode.cdr.message_builders import HEADER, Case, floats


# More than 50 lines because it is a table: a message of each kind, one after the other.
def _cases() -> list[Case]:
    quaternion = dict(zip("xyzw", (0.1, -0.2, 0.3, 0.9273618495495703), strict=True))
    xyz = dict(zip("xyz", (1.5, -2.25, 0.1), strict=True))
    other = dict(zip("xyz", (7.0, 8.0, 9.0), strict=True))
    q, v = floats(0.1, -0.2, 0.3, 0.9273618495495703), floats(1.5, -2.25, 0.1)
    joints = {"header": HEADER, "name": ["c", "a", "extra", "b"], "position": [3.0, 1.0, 9.0, 2.0]}
    abc = {"names": ["a", "b", "c"]}
    points = np.arange(3 * 2 * 20, dtype=np.uint8)
    layout = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1), ("rgb", 16, 6, 1)]
    fields = [dict(zip(("name", "offset", "datatype", "count"), one, strict=True)) for one in layout]
    cloud = {"header": HEADER, "height": 2, "width": 2, "fields": fields, "is_bigendian": False, "is_dense": True}
    cloud |= {"point_step": 20, "row_step": 60, "data": points.tobytes()}
    image = {"header": HEADER, "height": 2, "width": 3, "encoding": "bgr8", "step": 10, "data": bytes(range(20))}
    jpeg, png = b"\xff\xd8\xff\xe0 and so on \xff\xd9", b"\x89PNG\r\n\x1a\n and so on"
    depth = b"\0\0\0\0" + np.array([10.0, 0.5], "<f4").tobytes() + png
    pose = {"position": xyz, "orientation": quaternion}
    point = {"positions": [1.0, 2.0], "velocities": [3.0, 4.0], "time_from_start": {"sec": 1, "nanosec": 5}}
    geometry, sensor = "geometry_msgs/msg/", "sensor_msgs/msg/"
    arrays = [
        Case(
            f"{kind}MultiArray",
            f"std_msgs/msg/{kind}MultiArray",
            {"layout": {"dim": [{"label": "joint", "size": 3, "stride": 3}], "data_offset": 0}, "data": [1, 0, 7]},
            floats(1, 0, 7),
            {"dim": 3},
        )
        for kind in ("Float32", "Float64", *(f"{u}Int{bits}" for u in ("", "U") for bits in (8, 16, 32, 64)))
    ]
    return [
        Case("JointState.position", f"{sensor}JointState", joints, floats(1, 2, 3), abc, ("extra",)),
        Case(
            "JointState.effort",
            f"{sensor}JointState",
            {"header": HEADER, "name": ["a", "b"], "effort": [0.5, 0.25]},
            floats(0.25, 0.5),
            {"names": ["b", "a"], "field": "effort"},
        ),
        *arrays,
        Case("Float64", "std_msgs/msg/Float64", {"data": 0.1}, floats(0.1)),
        Case("Bool", "std_msgs/msg/Bool", {"data": True}, floats(1)),
        Case(
            "PoseStamped.orientation",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            q,
            {"field": "pose.orientation", "align": "slerp"},
        ),
        Case(
            "PoseStamped.pose",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            np.concatenate([v, q]),
            {"field": "pose", "dim": 7},
        ),
        Case(
            "PoseStamped.y",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            floats(-2.25),
            {"field": "pose.position.y"},
        ),
        Case(
            "TransformStamped",
            f"{geometry}TransformStamped",
            {"header": HEADER, "child_frame_id": "tool0", "transform": {"translation": other, "rotation": quaternion}},
            q,
            {"field": "transform.rotation"},
        ),
        Case(
            "TwistStamped",
            f"{geometry}TwistStamped",
            {"header": HEADER, "twist": {"linear": xyz, "angular": other}},
            np.concatenate([v, floats(7, 8, 9)]),
            {"field": "twist", "dim": 6},
        ),
        Case(
            "WrenchStamped",
            f"{geometry}WrenchStamped",
            {"header": HEADER, "wrench": {"force": other, "torque": xyz}},
            v,
            {"field": "wrench.torque"},
        ),
        Case(
            "Imu",
            f"{sensor}Imu",
            {"header": HEADER, "orientation": quaternion, "angular_velocity": other, "linear_acceleration": xyz},
            v,
            {"field": "linear_acceleration"},
        ),
        Case(
            "Imu.covariance",
            f"{sensor}Imu",
            {"header": HEADER, "orientation_covariance": [float(i) for i in range(9)]},
            floats(*range(9)),
            {"field": "orientation_covariance", "dim": 9},
        ),
        Case(
            "Odometry.twist",
            "nav_msgs/msg/Odometry",
            {"header": HEADER, "child_frame_id": "base_link", "twist": {"twist": {"linear": xyz}}},
            v,
            {"field": "twist.twist.linear"},
        ),
        Case(
            "Odometry.pose",
            "nav_msgs/msg/Odometry",
            {"header": HEADER, "child_frame_id": "b", "pose": {"pose": pose, "covariance": [2.0] * 36}},
            np.concatenate([v, q, np.full(36, 2, np.float32)]),
            {"field": "pose", "dim": 43},
        ),
        Case(
            "JointTrajectoryPoint",
            "trajectory_msgs/msg/JointTrajectoryPoint",
            point,
            floats(3, 4),
            {"field": "velocities", "dim": 2, "stamp": "receive"},
        ),
        Case(
            "JointTrajectory",
            "trajectory_msgs/msg/JointTrajectory",
            {"header": HEADER, "joint_names": ["a", "b"], "points": [{"positions": [9.0]}, point]},
            floats(1, 2),
            {"field": "points[1].positions", "dim": 2},
        ),
        Case(
            "PolygonStamped",
            f"{geometry}PolygonStamped",
            {"header": HEADER, "polygon": {"points": [xyz, other]}},
            np.concatenate([v, floats(7, 8, 9)]),
            {"field": "polygon.points", "dim": 6},
        ),
        Case(
            "CameraInfo.roi",
            f"{sensor}CameraInfo",
            {"header": HEADER, "distortion_model": "plumb_bob", "roi": {"x_offset": 4, "width": 6, "do_rectify": True}},
            floats(4, 0, 0, 6, 1),
            {"field": "roi", "dim": 5},
        ),
        Case(
            "Image",
            f"{sensor}Image",
            image,
            ImagePayload(np.arange(20, dtype=np.uint8), "bgr8", 3, 2, 10, False),
        ),
        Case(
            "CompressedImage.jpeg",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "rgb8; jpeg compressed bgr8", "data": jpeg},
            ImagePayload(np.frombuffer(jpeg, np.uint8), "jpeg", source="rgb8"),
        ),
        Case(
            "CompressedImage.png",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "png", "data": png},
            ImagePayload(np.frombuffer(png, np.uint8), "png"),
        ),
        Case(
            "CompressedImage.depth",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "32FC1; compressedDepth png", "data": depth},
            ImagePayload(np.frombuffer(depth, np.uint8), "compressedDepth", source="32FC1"),
        ),
        Case(
            "PointCloud2",
            f"{sensor}PointCloud2",
            cloud,
            CloudPayload(points[:100], 2, 2, 20, 60, tuple(PointField(*one) for one in layout)),
        ),
    ]


CASES = {case.name: case for case in _cases()}
