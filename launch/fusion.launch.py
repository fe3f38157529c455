"""The fusion node, with the DDS transport and the memory settings that large messages need.

ros2 launch robocache_ros fusion.launch.py spec:=/path/to/spec.yaml
"""

import os
from dataclasses import dataclass
from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription
from robocache_ros.nodes.launched_processes import fail_launch

CONFIG = Path(__file__).resolve().parents[1] / "config"
# malloc keeps freed large blocks: page faults on new blocks cost more than copying the messages.
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
    if names:  # the node then knows that drivers of other terminals do not have the profile
        settings["ROBOCACHE_TRANSPORT_PROFILE"] = "1"
    settings |= {name: value for name, value in MALLOC.items() if name not in os.environ}
    return [SetEnvironmentVariable(name, value) for name, value in settings.items()]


@dataclass(frozen=True)
class Argument:
    """A launch argument; with `parameter`, a parameter of the node, of that type."""

    description: str
    default: str | None = None  # None: the argument must be given
    parameter: type | None = None
    choices: tuple[str, ...] = ()

    def declare(self, name: str) -> DeclareLaunchArgument:
        """The launch action that declares it."""
        choices = self.choices or (("true", "false") if self.parameter is bool else None)
        return DeclareLaunchArgument(name, default_value=self.default, choices=choices, description=self.description)


ARGUMENTS = {
    "spec": Argument("Path of the fusion spec (YAML)."),
    "params_file": Argument("A parameter file such as config/fusion_node.yaml; given arguments override it.", ""),
    "name": Argument("Name of the node.", "fusion_node"),
    "namespace": Argument("Namespace of the node, and of the relative topics of the spec.", ""),
    "remap": Argument(
        "Remapping rules from:=to, separated by spaces, such as '/joint_states:=/left/joint_states'.", ""
    ),
    "device": Argument("auto, cpu, cuda or cuda:<index>.", "auto", str),
    "normalized": Argument("Publish images as float32, normalised as the spec declares.", "false", bool),
    "jpeg": Argument("Where JPEG images are decoded.", "cpu", str, ("cpu", "gpu")),
    "payload_bytes": Argument(
        "<stream>=<bytes>,...: size of the largest message; GPU memory for it is allocated at configure.", "", str
    ),
    "record_run": Argument("A new file with all that the engine takes, for `robocache replay`.", "", str),
    "reliable": Argument(
        "Subscribe to every topic as reliable with deep queues, for replays; overrides the spec's qos.", "false", bool
    ),
    "autostart": Argument("Configure and activate at once; otherwise wait for `ros2 lifecycle set`.", "true", bool),
    "exit_on_error": Argument(
        "End the node and the launch with exit code 1 if autostart or a run fails; otherwise the node can be "
        "configured again.",
        "false",
        bool,
    ),
    "use_sim_time": Argument("Use /clock, for replays and simulations.", "false", bool),
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


def node(context: LaunchContext, given: set[str]) -> LifecycleNode:
    """The node. Arguments that are not in `given` have the values of the parameter file."""
    values = context.launch_configurations
    spec = existing("spec", values["spec"], "give the path of a fusion spec (YAML)")
    parameters: list[object] = []
    if values["params_file"]:  # launch_ros only warns if the file does not exist
        advice = "give the path of a parameter file (YAML), or leave it out"
        parameters.append(existing("params_file", values["params_file"], advice))
    parameters.append(
        {"spec": ParameterValue(spec, value_type=str)}
        | {
            name: ParameterValue(LaunchConfiguration(name), value_type=argument.parameter)
            for name, argument in ARGUMENTS.items()
            if argument.parameter and name in given
        }
    )
    rules = [rule.partition(":=") for rule in values["remap"].split()]
    wrong = next((rule for rule in rules if not (rule[0] and rule[2])), None)
    if wrong:
        raise ValueError(
            f"remap: '{''.join(wrong)}' is not from:=to; write for example /joint_states:=/left/joint_states"
        )
    return LifecycleNode(
        package="robocache_ros",
        executable="fusion_node",
        name=values["name"],
        namespace=values["namespace"],
        # The only default that differs from the node's. In `parameters` it would override `/**` of a file.
        ros_arguments=["-p", f"autostart:={values['autostart']}"],
        parameters=parameters,
        remappings=[(before, after) for before, _, after in rules],
        output="both",
        emulate_tty=True,
        on_exit=fail_launch if values["exit_on_error"] == "true" else None,
    )


def generate_launch_description() -> LaunchDescription:
    given: set[str] = set()  # names of the given arguments, collected before the defaults are set
    return LaunchDescription(
        [
            OpaqueFunction(function=lambda context: given.update(context.launch_configurations)),
            *(argument.declare(name) for name, argument in ARGUMENTS.items()),
            *environment(),
            OpaqueFunction(function=lambda context: [node(context, given)]),
        ]
    )
