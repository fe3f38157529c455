"""The episode recorder. Services, a game pad or `ros2 param set /episode_recorder task '...'` control it.

ros2 launch robocache_ros record.launch.py spec:=/path/to/spec.yaml task:='Lift the cube' out:=recordings
"""

import os
from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription

ARGUMENTS = {
    "spec": (None, "Path of the fusion spec (YAML), whose topics are recorded."),
    "out": ("recordings", "Folder of the episodes."),
    "task": ("", "What the robot does, in words."),
    "operator": ("", "Who controls the robot."),
    "robot": ("", "Name of the robot."),
    "extra": ("", "More topics to record, separated by spaces."),
    "joy_buttons": ("", "Buttons of a game pad, such as start=0,success=1,failure=2,discard=3,rerecord=4."),
    "runner": ("policy_runner", "Policy runner whose executed commands are recorded too; none: of no runner."),
    "pedal": ("", "Foot pedal, such as /dev/input/by-id/..."),
    "pedal_keys": ("", "Its keys, such as start=KEY_A,success=KEY_B,failure=KEY_C; empty: those of the node."),
    "silent_s": ("", "Seconds after which a stream without a message is silent; empty: that of the node."),
    "use_sim_time": ("false", "Follow /clock, and record it."),
    "name": ("episode_recorder", "Name of the node."),
    "namespace": ("", "Namespace of the node, and of the relative topics of the spec."),
    "autostart": ("true", "Configure and activate at once; otherwise wait for `ros2 lifecycle set`."),
}
SWITCHES = ("use_sim_time", "autostart")
TYPES = {**dict.fromkeys(SWITCHES, bool), "silent_s": float}
OF_NODE = ("pedal_keys", "silent_s")  # the node has other defaults


def node(context: LaunchContext) -> LifecycleNode:
    """The node."""
    values = context.launch_configurations
    paths = {name: str(Path(os.path.expanduser(values[name])).absolute()) for name in ("spec", "out")}
    if not os.path.isfile(paths["spec"]):
        raise ValueError(f"spec: {paths['spec']} does not exist; give the path of a fusion spec (YAML)")
    # `ros2 launch` takes no empty value, so that `none` stands for it.
    texts = paths | ({"runner": ""} if values["runner"] == "none" else {})
    parameters = {
        name: ParameterValue(texts.get(name, LaunchConfiguration(name)), value_type=TYPES.get(name, str))
        for name in ARGUMENTS
        if name not in ("name", "namespace") and not (name in OF_NODE and not values[name])
    }
    return LifecycleNode(
        package="robocache_ros",
        executable="episode_recorder",
        name=values["name"],
        namespace=values["namespace"],
        parameters=[parameters],
        output="both",
        emulate_tty=True,
    )


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(
                    name,
                    default_value=default,
                    choices=["true", "false"] if name in SWITCHES else None,
                    description=description,
                )
                for name, (default, description) in ARGUMENTS.items()
            ),
            OpaqueFunction(function=lambda context: [node(context)]),
        ]
    )
