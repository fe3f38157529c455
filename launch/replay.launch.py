"""Replay a recording through the fusion node, in sim time.

ros2 launch robocache_ros replay.launch.py bag:=/path/to/bag spec:=/path/to/spec.yaml
"""

import os
import signal
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

HERE = Path(__file__).resolve().parent


INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # a player that ends so before the launch has seen the Ctrl-C


def over(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """End the launch with the player, and fail if the player failed; a launch that already ends is left alone."""
    if context.is_shutdown:
        return None  # a second shutdown is an error in launch_ros
    if event.returncode and event.returncode not in INTERRUPTED:
        raise RuntimeError(f"{event.process_name} failed with exit code {event.returncode}; see its output above")
    return Shutdown(reason="the replay has ended")


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
            DeclareLaunchArgument("rate", default_value="1.0", description="Speed of the replay; 1.0 is real time."),
            DeclareLaunchArgument(
                "loop",
                default_value="false",
                choices=["true", "false"],
                description="Start again at the end of the recording.",
            ),
            DeclareLaunchArgument(
                "shutdown",
                default_value="true",
                choices=["true", "false"],
                description="End the launch when the replay ends.",
            ),
            DeclareLaunchArgument(
                "reliable",
                default_value="true",
                choices=["true", "false"],
                description="Subscribe reliably, so that no message of the recording is lost at any rate.",
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(HERE / "fusion.launch.py")),
                launch_arguments=[  # its other arguments can be given as well
                    ("spec", LaunchConfiguration("spec")),
                    ("use_sim_time", "true"),
                    ("autostart", "true"),
                    ("reliable", LaunchConfiguration("reliable")),
                ],
            ),
            OpaqueFunction(function=player),
        ]
    )
