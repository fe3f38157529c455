"""A recording through the fusion node, in sim time.

ros2 launch robocache_ros replay.launch.py bag:=/path/to/bag spec:=/path/to/spec.yaml
"""

import os
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

HERE = Path(__file__).resolve().parent


def over(event: ProcessExited, context: LaunchContext) -> Shutdown:
    """End the launch with the player; as failed, where it has: what runs the launch shall know."""
    if event.returncode:
        raise RuntimeError(f"{event.process_name} has failed (exit code {event.returncode}); it says above why")
    return Shutdown(reason="the replay is over")


def player(context: LaunchContext) -> list[Node]:
    def given(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    arguments = [os.path.abspath(os.path.expanduser(given("bag"))), "--clock", "--rate", given("rate")]
    arguments += ["--wait-for-subscribers"]
    if given("loop") == "true":
        arguments.append("--loop")
    return [
        Node(
            package="robocache_ros",
            executable="bag_player",
            arguments=arguments,
            output="both",
            emulate_tty=True,
            on_exit=over if given("shutdown") == "true" else None,
        )
    ]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="rosbag2 folder, .mcap or .db3 file."),
            DeclareLaunchArgument("spec", description="Path of the fusion spec (YAML)."),
            DeclareLaunchArgument("rate", default_value="1.0", description="Seconds of the recording in a second."),
            DeclareLaunchArgument(
                "loop", default_value="false", choices=["true", "false"], description="Begin again at the end."
            ),
            DeclareLaunchArgument(
                "shutdown",
                default_value="true",
                choices=["true", "false"],
                description="End the launch when the replay is over.",
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(HERE / "fusion.launch.py")),
                launch_arguments=[  # its other arguments can be given too
                    ("spec", LaunchConfiguration("spec")),
                    ("use_sim_time", "true"),
                    ("autostart", "true"),
                ],
            ),
            OpaqueFunction(function=player),
        ]
    )
