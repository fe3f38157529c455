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
# Keep freed large blocks: page faults on fresh ones cost more than copying the messages.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
OLD_NAME_OF_PROFILE = ("humble", "iron", "jazzy")  # later distributions warn about the old variable


def environment() -> list[SetEnvironmentVariable]:
    """The transport profile for this launch and what is launched after it, unless the user has set one."""
    names = ["FASTDDS_DEFAULT_PROFILES_FILE"]
    if os.environ.get("ROS_DISTRO") in OLD_NAME_OF_PROFILE:
        names.append("FASTRTPS_DEFAULT_PROFILES_FILE")
    if any(name in os.environ for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")):
        names = []
    settings = {name: str(CONFIG / "fastdds.xml") for name in names}
    settings |= {name: value for name, value in MALLOC.items() if name not in os.environ}
    return [SetEnvironmentVariable(name, value) for name, value in settings.items()]


PARAMETERS = {  # launch arguments that are parameters of the node
    "device": str,
    "normalized": bool,
    "jpeg": str,
    "payload_bytes": str,
    "reliable": bool,
    "autostart": bool,
    "use_sim_time": bool,
}


def existing(argument: str, value: str, advice: str) -> str:
    """The absolute path of a file that a launch argument names.

    Raises:
        ValueError: there is no such file.
    """
    file = os.path.abspath(os.path.expanduser(value))
    if not os.path.isfile(file):
        raise ValueError(f"{argument}: {file} does not exist; {advice}")
    return file


def nodes(context: LaunchContext, given: set[str]) -> list[LifecycleNode]:
    """The node. The parameter file decides about arguments that are not in `given`."""
    values = {name: LaunchConfiguration(name).perform(context) for name in ("spec", "params_file", "name", "namespace")}
    spec = existing("spec", values["spec"], "give the path of a fusion spec (YAML)")
    parameters: list[object] = []
    if values["params_file"]:  # launch_ros only warns where the file does not exist
        advice = "give the path of a parameter file (YAML), or leave it out"
        parameters.append(existing("params_file", values["params_file"], advice))
    parameters.append(
        {"spec": ParameterValue(spec, value_type=str)}
        | {
            name: ParameterValue(LaunchConfiguration(name), value_type=kind)
            for name, kind in PARAMETERS.items()
            if name in given
        }
    )
    return [
        LifecycleNode(
            package="robocache_ros",
            executable="fusion_node",
            name=values["name"],
            namespace=values["namespace"],
            # The only default that differs from the node's; in `parameters` it would override `/**` of a file.
            ros_arguments=["-p", ["autostart:=", LaunchConfiguration("autostart")]],
            parameters=parameters,
            output="both",
            emulate_tty=True,
        )
    ]


# More than 50 lines because it is a table of the launch arguments.
def generate_launch_description() -> LaunchDescription:
    given: set[str] = set()
    return LaunchDescription(
        [
            OpaqueFunction(
                function=lambda context: given.update(context.launch_configurations)
            ),  # before the defaults are set
            DeclareLaunchArgument("spec", description="Path of the fusion spec (YAML)."),
            DeclareLaunchArgument("device", default_value="auto", description="auto, cpu, cuda or cuda:<index>."),
            DeclareLaunchArgument(
                "normalized",
                default_value="false",
                choices=["true", "false"],
                description="Publish images as float32, normalised as the spec declares.",
            ),
            DeclareLaunchArgument(
                "jpeg", default_value="cpu", choices=["cpu", "gpu"], description="Where jpeg images are decoded."
            ),
            DeclareLaunchArgument(
                "payload_bytes",
                default_value="",
                description="<stream>=<bytes>,...: largest message sizes; sizes the GPU memory allocated at configure.",
            ),
            DeclareLaunchArgument(
                "reliable",
                default_value="false",
                choices=["true", "false"],
                description="Subscribe reliably with deep queues, whatever the spec's qos asks for: for replays.",
            ),
            DeclareLaunchArgument("name", default_value="fusion_node", description="Name of the node."),
            DeclareLaunchArgument("namespace", default_value="", description="Namespace of the node."),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                choices=["true", "false"],
                description="Configure and activate at once; otherwise wait for `ros2 lifecycle set`.",
            ),
            DeclareLaunchArgument(
                "use_sim_time",
                default_value="false",
                choices=["true", "false"],
                description="Use /clock, for replays and simulations.",
            ),
            DeclareLaunchArgument(
                "params_file",
                default_value="",
                description="A parameter file such as config/fusion_node.yaml; given arguments override it.",
            ),
            *environment(),
            OpaqueFunction(function=nodes, args=[given]),
        ]
    )
