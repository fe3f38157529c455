"""What the nodes of this package, and their programs, have in common: parameters, lifecycle, diagnostics."""

from __future__ import annotations

import argparse
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.clock import Clock, ClockType  # type: ignore[attr-defined]  # its module in Humble
from rclpy.exceptions import InvalidParameterTypeException, ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.logging import get_logger
from rclpy.node import Node as RosNode
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import middleware, process, transport
from robocache_ros.spec import FusionSpec, load_spec

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
WAIT_S = 0.1  # until signals and the context are looked at again
KEYS_S = 1.0  # until the thread that reads keys has left the terminal as it was
Node = TypeVar("Node", bound=LifecycleNode)
Transition = Callable[[Node, LifecycleState], TransitionCallbackReturn]
# Does what keys say while the second argument returns true; returns whether the program ends then.
Control = Callable[[Any, Callable[[], bool]], bool]


@dataclass(frozen=True)
class Declared:
    """One parameter.

    Attributes:
        constraints: description of the allowed values.
        bounds: the smallest and the largest value of a number.
        read_only: whether it can only be set at the start; all others are read when the node is configured.
        dynamic: whether a value of any type can be given, such as a number for a text.
    """

    name: str
    default: bool | int | float | str
    description: str
    constraints: str = ""
    bounds: tuple[float, float] | None = None
    read_only: bool = False
    dynamic: bool = False

    def descriptor(self) -> ParameterDescriptor:
        """The descriptor that `ros2 param describe` shows."""
        made = ParameterDescriptor(
            description=self.description,
            additional_constraints=self.constraints,
            read_only=self.read_only,
            dynamic_typing=self.dynamic,
        )
        if self.bounds and isinstance(self.default, float):
            # Python's integers are not converted: they would arrive as other numbers.
            low, high = (float(bound) for bound in self.bounds)
            made.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        elif self.bounds:
            made.integer_range = [IntegerRange(from_value=int(self.bounds[0]), to_value=int(self.bounds[1]))]
        return made


def declare(node: RosNode, declared: Iterable[Declared]) -> None:
    """Declare every parameter with its description and its range."""
    for parameter in declared:
        node.declare_parameter(parameter.name, parameter.default, parameter.descriptor())


def read_parameter(node: RosNode, name: str) -> Any:
    """The value of a parameter."""
    return node.get_parameter(name).value


def help_text(declared: Iterable[Declared]) -> str:
    """Every parameter with its default, as `--help` shows them."""
    lines = ["parameters, each given as: --ros-args -p NAME:=VALUE"]
    for parameter in declared:
        default = str(parameter.default).lower() if isinstance(parameter.default, bool) else parameter.default
        values = f" [{parameter.constraints}]" if parameter.constraints else ""
        text = f"{parameter.description}{values} (default: {'empty' if default == '' else default})"
        lines += [f"  {parameter.name}", *textwrap.wrap(text, 78, initial_indent="      ", subsequent_indent="      ")]
    return "\n".join(lines)


