"""The ROS node that fuses topics, and what it runs while it is active."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.utilities import get_rmw_implementation_identifier

from robocache_ros.engine import Ingest
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import transport
from robocache_ros.nodes.diagnostics import Diagnostics, StreamWarnings, TopicChecks
from robocache_ros.nodes.managed_node import (
    ERROR,
    SUCCESS,
    Declared,
    ManagedNode,
    logs_errors,
    parse,
    read_parameter,
    run_nodes,
)
from robocache_ros.nodes.publishers import Outputs, RingOutput
from robocache_ros.nodes.subscriptions import TopicSubscriptions, definitions, subscribe_static_transforms
from robocache_ros.nodes.tick_loop import ClockReader, ClockSource, SimClockSource, TickLoop, TickStats, WallClockSource
from robocache_ros.nodes.transport import Limit
from robocache_ros.recorder.run_log import LoggedEngine, RunLog
from robocache_ros.spec import FusionSpec, StreamSpec

PARAMETERS = (
    Declared("spec", "", "Path of the fusion spec (YAML)."),
    Declared("device", "auto", "Where ticks are computed.", "auto | cpu | cuda | cuda:<index>"),
    Declared(
        "normalized", False, "Whether frames hold images as normalised float32; otherwise 8-bit images stay uint8."
    ),
    Declared("jpeg", "cpu", "Where jpeg images are decoded. gpu is faster and differs by a few counts.", "cpu | gpu"),
    Declared(
        "payload_bytes",
        "",
        "Bytes of the largest image or cloud of each named stream. GPU memory for it is allocated when the node is "
        "configured, instead of at the first message.",
        "<stream>=<bytes>, ...",
    ),
    Declared(
        "reliable",
        False,
        "Subscribe to every topic as reliable with deep queues, for replays; overrides the spec's qos. "
        "Best effort publishers then do not match.",
    ),
    Declared(
        "autostart",
        False,
        "Configure and activate at the start, instead of waiting for lifecycle transitions.",
        read_only=True,
    ),
    Declared(
        "exit_on_error",
        False,
        "End the process with exit code 1 if autostart or a run fails, instead of waiting to be configured again.",
        read_only=True,
    ),
    Declared(
        "base_frame",
        "base_link",
        "Frame of the voxel clouds of streams with an extrinsic; other clouds keep the sensor's frame.",
    ),
    Declared(
        "ring_slots",
        8,
        "Frames kept in memory shared with consumers of this machine and user; 0 switches shared memory off.",
        bounds=(0, 1024),
    ),
    Declared(
        "record_run",
        "",
        "Path of a new file with all that the engine takes and a digest of each tick, for robocache replay; "
        "empty: none.",
    ),
    Declared("diagnostics_period_s", 1.0, "Seconds between messages on /diagnostics.", "", (0.1, 60.0), read_only=True),
)


class Pipeline:
    """Everything that exists between configure and cleanup.

    Raises:
        RoboCacheError: the device, a message type or a parameter cannot be used.
    """

    def __init__(
        self, node: LifecycleNode, spec: FusionSpec, limit: Limit | None, failed: Callable[[Exception], None]
    ) -> None:
        self.spec = spec
        self._node = node
        self._failed = failed
        self._base_frame = read_parameter(node, "base_frame")
        options = {"normalized": read_parameter(node, "normalized"), "jpeg": read_parameter(node, "jpeg")}
        self.engine = LoggedEngine(spec, read_parameter(node, "device"), **options, payload_bytes=_payload_bytes(node))
        texts = definitions(spec)
        self.ingest = Ingest(spec, self.engine, texts, live=True)
        self.run_log: RunLog | None = None
        if file := read_parameter(node, "record_run"):
            options["device"] = str(self.engine.device)
            self.run_log = self.engine.run_log = RunLog(Path(file).expanduser(), spec, texts, options)
        self.stats = TickStats(len(spec.streams))
        self._static_transforms = subscribe_static_transforms(node, spec, self.ingest, self.run_log)
        self.subscriptions = TopicSubscriptions(
            node, spec, self.ingest, reliable=read_parameter(node, "reliable"), run_log=self.run_log
        )
        name = node.get_fully_qualified_name().lstrip("/")
        self._diagnostics = Diagnostics(name, self.ingest, self.subscriptions.states, self.stats)
        self._topic_checks = TopicChecks(node, self.subscriptions, limit)
        self._stream_warnings = StreamWarnings(spec, self.stats)
        slots = read_parameter(node, "ring_slots")
        ring = RingOutput(node, self.engine.layout, self.engine.device, slots) if slots else None
        self.outputs = Outputs(node, self.engine.layout, self._frame_of, ring)
        self._clock_counters: Counter[str] = Counter()
        self._tick_loop: TickLoop | None = None

    @property
    def active(self) -> bool:
        """Whether ticks are published."""
        return self._tick_loop is not None

    def start(self, *, sim_time: bool) -> None:
        """Start to receive messages and to publish ticks; with `sim_time` the ticks follow /clock.

        The layout is published when messages are no longer discarded: who has received it may send them.
        """
        self.subscriptions.discard()  # messages that arrived while the node was inactive
        clock: ClockSource = (
            SimClockSource(self.subscriptions, self.engine, ClockReader(self._node, self._clock_counters))
            if sim_time
            else WallClockSource(self._node, self.subscriptions, self.engine, self._failed)
        )
        delay_ns = None if sim_time or self.spec.emit == "eager" else self.spec.delay_ns
        lead_ns = self.spec.delay_ns - self.spec.cut_ns
        self.outputs.describe(use_sim_time=sim_time)
        self._tick_loop = TickLoop(clock, self.outputs.publish, self._failed, self.stats, delay_ns, lead_ns)
        self._tick_loop.start()

    def stop(self) -> None:
        """Stop the ticks; samples and counters are kept."""
        if self._tick_loop:
            self._tick_loop.stop()
            self._tick_loop = None

    def reset(self) -> None:
        """Discard the samples."""
        if self.run_log:
            self.run_log.reset()
        self.engine.reset("deactivated")

    def destroy(self) -> None:
        """Stop, and release everything."""
        self.stop()
        if self._static_transforms:
            self._node.destroy_subscription(self._static_transforms)
            self._static_transforms = None
        self.subscriptions.destroy()
        self.outputs.destroy()
        if self.run_log:
            self.run_log.close()
            self.run_log = self.engine.run_log = None

    def report(self, node_counters: Mapping[str, int]) -> list[DiagnosticStatus]:
        """Check topics and streams, log their problems, and return the diagnostics."""
        self._topic_checks.check(active=self.active)
        lost = {"run_log_lost": self.run_log.lost} if self.run_log else {}
        counters = {**self.outputs.counters(), **self._clock_counters, **node_counters, **lost}
        statuses = self._diagnostics.report(self.active, counters)
        if self.active:
            reasons = {status.name.rpartition(": ")[2]: status.message for status in statuses}
            received = {name for name, state in self.subscriptions.states.items() if state.newest_arrival_ns}
            for line in self._stream_warnings.check(reasons, received):
                self._node.get_logger().warning(line)
        return statuses

    def memory_lines(self) -> list[str]:
        """The engine's memory, one line per kind of memory."""
        places: dict[str, int] = {}
        for row in self.engine.memory():
            places[row.place] = places.get(row.place, 0) + row.total_bytes
        return [f"memory ({place}): {total / 2**20:.3f} MiB" for place, total in places.items()]

    def _frame_of(self, stream: StreamSpec) -> str:
        if stream.voxels and stream.voxels.extrinsic:
            return str(self._base_frame)
        if stream.voxels and stream.voxels.frame:
            return stream.voxels.frame
        return self.subscriptions.states[stream.name].frame_id


