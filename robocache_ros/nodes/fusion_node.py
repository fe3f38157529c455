"""`fusion_node`: a lifecycle node that fuses topics into one stream of tensors on the tick grid."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType  # type: ignore[attr-defined]  # its module in Humble
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.logging import get_logger
from rclpy.parameter import Parameter
from rclpy.utilities import get_rmw_implementation_identifier, remove_ros_args

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import parameters
from robocache_ros.nodes.middleware import logs, process, qos, transport
from robocache_ros.nodes.middleware.shutdown import until_shutdown
from robocache_ros.nodes.monitoring import diagnostics
from robocache_ros.nodes.pipeline import Pipeline
from robocache_ros.spec import load_spec

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
Transition = Callable[["FusionNode", LifecycleState], TransitionCallbackReturn]


def _logs_errors(transition: Transition) -> Transition:
    """Log a user's mistake as one line and return FAILURE; log other errors, which rclpy hides, and return ERROR."""

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


class FusionNode(LifecycleNode):
    """Publishes `~/fused`, `~/layout`, `~/<stream>/aligned` and /diagnostics, as a fusion spec declares.

    Args:
        name: the node's name, before remapping.
        kwargs: arguments of rclpy's LifecycleNode.
    """

    def __init__(self, name: str = "fusion_node", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._log = logs.attach(self.get_logger())
        self.pipeline: Pipeline | None = None  # None while the node is unconfigured
        self._failure: Exception | None = None
        self._report_error = ""  # error of the last report
        self.exit_code = 0
        parameters.declare(self)
        self.add_on_set_parameters_callback(self._check_change)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.reliable(10))
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # diagnostics continue while a simulation is paused
        self.create_timer(parameters.read(self, "diagnostics_period_s"), self._report, clock=steady)
        self._failure_seen = self.create_guard_condition(self._on_failure)

    @property
    def active(self) -> bool:
        """Whether ticks are published."""
        return self.pipeline is not None and self.pipeline.active

    def autostart(self) -> None:
        """Configure and activate."""
        configured = self.trigger_configure() == SUCCESS
        if configured and self.trigger_activate() == SUCCESS:
            return
        if not self._exits_on_error() and not configured:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()}"
            self.get_logger().warning(
                f"the node stays unconfigured; fix the error, then run: {command} configure, then activate"
            )

    @_logs_errors
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, and create the engine, the subscriptions and the publishers."""
        path = parameters.read(self, "spec")
        if not path:
            raise RoboCacheError("parameter spec: empty; give the path of a fusion spec (--ros-args -p spec:=FILE)")
        spec = load_spec(path, self.get_namespace())
        sizes = parameters.payload_bytes(self)
        limit = transport.limit(get_rmw_implementation_identifier())
        self.pipeline = Pipeline(self, spec, limit, self.fail)
        names = ", ".join(stream.name for stream in spec.streams)
        device = self.pipeline.engine.device
        self.get_logger().info(f"{path}: {len(spec.streams)} streams ({names}) at {spec.rate_hz} Hz on {device}")
        reliable = parameters.read(self, "reliable")
        for line in [] if reliable else transport.warnings(spec, limit, sizes):
            self.get_logger().warning(line)
        for line in self.pipeline.memory_lines():
            self.get_logger().info(line)
        return SUCCESS

    @_logs_errors
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start publishing."""
        assert self.pipeline
        result = super().on_activate(state)
        sim_time = bool(parameters.read(self, "use_sim_time"))
        self.pipeline.start(sim_time=sim_time)
        self.get_logger().info(f"publishing by {'/clock' if sim_time else 'the wall clock'}")
        return result

    @_logs_errors
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop publishing and discard the samples; the counters keep their values."""
        assert self.pipeline
        self.pipeline.stop()
        if self._failure:
            return ERROR
        self.pipeline.engine.reset("deactivated")
        return super().on_deactivate(state)

    @_logs_errors
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        self._release()
        return SUCCESS

    @_logs_errors
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        self._release()
        return SUCCESS

    @_logs_errors
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node is unconfigured and can be configured again."""
        self._failure = None
        self._release()
        self._exits_on_error()
        return SUCCESS

    def fail(self, error: Exception) -> None:
        """Report the error of a thread; the node moves to its error state."""
        if self.context.ok():  # during shutdown, publishers fail while the thread uses them
            self._failure = error
            self._failure_seen.trigger()

    def destroy_node(self) -> None:
        """Stop, and release everything."""
        self._release()
        logs.detach(self._log)
        super().destroy_node()

    def _check_change(self, changed: list[Parameter[Any]]) -> SetParametersResult:
        names = [p.name for p in changed if self.has_parameter(p.name) and parameters.read(self, p.name) != p.value]
        reason = parameters.refused_change(
            names, self.get_fully_qualified_name(), configured=self.pipeline is not None, active=self.active
        )
        return SetParametersResult(successful=not reason, reason=reason)

    def _on_failure(self) -> None:
        error = self._failure
        if error:
            self.get_logger().fatal("the fusion stopped:\n" + "".join(traceback.format_exception(error)))
            self.trigger_deactivate()

    def _exits_on_error(self) -> bool:
        """End the process with exit code 1 if the parameter `exit_on_error` is set; returns whether it is set."""
        if parameters.read(self, "exit_on_error"):
            self.exit_code = 1
            self.context.try_shutdown()
        return bool(self.exit_code)

    def _release(self) -> None:
        if self.pipeline:
            self.pipeline.destroy()
            self.pipeline = None

    def _report(self) -> None:
        if not self.pipeline:
            return
        try:
            statuses = self.pipeline.report({"log_lines_dropped": self._log.dropped})
            self._diagnostics.publish(diagnostics.array(statuses, self.get_clock().now().to_msg()))
            self._report_error = ""
        except Exception as error:  # such as no free file descriptors: ticks and later reports continue
            text = printable(repr(error), 150)
            if text != self._report_error:
                self.get_logger().error(f"/diagnostics: a report failed ({text}); the node tries again at the next one")
            self._report_error = text


def parse(args: list[str] | None) -> None:
    """Handle `--help` and arguments that are not ROS arguments; both end the process."""
    parser = argparse.ArgumentParser(
        prog="fusion_node",
        description=__doc__,
        usage="%(prog)s [-h] [--ros-args -p NAME:=VALUE ...]",
        epilog=parameters.help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _, unknown = parser.parse_known_args(remove_ros_args(sys.argv if args is None else ["fusion_node", *args])[1:])
    if unknown:
        text = printable(" ".join(unknown))
        parser.error(f"{text}: not a ROS argument; give parameters as --ros-args -p NAME:=VALUE, such as spec:=FILE")


def main(args: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM; returns the exit status."""
    parse(args)
    process.prepare()
    transport.use_profile()
    rclpy.init(args=sys.argv if args is None else ["fusion_node", *args])
    try:
        node = FusionNode()
    except ParameterException as error:
        get_logger("fusion_node").fatal(parameters.refusal(error))
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        with until_shutdown(node.context):
            if parameters.read(node, "autostart"):
                node.autostart()
            executor.spin()
    except KeyboardInterrupt:
        pass
    finally:
        process.ignore_sigint()
        node.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()
    return node.exit_code


if __name__ == "__main__":
    sys.exit(main())
