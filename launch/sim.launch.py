"""The simulated robot; with `policy`, also the fusion node and the policy that moves it.

ros2 launch robocache_ros sim.launch.py expert:=true
ros2 launch robocache_ros sim.launch.py policy:=/path/to/checkpoint.pt
"""

import os
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from robocache_ros.nodes.launched_processes import fail_launch

POLICY = Path(__file__).resolve().with_name("policy.launch.py")
VALUES = {
    "seed": ("0", "Seed of the first episode; others count up."),
    "episodes": ("0", "Episodes to end after; 0: no end."),
    "rate": ("1.0", "Speed; 1.0 is real time, 0 as fast as subscribers follow."),
}
SWITCHES = {
    "expert": ("false", "Let the scripted expert act."),
    "lockstep": ("false", "Wait for the command of each tick, once commands come."),
    "camera": ("true", "Render images."),
}
OTHERS = {
    "namespace": ("", "Namespace of the nodes."),
    "policy": ("", "CHECKPOINT.pt, or another policy as of `robocache run`; empty: none is run."),
    "spec": ("", "Path of the fusion spec; empty: that of the simulated robot."),
}


def simulation_ended(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """End the launch with the simulation; it fails if an episode did."""
    if context.is_shutdown:
        return None  # a second shutdown is an error in launch_ros
    fail_launch(event, context)
    return Shutdown(reason="the simulation has ended")


def actions(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    given = context.launch_configurations
    arguments = [part for name in VALUES for part in (f"--{name}", given[name])]
    arguments += [f"--{name}" for name in ("expert", "lockstep") if given[name] == "true"]
    if given["camera"] == "false":
        arguments.append("--no-camera")
    simulator = Node(
        package="robocache_ros",
        executable="simulator",
        namespace=given["namespace"],
        arguments=arguments,
        output="both",
        emulate_tty=True,
        on_exit=simulation_ended,
    )
    if not given["policy"]:
        return [simulator]
    spec = given["spec"] or str(POLICY.parents[1] / "config" / "so101.yaml")
    shared = {"spec": spec, "policy": given["policy"], "namespace": given["namespace"], "use_sim_time": "true"}
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.fspath(POLICY)), launch_arguments=list(shared.items())
    )
    return [policy, simulator]  # the policy's launch file checks its arguments before a process starts


def generate_launch_description() -> LaunchDescription:
    described = [
        DeclareLaunchArgument(
            name,
            default_value=default,
            choices=["true", "false"] if name in SWITCHES else None,
            description=description,
        )
        for name, (default, description) in (VALUES | SWITCHES | OTHERS).items()
    ]
    return LaunchDescription([*described, OpaqueFunction(function=actions)])