class FusionNode(ManagedNode):
    """Publishes `~/fused`, `~/layout`, `~/plot`, `~/<stream>/aligned` and /diagnostics, as a fusion spec declares."""

    parts: Pipeline | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("fusion_node", PARAMETERS, **kwargs)
        self.report_with(lambda: self.parts.report({"log_lines_dropped": self.log.dropped}) if self.parts else [])

    def autostart(self) -> bool:
        """Configure and activate; returns whether both succeeded."""
        if super().autostart():
            return True
        if not self._exits_on_error():
            self.warn_that_it_waits()
        return False

    @logs_errors
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, and create the engine, the subscriptions and the publishers."""
        path, spec = self.read_spec()
        sizes = _payload_bytes(self)
        limit = transport.limit(get_rmw_implementation_identifier())
        self.parts = pipeline = Pipeline(self, spec, limit, self.fail)
        names = ", ".join(stream.name for stream in spec.streams)
        device = pipeline.engine.device
        self.get_logger().info(f"{path}: {len(spec.streams)} streams ({names}) at {spec.rate_hz} Hz on {device}")
        reliable = read_parameter(self, "reliable")
        for line in [] if reliable else transport.warnings(spec, limit, sizes):
            self.get_logger().warning(line)
        for line in pipeline.memory_lines():
            self.get_logger().info(line)
        return SUCCESS

    @logs_errors
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start publishing."""
        assert self.parts
        result = super().on_activate(state)
        sim_time = bool(read_parameter(self, "use_sim_time"))
        self.parts.start(sim_time=sim_time)
        self.get_logger().info(f"publishing by {'/clock' if sim_time else 'the wall clock'}")
        return result

    @logs_errors
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop publishing and discard the samples; the counters keep their values."""
        assert self.parts
        self.parts.stop()
        if self.failure:
            return ERROR
        self.parts.reset()
        return super().on_deactivate(state)

    @logs_errors
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node is unconfigured and can be configured again."""
        result = super().on_error(state)
        self._exits_on_error()
        return result

    def _exits_on_error(self) -> bool:
        """End the process with exit code 1 if the parameter `exit_on_error` is set; returns whether it is set."""
        if read_parameter(self, "exit_on_error"):
            self.exit_code = 1
            self.context.try_shutdown()
        return bool(self.exit_code)


def _payload_bytes(node: LifecycleNode) -> dict[str, int]:
    """The parameter `payload_bytes` by stream; RoboCacheError if an entry is not name=bytes."""
    sizes = {}
    given = read_parameter(node, "payload_bytes")
    for entry in given.split(",") if given.strip() else ():
        name, _, size = (part.strip() for part in entry.partition("="))
        if not (size.isascii() and size.isdecimal() and len(size) < 16 and int(size)):
            raise RoboCacheError(
                f"parameter payload_bytes: '{printable(entry.strip(), 60)}' is not <stream>=<bytes>; write for example "
                f"front=6220800,rear=6220800"
            )
        sizes[name] = int(size)
    return sizes


def main(args: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM; returns the exit status."""

    def start(nodes: list[FusionNode]) -> bool:
        if read_parameter(nodes[0], "autostart"):
            nodes[0].autostart()
        return True  # a node that cannot start waits for the next transition

    return run_nodes("fusion_node", parse("fusion_node", __doc__, PARAMETERS, args), lambda: [FusionNode()], start)


if __name__ == "__main__":
    sys.exit(main())
