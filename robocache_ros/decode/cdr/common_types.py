"""The common message types, as their packages define them; a recording's own definitions take precedence.

Only types that are the same since Humble are here: a type that a distribution has changed needs its definition.
"""

from __future__ import annotations

_HEADER = "std_msgs/Header header; "
_COVARIANCE = "float64[36] covariance"
_NUMBERS = {
    **{f"{sign}Int{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "Float32": "float32",
    "Float64": "float64",
    "Byte": "byte",
}

_TEXTS = {
    "builtin_interfaces": {
        "Time": "int32 sec; uint32 nanosec",
        "Duration": "int32 sec; uint32 nanosec",
    },
    "std_msgs": {
        "Header": "builtin_interfaces/Time stamp; string frame_id",
        "Bool": "bool data",
        "Empty": "",
        "ColorRGBA": "float32 r; float32 g; float32 b; float32 a",
        "String": "string data",
        "MultiArrayDimension": "string label; uint32 size; uint32 stride",
        "MultiArrayLayout": "MultiArrayDimension[] dim; uint32 data_offset",
        **{name: f"{kind} data" for name, kind in _NUMBERS.items()},
        **{f"{name}MultiArray": f"MultiArrayLayout layout; {kind}[] data" for name, kind in _NUMBERS.items()},
    },
    "geometry_msgs": {
        "Point": "float64 x; float64 y; float64 z",
        "Point32": "float32 x; float32 y; float32 z",
        "Vector3": "float64 x; float64 y; float64 z",
        "Quaternion": "float64 x; float64 y; float64 z; float64 w",
        "Pose": "Point position; Quaternion orientation",
        "Pose2D": "float64 x; float64 y; float64 theta",
        "Transform": "Vector3 translation; Quaternion rotation",
        "Twist": "Vector3 linear; Vector3 angular",
        "Accel": "Vector3 linear; Vector3 angular",
        "Wrench": "Vector3 force; Vector3 torque",
        "Polygon": "Point32[] points",
        "Inertia": "float64 m; Vector3 com; float64 ixx; float64 ixy; float64 ixz; float64 iyy; float64 iyz; "
        "float64 izz",
        "PoseWithCovariance": f"Pose pose; {_COVARIANCE}",
        "TwistWithCovariance": f"Twist twist; {_COVARIANCE}",
        "AccelWithCovariance": f"Accel accel; {_COVARIANCE}",
        "PoseArray": f"{_HEADER}Pose[] poses",
        "TransformStamped": f"{_HEADER}string child_frame_id; Transform transform",
        "Vector3Stamped": f"{_HEADER}Vector3 vector",
        **{
            f"{name}Stamped": f"{_HEADER}{name} {name.lower()}"
            for name in ("Point", "Quaternion", "Pose", "Twist", "Accel", "Wrench", "Polygon", "Inertia")
        },
        **{
            f"{name}WithCovarianceStamped": f"{_HEADER}{name}WithCovariance {name.lower()}"
            for name in ("Pose", "Twist", "Accel")
        },
    },
    "sensor_msgs": {
        "JointState": f"{_HEADER}string[] name; float64[] position; float64[] velocity; float64[] effort",
        "MultiDOFJointState": f"{_HEADER}string[] joint_names; geometry_msgs/Transform[] transforms; "
        "geometry_msgs/Twist[] twist; geometry_msgs/Wrench[] wrench",
        "Imu": f"{_HEADER}geometry_msgs/Quaternion orientation; float64[9] orientation_covariance; "
        "geometry_msgs/Vector3 angular_velocity; float64[9] angular_velocity_covariance; "
        "geometry_msgs/Vector3 linear_acceleration; float64[9] linear_acceleration_covariance",
        "MagneticField": f"{_HEADER}geometry_msgs/Vector3 magnetic_field; float64[9] magnetic_field_covariance",
        "Temperature": f"{_HEADER}float64 temperature; float64 variance",
        "FluidPressure": f"{_HEADER}float64 fluid_pressure; float64 variance",
        "RelativeHumidity": f"{_HEADER}float64 relative_humidity; float64 variance",
        "Illuminance": f"{_HEADER}float64 illuminance; float64 variance",
        # Since Iron a variance follows; it comes with the recording's definition.
        "Range": f"{_HEADER}uint8 radiation_type; float32 field_of_view; float32 min_range; float32 max_range; "
        "float32 range",
        "NavSatStatus": "int8 status; uint16 service",
        "NavSatFix": f"{_HEADER}NavSatStatus status; float64 latitude; float64 longitude; float64 altitude; "
        "float64[9] position_covariance; uint8 position_covariance_type",
        "BatteryState": f"{_HEADER}float32 voltage; float32 temperature; float32 current; float32 charge; "
        "float32 capacity; float32 design_capacity; float32 percentage; uint8 power_supply_status; "
        "uint8 power_supply_health; uint8 power_supply_technology; bool present; float32[] cell_voltage; "
        "float32[] cell_temperature; string location; string serial_number",
        "TimeReference": f"{_HEADER}builtin_interfaces/Time time_ref; string source",
        "ChannelFloat32": "string name; float32[] values",
        "PointCloud": f"{_HEADER}geometry_msgs/Point32[] points; ChannelFloat32[] channels",
        "Joy": f"{_HEADER}float32[] axes; int32[] buttons",
        "LaserScan": f"{_HEADER}float32 angle_min; float32 angle_max; float32 angle_increment; float32 time_increment; "
        "float32 scan_time; float32 range_min; float32 range_max; float32[] ranges; float32[] intensities",
        "RegionOfInterest": "uint32 x_offset; uint32 y_offset; uint32 height; uint32 width; bool do_rectify",
        "CameraInfo": f"{_HEADER}uint32 height; uint32 width; string distortion_model; float64[] d; float64[9] k; "
        "float64[9] r; float64[12] p; uint32 binning_x; uint32 binning_y; RegionOfInterest roi",
        "Image": f"{_HEADER}uint32 height; uint32 width; string encoding; uint8 is_bigendian; uint32 step; "
        "uint8[] data",
        "CompressedImage": f"{_HEADER}string format; uint8[] data",
        "PointField": "string name; uint32 offset; uint8 datatype; uint32 count",
        "PointCloud2": f"{_HEADER}uint32 height; uint32 width; PointField[] fields; bool is_bigendian; "
        "uint32 point_step; uint32 row_step; uint8[] data; bool is_dense",
    },
    "nav_msgs": {
        "Odometry": f"{_HEADER}string child_frame_id; geometry_msgs/PoseWithCovariance pose; "
        "geometry_msgs/TwistWithCovariance twist",
        "Path": f"{_HEADER}geometry_msgs/PoseStamped[] poses",
    },
    "ackermann_msgs": {
        "AckermannDrive": "float32 steering_angle; float32 steering_angle_velocity; float32 speed; "
        "float32 acceleration; float32 jerk",
        "AckermannDriveStamped": f"{_HEADER}AckermannDrive drive",
    },
    "control_msgs": {
        "GripperCommand": "float64 position; float64 max_effort",
        "InterfaceValue": "string[] interface_names; float64[] values",
        "DynamicJointState": f"{_HEADER}string[] joint_names; InterfaceValue[] interface_values",
    },
    "trajectory_msgs": {
        "JointTrajectoryPoint": "float64[] positions; float64[] velocities; float64[] accelerations; float64[] effort; "
        "builtin_interfaces/Duration time_from_start",
        "JointTrajectory": f"{_HEADER}string[] joint_names; JointTrajectoryPoint[] points",
        "MultiDOFJointTrajectoryPoint": "geometry_msgs/Transform[] transforms; geometry_msgs/Twist[] velocities; "
        "geometry_msgs/Twist[] accelerations; builtin_interfaces/Duration time_from_start",
        "MultiDOFJointTrajectory": f"{_HEADER}string[] joint_names; MultiDOFJointTrajectoryPoint[] points",
    },
    "tf2_msgs": {"TFMessage": "geometry_msgs/TransformStamped[] transforms"},
}

COMMON = {
    f"{package}/msg/{name}": text.replace("; ", "\n")
    for package, texts in _TEXTS.items()
    for name, text in texts.items()
}
