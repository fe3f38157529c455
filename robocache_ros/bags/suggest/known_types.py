"""Message types with predefined fields: the streams of each type, and their units."""

from __future__ import annotations

VECTORS = {  # type -> (path, quantity, unit); quaternions use spherical interpolation
    "geometry_msgs/msg/PoseStamped": (("pose.position", "position", "m"), ("pose.orientation", "orientation", "")),
    "geometry_msgs/msg/PoseWithCovarianceStamped": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
    ),
    "geometry_msgs/msg/Pose": (("position", "position", "m"), ("orientation", "orientation", "")),
    "geometry_msgs/msg/TransformStamped": (
        ("transform.translation", "position", "m"),
        ("transform.rotation", "orientation", ""),
    ),
    "geometry_msgs/msg/TwistStamped": (("twist.linear", "linear", "m/s"), ("twist.angular", "angular", "rad/s")),
    "geometry_msgs/msg/TwistWithCovarianceStamped": (
        ("twist.twist.linear", "linear", "m/s"),
        ("twist.twist.angular", "angular", "rad/s"),
    ),
    "geometry_msgs/msg/Twist": (("linear", "linear", "m/s"), ("angular", "angular", "rad/s")),
    "geometry_msgs/msg/WrenchStamped": (("wrench.force", "force", "N"), ("wrench.torque", "torque", "N m")),
    "nav_msgs/msg/Odometry": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
        ("twist.twist.linear", "linear", "m/s"),
        ("twist.twist.angular", "angular", "rad/s"),
    ),
    "sensor_msgs/msg/Imu": (
        ("orientation", "orientation", ""),
        ("angular_velocity", "angular_velocity", "rad/s"),
        ("linear_acceleration", "linear_acceleration", "m/s^2"),
    ),
}
UNITS = {  # (type, field) -> unit, for types whose fields are detected generically
    ("sensor_msgs/msg/MagneticField", "magnetic_field"): "T",
    ("sensor_msgs/msg/Temperature", "temperature"): "degC",
    ("sensor_msgs/msg/FluidPressure", "fluid_pressure"): "Pa",
    ("sensor_msgs/msg/Illuminance", "illuminance"): "lx",
    ("sensor_msgs/msg/Range", "range"): "m",
    ("sensor_msgs/msg/LaserScan", "ranges"): "m",
}
MEASURED_FIELDS = {  # type -> the fields that are measured; the others describe the sensor
    "sensor_msgs/msg/LaserScan": ("ranges", "intensities"),
    "sensor_msgs/msg/Range": ("range",),
    "sensor_msgs/msg/NavSatFix": ("latitude", "longitude", "altitude"),
}
