"""The parts of a configured fusion node, from its subscriptions to its publishers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode

from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.nodes import parameters
from robocache_ros.nodes.clock_sources import ClockSource, SimClockSource, WallClockSource
from robocache_ros.nodes.middleware.transport import Limit
from robocache_ros.nodes.monitoring.diagnostics import Diagnostics
from robocache_ros.nodes.monitoring.stream_warnings import StreamWarnings
from robocache_ros.nodes.monitoring.topic_checks import TopicChecks
from robocache_ros.nodes.publishers import Outputs
from robocache_ros.nodes.shared_frames import RingOutput
from robocache_ros.nodes.subscriptions.tf_static import StaticTransformSubscription
from robocache_ros.nodes.subscriptions.topics import TopicSubscriptions, definitions
from robocache_ros.nodes.tick_loop import TickLoop, TickStats
from robocache_ros.spec import FusionSpec, StreamSpec


class Pipeline:
    """Everything that exists between configure and cleanup.

    Args:
        node: owns the subscriptions and publishers.
        spec: the streams.
        limit: the limit of the middleware's transport.
        failed: called once, from a thread, when the pipeline cannot continue.

    Raises:
        RoboCacheError: the device, a message type or a parameter cannot be used.
    """

    def __init__(
        self, node: LifecycleNode, spec: FusionSpec, limit: Limit | None, failed: Callable[[Exception], None]
    ) -> None:
        self.spec = spec
        self._node = node
        self._failed = failed
        self._base_frame = parameters.read(node, "base_frame")
        self.engine = FusionEngine(
            spec,
            parameters.read(node, "device"),
            normalized=parameters.read(node, "normalized"),
            jpeg=parameters.read(node, "jpeg"),
            payload_bytes=parameters.payload_bytes(node),
        )
        self.ingest = Ingest(spec, self.engine, definitions(spec), live=True)
        self.stats = TickStats(len(spec.streams))
        self._diagnostics = Diagnostics(spec, node.get_fully_qualified_name().lstrip("/"))
        self._static_transforms = StaticTransformSubscription(node, spec, self.ingest)
        self.subscriptions = TopicSubscriptions(node, spec, self.ingest, reliable=parameters.read(node, "reliable"))
        self._topic_checks = TopicChecks(node, self.subscriptions, limit)
        self._stream_warnings = StreamWarnings(spec, self.stats)
        slots = parameters.read(node, "ring_slots")
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
            SimClockSource(self._node, self.subscriptions, self.engine, self._clock_counters)
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

    def destroy(self) -> None:
        """Stop, and release everything."""
        self.stop()
        self._static_transforms.destroy()
        self.subscriptions.destroy()
        self.outputs.destroy()

    def report(self, node_counters: Mapping[str, int]) -> list[DiagnosticStatus]:
        """Check topics and streams, log their problems, and return the diagnostics.

        Args:
            node_counters: the node's own counters by name, for the status of the ticks.
        """
        self._topic_checks.check(active=self.active)
        statuses = self._diagnostics.report(
            self.ingest,
            self.subscriptions.states,
            self.stats,
            self.active,
            {**self.outputs.counters(), **self._clock_counters, **node_counters},
        )
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
