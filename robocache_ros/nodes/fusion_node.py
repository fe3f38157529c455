"""`fusion_node`: a lifecycle node that fuses topics into one stream of tensors on the tick grid."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType  # type: ignore[attr-defined]  # where Humble has it
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.logging import get_logger
from rclpy.utilities import get_rmw_implementation_identifier

from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import diagnostics, logs, parameters, process, qos, transport
from robocache_ros.nodes.beat import Beat, BeatStats
from robocache_ros.nodes.drivers import Driver, SimDriver, WallDriver
from robocache_ros.nodes.intake import Intake, definitions
from robocache_ros.nodes.outputs import Outputs
from robocache_ros.nodes.ring import RingOutput
from robocache_ros.nodes.static_frames import StaticFrames
from robocache_ros.spec import FusionSpec, StreamSpec, load_spec

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
Transition = Callable[["FusionNode", LifecycleState], TransitionCallbackReturn]


def _said_aloud(transition: Transition) -> Transition:
    """A user's mistake is one error line and FAILURE; anything else is an error, which rclpy would swallow."""

    @wraps(transition)
    def guarded(node: FusionNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except RoboCacheError as error:
            node.get_logger().error(str(error))
            return FAILURE
        except Exception as error:
            node.get_logger().fatal(f"{transition.__name__}:\n" + "".join(traceback.format_exception(error)))
            return ERROR

    return guarded


class Fusion:
    """All that exists between configure and cleanup."""

    def __init__(self, node: LifecycleNode, spec: FusionSpec, base_frame: str) -> None:
        self.spec = spec
        self.engine = FusionEngine(
            spec,
            parameters.read(node, "device"),
            normalized=parameters.read(node, "normalized"),
            jpeg=parameters.read(node, "jpeg"),
            payload_bytes=parameters.payload_bytes(node),
        )
        self.ingest = Ingest(spec, self.engine, definitions(spec))
        self.stats = BeatStats(len(spec.streams))
        self.diagnostics = diagnostics.Diagnostics(spec, node.get_name())
        self.frames = StaticFrames(node, spec, self.ingest)
        self.intake = Intake(node, spec, self.ingest)
        self._base_frame = base_frame
        slots = parameters.read(node, "ring_slots")
        ring = RingOutput(node, self.engine.layout, self.engine.device, slots) if slots else None
        self.outputs = Outputs(node, self.engine.layout, self._frame_of, ring)
        self.beat: Beat | None = None

    def start(self, node: FusionNode, sim_time: bool) -> None:
        """Begin to take messages in and to send ticks out."""
        self.intake.discard()  # what came while the node was inactive is not of this run
        driver: Driver = (
            SimDriver(node, self.intake, self.engine)
            if sim_time
            else WallDriver(node, self.intake, self.engine, node.fail)
        )
        delay_ns = None if sim_time or self.spec.emit == "eager" else self.spec.delay_ns
        lead_ns = self.spec.delay_ns - self.spec.cut_ns
        self.beat = Beat(driver, self.outputs.publish, node.fail, self.stats, delay_ns, lead_ns)
        self.beat.start()

    def stop(self) -> None:
        """Stop the beat."""
        if self.beat:
            self.beat.stop()
            self.beat = None

    def destroy(self) -> None:
        """Give everything back."""
        self.stop()
        self.frames.destroy()
        self.intake.destroy()
        self.outputs.destroy()

    def _frame_of(self, stream: StreamSpec) -> str:
        if stream.voxels and stream.voxels.extrinsic:
            return self._base_frame
        if stream.voxels and stream.voxels.frame:
            return stream.voxels.frame
        return self.intake.states[stream.name].frame_id


class FusionNode(LifecycleNode):
    """Publishes `~/fused`, `~/layout`, `~/<stream>/aligned` and /diagnostics, as a fusion spec says.

    Args:
        name: the node's name, before remapping.
        kwargs: those of rclpy's LifecycleNode.
    """

    def __init__(self, name: str = "fusion_node", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._log = logs.attach(self.get_logger())
        self._fusion: Fusion | None = None
        self._failure: Exception | None = None
        parameters.declare(self)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.reliable(10))
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # diagnostics go on while a simulation is paused
        self.create_timer(parameters.read(self, "diagnostics_period_s"), self._report, clock=steady)
        self._failure_seen = self.create_guard_condition(self._on_failure)

    def autostart(self) -> None:
        """Configure and activate."""
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()
        else:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()}"
            self.get_logger().warning(f"stays unconfigured; once that is mended: {command} configure, and activate")

    @_said_aloud
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, and make engine, subscriptions and publishers."""
        path = parameters.read(self, "spec")
        if not path:
            raise RoboCacheError("parameter spec: empty; give the path of a fusion spec (--ros-args -p spec:=FILE)")
        spec = load_spec(path)
        self._fusion = Fusion(self, spec, parameters.read(self, "base_frame"))
        engine = self._fusion.engine
        names = ", ".join(stream.name for stream in spec.streams)
        self.get_logger().info(f"{path}: {len(spec.streams)} streams ({names}) at {spec.rate_hz} Hz on {engine.device}")
        for line in transport.warnings(spec, get_rmw_implementation_identifier()):
            self.get_logger().warning(line)
        for line in memory_lines(engine):
            self.get_logger().info(line)
        return SUCCESS

    @_said_aloud
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to publish."""
        assert self._fusion
        result = super().on_activate(state)
        self._fusion.outputs.describe()
        sim_time = bool(parameters.read(self, "use_sim_time"))
        self._fusion.start(self, sim_time)
        self.get_logger().info(f"publishing by {'/clock' if sim_time else 'the wall clock'}")
        return result

    @_said_aloud
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop publishing; the rings and counters stay."""
        assert self._fusion
        self._fusion.stop()
        if self._failure:
            return ERROR
        self._fusion.engine.reset("deactivated")
        return super().on_deactivate(state)

    @_said_aloud
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back."""
        self._release()
        return SUCCESS

    @_said_aloud
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back, for good."""
        self._release()
        return SUCCESS

    @_said_aloud
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back; the node is unconfigured again, and can be configured anew."""
        self._failure = None
        self._release()
        return SUCCESS

    def fail(self, error: Exception) -> None:
        """Take an error of the beat's thread to the lifecycle: the node goes to its error state."""
        if self.context.ok():  # while shutting down, publishers fail under the thread
            self._failure = error
            self._failure_seen.trigger()

    def destroy_node(self) -> None:
        """Stop, and give everything back."""
        self._release()
        logs.detach(self._log)
        super().destroy_node()

    def _on_failure(self) -> None:
        error = self._failure
        if error:
            self.get_logger().fatal("the fusion stopped:\n" + "".join(traceback.format_exception(error)))
            self.trigger_deactivate()

    def _release(self) -> None:
        if self._fusion:
            self._fusion.destroy()
            self._fusion = None

    def _report(self) -> None:
        fusion = self._fusion
        if fusion:
            fusion.intake.check_graph()
            statuses = fusion.diagnostics.report(
                fusion.ingest, fusion.intake.states, fusion.stats, bool(fusion.beat), fusion.outputs.counters()
            )
            self._diagnostics.publish(diagnostics.array(statuses, self.get_clock().now().to_msg()))


def memory_lines(engine: FusionEngine) -> list[str]:
    """What the engine's memory is for, a line a place."""
    places: dict[str, int] = {}
    for row in engine.memory():
        places[row.place] = places.get(row.place, 0) + row.total_bytes
    return [f"memory ({place}): {total / 2**20:.3f} MiB" for place, total in places.items()]


def main(args: list[str] | None = None) -> int:
    """Run the node until it is told to end."""
    process.prepare()
    rclpy.init(args=args)
    try:
        node = FusionNode()
    except ParameterException as error:
        get_logger("fusion_node").fatal(parameters.refusal(error))
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        if parameters.read(node, "autostart"):
            node.autostart()
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        process.end_in_peace()
        node.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
