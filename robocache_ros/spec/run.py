"""The options of a run, declared once: for the command line, the section `run` of a spec, and Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from robocache_ros.spec import keys
from robocache_ros.spec.dataset import line
from robocache_ros.spec.keys import (
    TOPIC,
    Flag,
    KeyType,
    boolean,
    by_name,
    check,
    choice,
    integer,
    key,
    many,
    number,
    one_or_many,
    pattern,
    text,
)
from robocache_ros.units import NS_PER_MS

MAX_TICKS = 4096  # rows of a chunk, and ticks of an option
BLENDS = ("none", "crossfade", "ensemble")
PLAN, STOPPING = "Plan", "Stop"
MAX_SERVER_KEYS = 64  # of an observation

_limits = one_or_many(number(-1e9, 1e9))
_topic = pattern("a topic such as /arm/commands, or commands in the namespace", TOPIC.replace("^/", "^/?"))
_urdf = pattern("a file such as robot.urdf, or a topic such as /robot_description", rf"^[^\x00]+\.(urdf|xml)$|{TOPIC}")


def is_urdf_file(name: str) -> bool:
    """Return whether the URDF of an output is a file, and not a topic."""
    return name.endswith((".urdf", ".xml"))


@dataclass(frozen=True)
class OutputSpec:
    """Where the commands of an action stream go; each default is that of the stream."""

    name: str  # of the stream
    topic: str = key(_topic, "the topic of the commands, else that of the stream", default="")
    type: str = key(
        text("a message type such as trajectory_msgs/msg/JointTrajectory"),
        "message type of the commands, else that of the stream",
        default="",
    )
    field: str = key(
        text("a field such as velocity"), "of joint messages: what the values are, else position", default=""
    )
    names: tuple[str, ...] = key(
        many(text("a joint's name"), unique=True), "joints of the commands, else those of the stream", default=()
    )
    frame: str = key(text("a frame such as base_link"), "frame_id of the commands", default="")
    discrete: tuple[str, ...] = key(
        many(text("a component of the stream"), unique=True),
        "components that are never blended, such as a gripper or an integer",
        default=(),
    )
    lower: tuple[float, ...] = key(_limits, "smallest command: one number, or one for each value", default=())
    upper: tuple[float, ...] = key(_limits, "largest command: one number, or one for each value", default=())
    max_step: tuple[float, ...] = key(
        _limits, "largest change from tick to tick: one number, or one for each value", default=()
    )
    urdf: str = key(
        _urdf,
        "the limits of the joints in a URDF hold too: a file, relative to the spec, or a latched topic of "
        "std_msgs/String such as /robot_description. Joints are found by `names`",
        default="",
    )
    max_speed: float = key(
        number(0, 1),
        "with urdf: the largest step, as a share of the velocity limit of each joint; 0: only max_step limits it",
        default=0.0,
    )
    accept_no_timeout: bool = key(
        boolean,
        "velocities may go to a controller that keeps the last one for ever, such as forward_command_controller",
        default=False,
    )
    takeover: str = key(_topic, "topic of the operator's commands, of the type of the stream", default="")


_given_outputs = by_name(
    "outputs by stream",
    "action: {topic: ...}",
    lambda name, given: keys.read(OutputSpec, given, name=str(name)),
    keys.object_schema(OutputSpec),
)


def _outputs(raw: Any) -> Any:
    is_read = isinstance(raw, tuple) and all(isinstance(each, OutputSpec) for each in raw)
    return raw if is_read else _given_outputs.read(raw)


_outputs_by_stream = KeyType("outputs by action stream", _outputs, _given_outputs.schema)


_server_key = text("a key of the server, such as observation/joint_position")
_streams = one_or_many(text("a stream"), unique=True)
_given_keys = by_name(
    "keys",
    "KEY: STREAM",
    lambda name, given: (_server_key.read(name), _streams.read(given)),
    _streams.schema,
    most=MAX_SERVER_KEYS,
)
_streams_by_key = KeyType(
    "a stream, or a list of streams, by key",
    lambda raw: _given_keys.read(dict(raw) if isinstance(raw, tuple) else raw),
    _given_keys.schema,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `robocache run` does with the actions of a policy."""

    replan_every: int = key(
        integer(1, MAX_TICKS),
        "ticks from one plan to the next, at least; a slow policy plans again when it is ready",
        default=10,
        flag=Flag(PLAN, "Ticks from one plan to the next.", metavar="TICKS"),
    )
    offset: int | None = key(
        integer(-MAX_TICKS, MAX_TICKS),
        "ticks from an observation to the first row of its chunk; else `action_offset` of the section `dataset`",
        default=None,
        flag=Flag(PLAN, "Ticks from an observation to the first row.", metavar="TICKS", shown="that of the dataset"),
    )
    execute_from: int = key(
        integer(0, MAX_TICKS),
        "rows at the start of each chunk that are not executed",
        default=0,
        flag=Flag(PLAN, "Rows at the start of a chunk that are skipped.", metavar="ROWS"),
    )
    prefix: int = key(
        integer(0, MAX_TICKS),
        "rows at the start of each chunk that are certain to be executed as planned before: a policy that takes a "
        "prefix gets them, and the rows planned after them; 0: it gets none",
        default=0,
        flag=Flag(PLAN, "Rows that a policy continues (real-time chunking).", metavar="ROWS"),
    )
    blend: str = key(
        choice(*BLENDS),
        "where chunks overlap. none: the row of the newest observation; crossfade: from the plan so far to the new "
        "chunk; ensemble: the mean of all rows for a tick, of which older ones weigh more",
        default="crossfade",
        flag=Flag(PLAN, "How chunks that overlap become a command."),
    )
    crossfade_ticks: int = key(
        integer(1, MAX_TICKS),
        "of crossfade: ticks until a new chunk has all of the weight, at most",
        default=8,
        flag=Flag(PLAN, "Ticks until a new chunk has all of the weight.", metavar="TICKS"),
    )
    decay: float = key(
        number(0, 100),
        "of ensemble: the i-th oldest row has the weight exp(-decay * i)",
        default=0.01,
        flag=Flag(PLAN, "Decay of the weights of an ensemble.", metavar="RATE"),
    )
    action_latency_ms: float = key(
        number(0, 10_000),
        "the command of a tick is sent this long before it: the time from a command to its effect",
        default=0.0,
        unit="ms",
        flag=Flag(PLAN, "Send a command this long before its tick.", metavar="MS"),
    )
    task: str = key(
        line("say in words what the robot does"),
        "instruction of a policy that takes one, else `task` of the section `dataset`",
        default="",
        flag=Flag(PLAN, "Instruction of the policy.", metavar="TEXT", shown="that of the dataset"),
    )
    observation: tuple[tuple[str, tuple[str, ...]], ...] = key(
        _streams_by_key,
        "what a policy server gets: streams by the server's keys; vectors in a list are joined. Else every vector and "
        "image: as `observation/<stream>` for openpi, as `<stream>` for GR00T",
        default=(),
    )
    task_key: str = key(
        _server_key, "the server's key of the task; else `prompt` for openpi, and what GR00T asks for", default=""
    )
    action_keys: tuple[str, ...] = key(
        many(_server_key, unique=True),
        "the server's keys of the actions, joined in this order into the columns of the action streams; else `actions` "
        "for openpi, the names of the action streams for GR00T",
        default=(),
    )
    timeout_s: float = key(
        number(0.05, 600),
        "a policy server that has not answered by then has failed; the next plan connects again",
        default=5.0,
        unit="s",
    )
    stop: str = key(
        choice("hold", "none", "zero-velocity"),
        "after a stop. hold: the last command, and velocities are zero; none: nothing; zero-velocity: velocities are "
        "zero, nothing else is sent",
        default="hold",
        flag=Flag(STOPPING, "What is sent after a stop."),
    )
    coast_ticks: int = key(
        integer(0, MAX_TICKS),
        "ticks without a row at which the last command is repeated; then the run stops",
        default=10,
        flag=Flag(STOPPING, "Ticks without a row until the run stops.", metavar="TICKS"),
    )
    invalid_ticks: int = key(
        integer(0, MAX_TICKS),
        "ticks at which an observation may be invalid one after another; then the run stops",
        default=5,
        flag=Flag(STOPPING, "Ticks of an invalid observation until the run stops.", metavar="TICKS"),
    )
    outputs: tuple[OutputSpec, ...] = key(
        _outputs_by_stream, "where the commands of each action stream go, and their limits", default=()
    )

    def __post_init__(self) -> None:
        check(self)

    def output(self, stream: str) -> OutputSpec:
        """Return the output of an action stream; the default if the spec has none."""
        return next((each for each in self.outputs if each.name == stream), OutputSpec(stream))

    def without_urdfs(self) -> RunOptions:
        """Return the same options without the limits of URDFs."""
        return replace(self, outputs=tuple(replace(each, urdf="") for each in self.outputs))

    @property
    def urdf_topics(self) -> list[str]:
        """The topics from which outputs get a URDF."""
        return sorted({each.urdf for each in self.outputs if each.urdf and not is_urdf_file(each.urdf)})

    @property
    def action_latency_ns(self) -> int:
        """`action_latency_ms` in nanoseconds."""
        return round(self.action_latency_ms * NS_PER_MS)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values, from which a spec restores them."""
        raw: dict[str, Any] = keys.write(self)
        if self.outputs:
            raw["outputs"] = {each.name: keys.write(each) for each in self.outputs}
        if self.observation:
            raw["observation"] = {name: list(streams) for name, streams in self.observation}
        return raw
