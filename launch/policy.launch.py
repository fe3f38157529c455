"""The fusion node, and the node that runs a policy on its frames.

ros2 launch robocache_ros policy.launch.py spec:=/path/to/spec.yaml policy:=/path/to/checkpoint.pt
"""

import os
import shlex
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription
from robocache_ros.nodes.launched_processes import fail_launch
from robocache_ros.spec.keys import keys_of, suggestion
from robocache_ros.spec.run import RunOptions

FUSION = Path(__file__).resolve().with_name("fusion.launch.py")
# Arguments that both nodes have, with their defaults.
SHARED = {
    "namespace": ("", "Namespace of both nodes, and of the relative topics of the spec."),
    "autostart": ("true", "Configure and activate both nodes at once; otherwise wait for `ros2 lifecycle set`."),
    "use_sim_time": ("false", "Use /clock in both nodes, for replays and simulations; params_file has no effect."),
}
# Names in `options`, with the types of the parameters: options of a run are given as text.
OPTIONS = {
    **{name: str for name, key in keys_of(RunOptions).items() if key.metadata["flag"]},
    "takeover_button": int,
    "pedal": str,
    "pedal_keys": str,
    "diagnostics_period_s": float,
}
SWITCHES = ("autostart", "use_sim_time")


def options_of(text: str) -> dict[str, ParameterValue]:
    """Return the parameters of the runner that the argument `options` has.

    Raises:
        ValueError: one of them is not an option, or not written as one.
    """
    found = {}
    for entry in shlex.split(text):
        name, is_given, value = entry.partition(":=")
        if not is_given:
            raise ValueError(f"options: '{entry}' is not name:=value; write for example 'replan_every:=10 stop:=none'")
        if name not in OPTIONS:
            advice = suggestion(name, OPTIONS) or f"choose from {', '.join(OPTIONS)}"
            raise ValueError(f"options: '{name}' is not an option of the policy runner; {advice}")
        kind = OPTIONS[name]
        try:
            found[name] = ParameterValue(kind(value), value_type=kind)
        except ValueError:
            raise ValueError(f"options: {name}: '{value}' is not of the type {kind.__name__}; change it") from None
    return found


def check(context: LaunchContext) -> None:
    """Check the options before a process starts: launch does not end a process that starts just before an error."""
    options_of(context.launch_configurations["options"])


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
    return LifecycleNode(
        package="robocache_ros",
        executable="policy_runner",
        name="policy_runner",
        namespace=given["namespace"],
        parameters=[
            {name: ParameterValue(value, value_type=str) for name, value in words.items()}
            | options_of(given["options"])
            | switches
        ],
        output="both",
        emulate_tty=True,
        on_exit=fail_launch if given["exit_on_error"] == "true" else None,
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
                "options",
                default_value="",
                description="Options of the run, such as 'replan_every:=10 stop:=none', and takeover_button, pedal, "
                "pedal_keys; a value with spaces is quoted.",
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
            OpaqueFunction(function=check),
            IncludeLaunchDescription(  # its other arguments can be given as well
                PythonLaunchDescriptionSource(str(FUSION)),
                launch_arguments=[(name, LaunchConfiguration(name)) for name in ("spec", *SHARED)],
            ),
            OpaqueFunction(function=lambda context: [runner(context)]),
        ]
    )
