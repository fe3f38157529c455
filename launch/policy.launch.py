"""The fusion node, and the node that runs a policy on its frames.

ros2 launch robocache_ros policy.launch.py spec:=/path/to/spec.yaml policy:=/path/to/checkpoint.pt
"""

import os
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription

FUSION = Path(__file__).resolve().with_name("fusion.launch.py")
# Arguments that both nodes have, with their defaults.
SHARED = {
    "namespace": ("", "Namespace of both nodes, and of the relative topics of the spec."),
    "autostart": ("true", "Configure and activate both nodes at once; otherwise wait for `ros2 lifecycle set`."),
    "use_sim_time": ("false", "Use /clock, for replays and simulations."),
}
SWITCHES = ("autostart", "use_sim_time")


def runner(context: LaunchContext) -> LifecycleNode:
    given = context.launch_configurations
    words = {
        "spec": os.path.abspath(os.path.expanduser(given["spec"])),
        "policy": os.path.expanduser(given["policy"]),
        "device": given["policy_device"],
        "record_run": os.path.expanduser(given["record_policy"]),
        "fusion": given["name"],
    }
    switches = {name: given[name] == "true" for name in SWITCHES}
    options = dict(entry.split(":=", 1) for entry in given["options"].split())
    return LifecycleNode(
        package="robocache_ros",
        executable="policy_runner",
        name="policy_runner",
        namespace=given["namespace"],
        parameters=[
            {name: ParameterValue(value, value_type=str) for name, value in (words | options).items()} | switches
        ],
        output="both",
        emulate_tty=True,
    )


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("spec", description="Path of the fusion spec (YAML), with the section run."),
            DeclareLaunchArgument(
                "policy", default_value="", description="CHECKPOINT.pt, or another policy as of `robocache run`."
            ),
            DeclareLaunchArgument("policy_device", default_value="cpu", description="Device of a checkpoint."),
            DeclareLaunchArgument(
                "options", default_value="", description="Options of the run, such as 'replan_every:=10 stop:=none'."
            ),
            DeclareLaunchArgument(
                "record_policy",
                default_value="",
                description="A new file with all that the runner takes and sends, for `robocache replay`; record_run "
                "is the one of the fusion node.",
            ),
            *(
                DeclareLaunchArgument(
                    name,
                    default_value=default,
                    choices=["true", "false"] if name in SWITCHES else None,
                    description=description,
                )
                for name, (default, description) in SHARED.items()
            ),
            IncludeLaunchDescription(  # its other arguments can be given as well
                PythonLaunchDescriptionSource(str(FUSION)),
                launch_arguments=[(name, LaunchConfiguration(name)) for name in ("spec", *SHARED)],
            ),
            OpaqueFunction(function=lambda context: [runner(context)]),
        ]
    )
