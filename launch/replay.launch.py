"""Replay a recording through the fusion node, in sim time.

ros2 launch robocache_ros replay.launch.py bag:=/path/to/bag spec:=/path/to/spec.yaml
"""

import os
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription
from robocache_ros.nodes.launched_processes import fail_launch

FUSION = Path(__file__).resolve().with_name("fusion.launch.py")
SIM_TIME = {"use_sim_time": "true", "autostart": "true", "exit_on_error": "true"}
SWITCHES = {
    "reliable": ("true", "Subscribe to every topic as reliable, so that no message is lost at any rate."),
    "loop": ("false", "Start again at the end of the recording."),
    "shutdown": ("true", "End the launch when the replay ends."),
}


def process_ended(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """Fail if the node or the player failed, and end the launch with the player."""
    if context.is_shutdown:
        return None  # a second shutdown is an error in launch_ros
    fail_launch(event, context)
    if event.process_name.startswith("bag_player") and context.launch_configurations["shutdown"] == "false":
        return None
    return Shutdown(reason=f"{event.process_name} has ended")


def player(context: LaunchContext) -> Node:
    """The player of the recording."""
    given = context.launch_configurations
    arguments = [os.path.expanduser(given["bag"]), "--clock", "--rate", given["rate"], "--wait-for-subscribers"]
    if given["topics"]:
        arguments += ["--topics", *given["topics"].split()]
    else:
        arguments += ["--spec", os.path.expanduser(given["spec"])]
    arguments += ["--start", given["start"]] + (["--duration", given["duration"]] if given["duration"] else [])
    if given["loop"] == "true":
        arguments.append("--loop")
    return Node(
        package="robocache_ros",
        executable="bag_player",
        namespace=given["namespace"],
        arguments=arguments,
        output="both",
        emulate_tty=True,
    )


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="rosbag2 folder, .mcap or .db3 file."),
            DeclareLaunchArgument("rate", default_value="1.0", description="Speed of the replay; 1.0 is real time."),
            DeclareLaunchArgument(
                "topics",
                default_value="",
                description="Topics to replay, separated by spaces; empty: those of the spec.",
            ),
            DeclareLaunchArgument("start", default_value="0.0", description="Seconds of the recording to skip."),
            DeclareLaunchArgument(
                "duration", default_value="", description="Seconds of the recording to replay; empty: all."
            ),
            *(
                DeclareLaunchArgument(name, default_value=default, choices=["true", "false"], description=description)
                for name, (default, description) in SWITCHES.items()
            ),
            DeclareLaunchArgument(
                "spec", description="Path of the fusion spec (YAML)."
            ),  # an include does not inherit it
            RegisterEventHandler(OnProcessExit(on_exit=process_ended)),
            IncludeLaunchDescription(  # its other arguments can be given as well
                PythonLaunchDescriptionSource(str(FUSION)),
                launch_arguments=[
                    *SIM_TIME.items(),
                    *((name, LaunchConfiguration(name)) for name in ("spec", "reliable")),
                ],
            ),
            OpaqueFunction(function=lambda context: [player(context)]),
        ]
    )
