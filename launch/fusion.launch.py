"""The fusion node, with the DDS transport and the memory settings that large messages need.

ros2 launch robocache_ros fusion.launch.py spec:=/path/to/spec.yaml
"""

import os
from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription

CONFIG = Path(__file__).resolve().parents[1] / "config"
# Large blocks of memory are kept, not given back and faulted in again: that costs more than copying the messages.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
OLD_NAME_OF_PROFILE = ("humble", "iron", "jazzy")  # later ones warn of it


def environment() -> list[SetEnvironmentVariable]:
    """The transport profile, for this launch and whatever is launched after it, unless the user has set one."""
    names = ["FASTDDS_DEFAULT_PROFILES_FILE"]
    if os.environ.get("ROS_DISTRO") in OLD_NAME_OF_PROFILE:
        names.append("FASTRTPS_DEFAULT_PROFILES_FILE")
    if any(name in os.environ for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")):
        names = []
    settings = {name: str(CONFIG / "fastdds.xml") for name in names}
    settings |= {name: value for name, value in MALLOC.items() if name not in os.environ}
    return [SetEnvironmentVariable(name, value) for name, value in settings.items()]


def nodes(context: LaunchContext) -> list[LifecycleNode]:
    given = {name: LaunchConfiguration(name).perform(context) for name in ("spec", "params_file", "name", "namespace")}
    parameters: list[object] = [given["params_file"]] if given["params_file"] else []
    parameters.append(
        {
            "spec": ParameterValue(os.path.abspath(os.path.expanduser(given["spec"])), value_type=str),
            "device": ParameterValue(LaunchConfiguration("device"), value_type=str),
            "normalized": ParameterValue(LaunchConfiguration("normalized"), value_type=bool),
            "jpeg": ParameterValue(LaunchConfiguration("jpeg"), value_type=str),
            "payload_bytes": ParameterValue(LaunchConfiguration("payload_bytes"), value_type=str),
            "autostart": ParameterValue(LaunchConfiguration("autostart"), value_type=bool),
            "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
        }
    )
    return [
        LifecycleNode(
            package="robocache_ros",
            executable="fusion_node",
            name=given["name"],
            namespace=given["namespace"],
            parameters=parameters,
            output="both",
            emulate_tty=True,
        )
    ]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("spec", description="Path of the fusion spec (YAML)."),
            DeclareLaunchArgument("device", default_value="auto", description="auto, cpu, cuda or cuda:<index>."),
            DeclareLaunchArgument(
                "normalized",
                default_value="false",
                choices=["true", "false"],
                description="Images in frames as float32, normalised as the spec says.",
            ),
            DeclareLaunchArgument(
                "jpeg", default_value="cpu", choices=["cpu", "gpu"], description="Where jpeg images are decoded."
            ),
            DeclareLaunchArgument(
                "payload_bytes",
                default_value="",
                description="<stream>=<bytes>,...: largest messages, for GPU memory taken at configure.",
            ),
            DeclareLaunchArgument("name", default_value="fusion_node", description="Name of the node."),
            DeclareLaunchArgument("namespace", default_value="", description="Namespace of the node."),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                choices=["true", "false"],
                description="Configure and activate at once; else wait for `ros2 lifecycle set`.",
            ),
            DeclareLaunchArgument(
                "use_sim_time",
                default_value="false",
                choices=["true", "false"],
                description="Go by /clock, for replays and simulations.",
            ),
            DeclareLaunchArgument(
                "params_file", default_value="", description="A parameter file, such as config/fusion_node.yaml."
            ),
            *environment(),
            OpaqueFunction(function=nodes),
        ]
    )