def logs_errors(transition: Transition[Node]) -> Transition[Node]:
    """Log a user's mistake as one line and return FAILURE; log other errors, which rclpy hides, and return ERROR."""

    @wraps(transition)
    def guarded(node: Node, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except RoboCacheError as error:
            node.get_logger().error(str(error))
            return FAILURE
        except Exception as error:
            node.get_logger().fatal(f"{transition.__name__}:\n" + "".join(traceback.format_exception(error)))
            return ERROR

    return guarded


class ManagedNode(LifecycleNode):
    """A lifecycle node. Parameters that it reads when it is configured cannot be changed until it is cleaned up.

    Those in `changeable` are read whenever they are used. `kwargs` are arguments of rclpy's LifecycleNode.

    Attributes:
        logs: the modules whose lines it logs where another node of the process logs those of the package.
        parts: all that exists between configure and cleanup, with `active` and `destroy()`; None: unconfigured.
        log: what the package logs, to the node's logger.
        failure: the error of a thread that stops the node; None if there is none.
        exit_code: of the program.
    """

    logs: Collection[str] = ()

    def __init__(
        self, name: str, declared: Iterable[Declared], changeable: Collection[str] = (), **kwargs: Any
    ) -> None:
        self.parts: Any = None
        super().__init__(name, **kwargs)
        self.log = process.attach(self.get_logger(), self.logs)
        self.failure: Exception | None = None
        self.exit_code = 0
        declared = tuple(declared)
        declare(self, declared)
        self._at_configure = frozenset(p.name for p in declared if not p.read_only and p.name not in changeable)
        self.add_on_set_parameters_callback(self._check_change)
        self._failure_seen = self.create_guard_condition(self._on_failure)

    @property
    def configured(self) -> bool:
        """Whether the node is inactive or active."""
        return self.parts is not None

    @property
    def active(self) -> bool:
        """Whether the node is active."""
        return self.parts is not None and bool(self.parts.active)

    def release(self) -> None:
        """Stop, and release all that `on_configure` and `on_activate` made; does nothing if there is nothing."""
        if self.parts:
            self.parts.destroy()
            self.parts = None

    def autostart(self) -> bool:
        """Configure and activate; returns whether both succeeded."""
        return bool(self.trigger_configure() == SUCCESS and self.trigger_activate() == SUCCESS)

    def warn_that_it_waits(self) -> None:
        """Log what to do after an autostart that failed, if the node is unconfigured."""
        if not self.configured:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()}"
            self.get_logger().warning(
                f"the node stays unconfigured; fix the error, then run: {command} configure, then activate"
            )

    def read_spec(self) -> tuple[str, FusionSpec]:
        """Return the path that the parameter `spec` has, and the spec with topics in the node's namespace."""
        path = read_parameter(self, "spec")
        if not path:
            raise RoboCacheError("parameter spec: empty; give the path of a fusion spec (--ros-args -p spec:=FILE)")
        return path, load_spec(path, self.get_namespace())

    @logs_errors
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        self.release()
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        return self.on_cleanup(state)

    @logs_errors
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node is unconfigured and can be configured again."""
        self.failure = None
        self.release()
        return SUCCESS

    def destroy_node(self) -> None:
        """Stop, and release everything."""
        self.release()
        process.detach(self.log)
        super().destroy_node()

    def fail(self, error: Exception) -> None:
        """Report the error of a thread; the node moves to its error state."""
        if self.context.ok():  # during shutdown, publishers fail while the thread uses them
            self.failure = error
            self._failure_seen.trigger()

    def report_with(self, make: Callable[[], list[DiagnosticStatus]]) -> None:
        """Publish the statuses on /diagnostics while the node is configured, each `diagnostics_period_s`."""
        publisher = self.create_publisher(DiagnosticArray, "/diagnostics", middleware.reliable(10))
        before = ""  # error of the last report

        def report() -> None:
            nonlocal before
            if not self.configured:
                return
            try:
                message = DiagnosticArray(status=make())
                message.header.stamp = self.get_clock().now().to_msg()
                publisher.publish(message)
                before = ""
            except Exception as error:  # such as no free file descriptors: the node and later reports continue
                text = printable(repr(error), 150)
                if text != before:
                    again = "the node tries again at the next one"
                    self.get_logger().error(f"/diagnostics: a report failed ({text}); {again}")
                before = text

        steady = Clock(clock_type=ClockType.STEADY_TIME)  # diagnostics continue while a simulation is paused
        self.create_timer(read_parameter(self, "diagnostics_period_s"), report, clock=steady)

    def _on_failure(self) -> None:
        if self.failure:
            self.get_logger().fatal("the node stopped:\n" + "".join(traceback.format_exception(self.failure)))
            self.trigger_deactivate()

    def _check_change(self, changed: list[Parameter[Any]]) -> SetParametersResult:
        command, reason = f"ros2 lifecycle set {self.get_fully_qualified_name()}", ""
        for name in [p.name for p in changed if self.has_parameter(p.name) and read_parameter(self, p.name) != p.value]:
            if self.configured and name in self._at_configure:
                steps = f"first call {'deactivate and cleanup' if self.active else 'cleanup'} ({command} ...)"
                reason = reason or f"{name}: is read when the node is configured; {steps}, then configure"
            elif self.active and name == "use_sim_time":
                reason = reason or f"{name}: is read when the node is activated; first call {command} deactivate"
        return SetParametersResult(successful=not reason, reason=reason)


def parse(name: str, description: str | None, declared: Iterable[Declared], args: Sequence[str] | None) -> list[str]:
    """Return the arguments for rclpy. `--help`, and arguments that are not ROS arguments, end the process."""
    given = [*sys.argv] if args is None else [name, *args]
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        usage="%(prog)s [-h] [--ros-args -p NAME:=VALUE ...]",
        epilog=help_text(declared),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _, unknown = parser.parse_known_args(remove_ros_args(given)[1:])
    if unknown:
        text = printable(" ".join(unknown))
        parser.error(f"{text}: not a ROS argument; give parameters as --ros-args -p NAME:=VALUE, such as spec:=FILE")
    return given


def run_nodes(
    name: str,
    args: Sequence[str],
    make: Callable[[], Sequence[ManagedNode]],
    start: Callable[[Any], bool],
    control: Control | None = None,
) -> int:
    """Spin nodes until Ctrl-C, SIGTERM or a shutdown of ROS; returns the exit status.

    Args:
        name: of the program.
        args: for rclpy, with the name.
        make: makes the nodes; the last ones are destroyed first.
        start: gets the nodes; returns whether the program goes on. If not, the status is 1, or 2 with `control`.
        control: gets the last node; runs in a thread of its own, once the nodes have started.
    """
    process.prepare()
    transport.use_profile()
    # Own handlers of signals: those of rclpy end the context, and what is sent last would be lost.
    rclpy.init(args=[*args], signal_handler_options=SignalHandlerOptions.NO)
    stopped = process.stop_on_signals()
    try:
        nodes = make()
    except ParameterException as error:
        by_type = isinstance(error, InvalidParameterTypeException)
        hint = "; write a DOUBLE with a decimal point and a STRING of digits in quotes" if by_type else ""
        get_logger(name).fatal(f"{error}{hint}")
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)

    def controlled() -> None:
        if control and control(nodes[-1], lambda: nodes[-1].context.ok() and not stopped.is_set()):
            stopped.set()

    keys = threading.Thread(target=controlled, name="robocache-keys", daemon=True)
    code = 0
    try:
        with process.until_shutdown(nodes[0].context):
            if not start(nodes):
                code = 2 if control else 1
            else:
                keys.start()
                while not stopped.is_set():
                    executor.spin_once(timeout_sec=WAIT_S)
    finally:
        stopped.set()
        process.ignore_sigint()
        for node in reversed(nodes):
            node.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()
        if keys.ident:
            keys.join(KEYS_S)
    return code or max(node.exit_code for node in nodes)
