"""The ROS node that runs a policy: frames of a fusion node in, commands out.

It reads frames with `FusedSubscriber`, from the memory of a fusion node on the same machine, and not from an engine of
its own: the policy, a recorder and other consumers then have the same frames, and the thread that sends commands shares
no interpreter with the fusion.
"""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool, Float32MultiArray, String
from std_srvs.srv import SetBool, Trigger

from robocache_ros.decode import make_decoder
from robocache_ros.engine import tick_grid
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import diagnostics, frame_messages, middleware, process
from robocache_ros.nodes.fused_subscriber import FusedSubscriber
from robocache_ros.nodes.fusion_node import FusionNode
from robocache_ros.nodes.managed_node import (
    SUCCESS,
    Control,
    Declared,
    ManagedNode,
    logs_errors,
    parse,
    read_parameter,
    run_nodes,
)
from robocache_ros.nodes.pedals import Pedal, read_keys
from robocache_ros.nodes.subscriptions import RawSubscriber, definitions
from robocache_ros.nodes.tick_loop import ClockReader
from robocache_ros.policy.joint_limits import MAX_BYTES, read_urdf_files
from robocache_ros.policy.outputs import Outputs
from robocache_ros.policy.plan import Chunk, Outcome
from robocache_ros.policy.policies import KINDS, check_policy, identity
from robocache_ros.policy.runner import Runner, State, Step
from robocache_ros.policy.worker import ProcessWorker
from robocache_ros.recorder.run_log import RunLog
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.keys import keys_of, read_values
from robocache_ros.spec.run import RunOptions

log = logging.getLogger(__name__)

PARAMETERS = (
    Declared("spec", "", "Path of the fusion spec (YAML); its section run has the outputs and their limits."),
    Declared("policy", "", f"{KINDS}; empty: chunks come on ~/chunk."),
    Declared("device", "cpu", "Device of a checkpoint.", "cpu | cuda | cuda:<index>"),
    Declared("fusion", "fusion_node", "Name of the fusion node whose frames are observed."),
    Declared(
        "takeover_button",
        -1,
        "Button of sensor_msgs/Joy on /joy that takes over while it is pressed; -1: none.",
        bounds=(-1, 255),
    ),
    Declared("record_run", "", "Path of a new file with all that the runner takes and sends, for `robocache replay`."),
    Declared("pedal", "", "Foot pedal that takes over while it is pressed.", "/dev/input/by-id/..."),
    Declared("pedal_keys", "takeover=KEY_B", "Its key.", "takeover=<key>"),
    Declared("autostart", False, "Configure and activate at the start.", read_only=True),
    Declared("diagnostics_period_s", 1.0, "Seconds between messages on /diagnostics.", "", (0.1, 60.0), read_only=True),
)


def _values(schema: Mapping[str, Any]) -> str:
    """The values of an option, as `ros2 param describe` shows them."""
    if "enum" in schema:
        return " | ".join(schema["enum"])
    return f"{schema['minimum']} to {schema['maximum']}" if "minimum" in schema else ""


OPTIONS = tuple(
    Declared(
        name,
        "",
        f"{field.metadata['doc']}. Empty: as the spec has it.",
        _values(field.metadata["type"].schema),
        dynamic=True,
    )
    for name, field in keys_of(RunOptions).items()
    if field.metadata["flag"]
)
STATES = tuple(State)
ORIGINS = ("", "policy", "coast", "operator", "hold")
FACTS = ("state", "origin", "seam_step")  # columns of ~/executed after those of the row; then pairs of each source
SOURCE = ("ticks_since_observation", "weight")
WAIT_S = 0.1  # until the thread of the steps looks for its end again
ACKED_S = 0.5  # until the last zero velocity counts as lost
URDF_S = 10.0  # until a topic counts as one without a URDF
LEVELS = {State.RUN: DiagnosticStatus.OK, State.STOP: DiagnosticStatus.ERROR}


class PolicyRunner(ManagedNode):
    """Runs a policy; docs/reference/node.md has its topics and services.

    Attributes:
        shared_log: of the fusion node in this process, for the next run; it is not closed here.
    """

    logs = (__name__, FusedSubscriber.__module__, Pedal.__module__)
    parts: Run | None

    def __init__(self, **kwargs: Any) -> None:
        self.shared_log: RunLog | None = None
        super().__init__("policy_runner", (*PARAMETERS, *OPTIONS), **kwargs)
        self.report_with(lambda: [self.parts.status()] if self.parts else [])
        self.create_service(Trigger, "~/arm", self._on_arm)
        self.create_service(Trigger, "~/stop", self._on_stop)
        self.create_service(SetBool, "~/takeover", self._on_takeover)

    @logs_errors
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, start the policy, and create the subscriptions and publishers."""
        _, spec = self.read_spec()
        values = {each.name: read_parameter(self, each.name) for each in OPTIONS}
        given = {name: str(value) for name, value in values.items() if value not in ("", None)}
        options = replace(spec.run or RunOptions(), **read_values(RunOptions, given, flags=True))
        self.parts = Run(self, spec, options, self.shared_log)
        return SUCCESS

    @logs_errors
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to send commands, once the policy has planned."""
        assert self.parts
        self.parts.start(sim_time=bool(read_parameter(self, "use_sim_time")))
        return super().on_activate(state)

    @logs_errors
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop to send commands; velocities become zero."""
        assert self.parts
        self.parts.end()
        return super().on_deactivate(state)

    def act(self, action: str) -> None:
        """Do `takeover` (begin one, or end it), `stop` or `arm`, as the services do."""
        if self.parts is None:
            return
        if action == "takeover":
            self.parts.take_over(not self.parts.runner.in_takeover)
        elif action == "stop":
            self.parts.runner.stop("the operator stopped it")
        else:
            self.parts.runner.arm()

    def _on_arm(self, request: Any, response: Any) -> Any:
        if self.parts:
            self.parts.runner.arm()
        return self._answered(response, "armed: commands are sent after the next plan")

    def _on_stop(self, request: Any, response: Any) -> Any:
        if self.parts:
            self.parts.runner.stop("a call of ~/stop")
        return self._answered(response, "stopped; call ~/arm to start again")

    def _on_takeover(self, request: Any, response: Any) -> Any:
        if self.parts:
            self.parts.take_over(bool(request.data))
        return self._answered(response, "the operator commands" if request.data else "the policy commands")

    def _answered(self, response: Any, words: str) -> Any:
        response.success, response.message = self.configured, words if self.parts else "the node is not configured"
        return response


class Run:
    """Everything that exists between configure and cleanup.

    The runner is logged to `shared_log`, that of the fusion node; None: to a file of its own, if there is one.

    Raises:
        RoboCacheError: an output, the policy or the file cannot be.
    """

    def __init__(
        self, node: LifecycleNode, spec: FusionSpec, options: RunOptions, shared_log: RunLog | None = None
    ) -> None:
        self._node, self._spec = node, spec
        self.counters: Counter[str] = Counter()
        urdfs = read_urdf_files(options, Path(read_parameter(node, "spec")).parent)
        outputs = Outputs(spec, options, urdfs | {topic: _urdf_on(node, topic) for topic in options.urdf_topics})
        classes = {
            output.name: middleware.message_class(output.type, f"run.outputs.{output.name}")
            for output in outputs.outputs
        }
        self._pedal: Pedal | None = None  # while the node is active
        self._pedal_keys = {}
        if read_parameter(node, "pedal"):
            self._pedal_keys = read_keys(read_parameter(node, "pedal_keys"), ("takeover",))
        policy, device = read_parameter(node, "policy"), read_parameter(node, "device")
        with_options = replace(spec, run=options)
        if policy:
            check_policy(policy, with_options)
        self._state: tuple[State, bool] | None = None
        self._stops_silently = options.stop == "none"
        self._logged_error = ""
        self._problems: list[str] = []  # of the outputs, at the last report
        self._logged_problems: set[str] = set()
        self._clock: ClockReader | None = None  # in sim time, while the node is active
        self._sim_ns: int | None = None
        self._commands: process.Repeated | None = None  # while the node is active
        self._button, self._pressed = read_parameter(node, "takeover_button"), False
        with ExitStack() as made:  # so that nothing stays if one of them cannot be
            self._made = made
            file = read_parameter(node, "record_run")
            identified = identity(policy, device) if policy and (file or shared_log) else {}
            log = shared_log
            if file:
                log = RunLog(Path(file).expanduser(), spec)
                made.callback(log.close)
            self._run_log = log
            worker = ProcessWorker(policy, with_options, device, log) if policy else None
            if worker:
                made.callback(worker.close)
            self.runner = Runner(outputs, worker, log, identified)
            self._publishers = {
                output.name: self._output(classes[output.name], output.topic, depth=1) for output in outputs.outputs
            }
            self._executed = self._output(Float32MultiArray, "~/executed", depth=200)
            self._columns = self._publisher(String, "~/columns", middleware.latched())
            self._actions = self._output(JointState, "~/action", depth=200)
            self._interventions = self._publisher(Bool, "~/intervention", middleware.latched())
            self.take_over(False)
            described = {
                "columns": [*outputs.names, *FACTS],
                "sources": SOURCE,
                "states": [each.value for each in STATES],
                "origins": ORIGINS,
            }
            self._columns.publish(String(data=json.dumps(described)))
            self._subscribe(Float32MultiArray, "~/chunk", self._on_chunk, middleware.reliable(10))
            self._subscribe(Bool, "~/takeover", self._on_takeover, middleware.reliable(1))
            for output in options.outputs:
                if output.takeover:
                    self._subscribe_operator(output.name, output.takeover)
            if self._button >= 0:
                self._subscribe(Joy, "/joy", self._on_joy, middleware.clock(10))
            if guard := _start_guard(node, outputs):
                made.callback(guard.communicate, b"done\n")
            images = [stream.name for stream in spec.media if stream.role == "observation"]
            frames = FusedSubscriber(
                read_parameter(node, "fusion"), images=images, callback=self._on_frame, dtype=torch.uint8, node=node
            )
            made.callback(frames.close)
            self._made = made.pop_all()

    @property
    def active(self) -> bool:
        """Whether commands are sent."""
        return self._commands is not None

    def start(self, *, sim_time: bool) -> None:
        """Start the steps; with `sim_time` the ticks follow /clock."""
        if sim_time:
            self._clock = ClockReader(self._node, self.counters)
        if self._pedal_keys:
            self._pedal = Pedal(
                read_parameter(self._node, "pedal"),
                self._pedal_keys,
                lambda _, pressed: self.take_over(pressed),
                self._pedal_lost,
            )
        self._waiter = middleware.Waiter(self._node, 1)
        self.runner.arm()
        self._commands = process.Repeated("robocache-commands", self._step, self._stop_failed)
        self._commands.start()

    def take_over(self, active: bool) -> None:
        """Begin or end a takeover, and publish it."""
        self.runner.take_over(active)
        self._interventions.publish(Bool(data=active))

    def end(self) -> None:
        """End the steps and a takeover, and make velocities zero."""
        if self._pedal:
            self._pedal.close()
            self._pedal = None
        if self._commands:
            self._commands.stop()
            self._commands = None
            self._waiter.destroy()
            self._send_zero()
            if self._clock:
                self._clock.destroy()
                self._clock = None
            self.take_over(self._pressed)  # a button may still be held when the node is activated again

    def destroy(self) -> None:
        """End the steps and the policy, and release everything."""
        self.end()
        self._made.close()

    def status(self) -> DiagnosticStatus:
        """The state, its reason and the metrics."""
        runner = self.runner
        state, name = runner.state, self._node.get_fully_qualified_name().lstrip("/")
        message = ": ".join(filter(None, (state.value, runner.reason)))
        if runner.in_takeover:
            message = f"takeover; {message}"
        values = {"state": state.value, "reason": runner.reason, "last_error": runner.last_error}
        lost = {"run_log_lost": self._run_log.lost} if self._run_log else {}
        values |= {key: f"{value:g}" for key, value in {**runner.metrics(), **self.counters, **lost}.items()}
        problems = self._check_outputs()
        message = "; ".join([message, *problems])
        level = LEVELS.get(state, DiagnosticStatus.WARN)
        if runner.in_takeover or problems:
            level = DiagnosticStatus.WARN
        return diagnostics.status(name, "run", level, message, values)

    def _check_outputs(self) -> list[str]:
        """What keeps commands from a controller while they can be sent; logged once, if two reports in a row find it.

        A node that has just started does not know all subscriptions yet.
        """
        sending = self.active and self.runner.state is not State.STOP
        fusion = read_parameter(self._node, "fusion")
        found = [
            f"run.outputs.{output.name}: {text}"
            for output in (self.runner.outputs.outputs if sending else ())
            if (text := diagnostics.not_received(self._node, output.topic, output.type, fusion))
        ]
        lasting = set(found).intersection(self._problems)
        for text in sorted(lasting - self._logged_problems):
            log.warning("%s", text)
        self._problems, self._logged_problems = found, lasting
        return found

    def _step(self) -> None:
        """Send the commands of due ticks, and wait for the next one. An error stops the run, not the thread."""
        try:
            if (now_ns := self._now_ns()) is not None:
                for step in self.runner.advance(now_ns):
                    self._send(step, now_ns)
                self._log_error()
            self._wait()
        except Exception as error:
            self._stop_failed(error)

    def _wait(self) -> None:
        if self._clock:
            self._waiter.wait(round(WAIT_S * 1e9), [self._clock.subscription])
            if clocks := self._clock.take():
                self._sim_ns = clocks[-1][1]
                self._clock.set(self._sim_ns)
        elif self._commands:
            due_ns = self.runner.next_ns()
            left_s = WAIT_S if due_ns is None else (due_ns - time.time_ns()) / 1e9
            self._commands.stopped.wait(min(WAIT_S, max(0.0, left_s)))

    def _stop_failed(self, error: Exception) -> None:
        """Stop the run: the next ticks send what is sent after a stop or, where that fails too, zero velocities."""
        if not self._commands or self._commands.stopped.is_set():
            return
        if self.runner.state is not State.STOP:
            reason = f"commands could not be sent: {printable(repr(error), 150)}"
            self.runner.stop(reason)
            log.error("%s; call ~/arm to start again", reason, exc_info=error)
        elif not self._stops_silently:
            with suppress(Exception):  # the same error
                self._send_zero()
        self._commands.stopped.wait(1 / self._spec.rate_hz)

    def _send(self, step: Step, now_ns: int) -> None:
        for output, data in self.runner.messages(step, now_ns):
            self._publishers[output.name].publish(data)
        row = np.full(len(self.runner.outputs.names), np.nan, np.float32) if step.row is None else step.row
        sources = step.command.sources if step.command else ()
        facts = [STATES.index(step.state), ORIGINS.index(step.origin), step.seam_step]
        pairs = [value for observed, weight in sources for value in (step.tick - observed, weight)]
        window = np.concatenate([row, np.array([*facts, *pairs], np.float32)])[None]
        tick_ns = tick_grid.tick_ns(step.tick, self._spec.rate_hz)
        self._executed.publish(frame_messages.fused_cdr(tick_ns, window))
        by_operator = step.origin == "operator"
        self._actions.publish(self.runner.outputs.executed(step.row, tick_ns, intervention=by_operator))
        state = (step.state, by_operator)
        if state != self._state:
            self._state = state
            level = logging.ERROR if step.state is State.STOP else logging.INFO
            words = "; the operator commands" if state[1] else ""
            log.log(level, "%s%s%s", step.state.value, f": {self.runner.reason}" * bool(self.runner.reason), words)

    def _log_error(self) -> None:
        """Log an error of the policy when it is another one than before."""
        error = self.runner.last_error
        if error != self._logged_error:
            self._logged_error = error
            log.error("the policy: %s", error)

    def _send_zero(self) -> None:
        now_ns = self._now_ns() or time.time_ns()
        period_ns = tick_grid.period_ns(self._spec.rate_hz)
        for output in self.runner.outputs.velocities:
            publisher = self._publishers[output.name]
            publisher.publish(output.zero(now_ns, period_ns))
            publisher.wait_for_all_acked(Duration(seconds=ACKED_S))

    def _now_ns(self) -> int | None:
        return time.time_ns() if self._clock is None else self._sim_ns

    def _on_frame(self, frame: FusedFrame) -> None:
        """Called in the thread of the frames."""
        if frame.layout and not _same(frame.layout.spec, self._spec):
            self.runner.stop("the fusion node has another spec; start it with the spec of this node")
            return
        self.runner.frame(frame, tick_grid.first_at_or_after(frame.tick_ns, self._spec.rate_hz))

    def _on_chunk(self, message: Float32MultiArray) -> None:
        rate_hz = self._spec.rate_hz
        try:
            tick_ns, actions = frame_messages.read_fused(message)
            tick = tick_grid.first_at_or_after(tick_ns, rate_hz)
            if tick_grid.tick_ns(tick, rate_hz) != tick_ns:
                raise ValueError(f"{tick_ns} ns is not a tick of {rate_hz} Hz")
            outcome = self.runner.add(Chunk(tick, actions.numpy()))
        except (ValueError, TypeError, RuntimeError) as error:
            self._refuse("chunks_malformed", f"~/chunk: {error}; see docs/reference/node.md for its layout")
            return
        if outcome is Outcome.INVALID:
            width = self.runner.outputs.width
            self._refuse("chunks_refused", f"~/chunk: not finite (H, {width}) of a tick that was; correct the sender")

    def _on_takeover(self, message: Bool) -> None:
        if message.data != self.runner.in_takeover:
            self.take_over(bool(message.data))

    def _pedal_lost(self) -> None:
        """Stop if the operator commanded: the pedal cannot say how long."""
        if self.runner.in_takeover:
            self.runner.stop("the pedal was unplugged during a takeover")
            self.take_over(False)

    def _on_joy(self, message: Joy) -> None:
        pressed = self._button < len(message.buttons) and bool(message.buttons[self._button])
        if pressed != self._pressed:
            self._pressed = pressed
            self.take_over(pressed)

    def _subscribe_operator(self, name: str, topic: str) -> None:
        stream = self._spec.stream(name)
        decoder = make_decoder(stream, definitions(self._spec))

        def on_command(data: bytes) -> None:
            try:
                self.runner.operator(name, np.asarray(decoder.decode_cdr(data).value, np.float32))
            except Exception as error:
                self._refuse("operator_malformed", f"{printable(topic, 60)}: {error}; correct the sender")

        message_class = middleware.message_class(stream.type, f"run.outputs.{name}.takeover")
        self._subscribe(message_class, topic, on_command, middleware.profile(stream.qos), raw=True)

    def _publisher(self, *arguments: Any, **options: Any) -> Any:
        """Return a publisher that is destroyed with the run."""
        publisher = self._node.create_publisher(*arguments, **options)
        self._made.callback(self._node.destroy_publisher, publisher)
        return publisher

    def _output(self, message_class: type[Any], topic: str, depth: int) -> Any:
        """Return a publisher whose QoS parameters of the node can change."""
        return middleware.output(self._publisher, message_class, topic, depth)

    def _subscribe(self, *arguments: Any, **options: Any) -> Any:
        """Subscribe until the run is destroyed."""
        subscription = self._node.create_subscription(*arguments, **options)
        self._made.callback(self._node.destroy_subscription, subscription)
        return subscription

    def _refuse(self, counter: str, words: str) -> None:
        """Count a message that cannot be used, and log the first one of its kind."""
        if not self.counters[counter]:
            log.warning("%s; others are counted as %s in /diagnostics", printable(words, 150), counter)
        self.counters[counter] += 1


def _same(one: FusionSpec, other: FusionSpec) -> bool:
    return one is other or (one.streams, one.rate_hz) == (other.streams, other.rate_hz)


def _urdf_on(node: LifecycleNode, topic: str) -> str:
    """Return the newest text on a latched topic, without an executor; RoboCacheError if none comes."""
    subscription = middleware.raw_subscription(node, String, topic, middleware.latched())
    waiter, subscriber, end = middleware.Waiter(node, 1), RawSubscriber(), time.monotonic() + URDF_S
    try:
        while (received := subscriber.take(subscription)) is None:
            if time.monotonic() >= end:
                raise RoboCacheError(
                    f"run.outputs: no URDF on {printable(topic, 60)} within {URDF_S:g} s; "
                    "start robot_state_publisher, or give a file"
                )
            waiter.wait(round(WAIT_S * 1e9), [subscription])
        if len(received.data) > 2 * MAX_BYTES:
            raise RoboCacheError(f"run.outputs: the URDF on {printable(topic, 60)} is too large; give a file")
        return str(deserialize_message(bytes(received.data), String).data)
    finally:
        waiter.destroy()
        node.destroy_subscription(subscription)


def _start_guard(node: LifecycleNode, outputs: Outputs) -> subprocess.Popen[bytes] | None:
    """Start the process that sends zero velocity if this one is killed; None if no output is a velocity."""
    period_ns = tick_grid.period_ns(outputs.spec.rate_hz)
    by_clock = bool(read_parameter(node, "use_sim_time"))  # /clock may end too: the stamp stays 0, which is now
    zeros = [
        {
            "topic": node.resolve_topic_name(output.topic),
            "type": output.type,
            "data": base64.b64encode(output.zero(0, period_ns)).decode(),
            "stamped": output.is_stamped and not by_clock,
        }
        for output in outputs.velocities
    ]
    if not zeros:
        return None
    guard = subprocess.Popen(
        [sys.executable, "-m", "robocache_ros.nodes.velocity_guard"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert guard.stdin
    guard.stdin.write(json.dumps(zeros).encode() + b"\n")
    guard.stdin.flush()
    return guard


def main(args: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM; returns the exit status."""
    given = parse(
        "policy_runner", "Run a policy: frames of a fusion node in, commands out.", (*PARAMETERS, *OPTIONS), args
    )

    def start(nodes: list[PolicyRunner]) -> bool:
        return not read_parameter(nodes[0], "autostart") or nodes[0].autostart()

    return run_nodes("policy_runner", given, lambda: [PolicyRunner()], start)


def run_policy(
    policy: str,
    spec: str,
    device: str,
    fusion: str | None,
    given: Mapping[str, Any],
    *,
    use_sim_time: bool,
    record: str = "",
    control: Control | None = None,
) -> int:
    """Run a policy until Ctrl-C or SIGTERM; returns the exit status.

    Args are parameters of the node, `given` options of the run and the operator's devices, and `control` as of
    `run_nodes`. `fusion` is the name of a running fusion node; None: one is made in this process. `record` is the file
    of a new run log; empty: none.
    """
    common = {"spec": spec, "use_sim_time": use_sim_time, "device": device}
    values = {**common, "policy": policy, "fusion": fusion or "fusion_node", **given}
    values["record_run"] = record if fusion else ""

    def make() -> list[ManagedNode]:
        own = {**common, "device": "cpu", "record_run": record}
        fusing = [] if fusion else [FusionNode(parameter_overrides=_overrides(own))]
        return [*fusing, PolicyRunner(parameter_overrides=_overrides(values))]

    def start(nodes: list[Any]) -> bool:
        if fusion is None:
            if nodes[0].trigger_configure() != SUCCESS:
                return False
            nodes[1].shared_log = nodes[0].parts.run_log
            if nodes[0].trigger_activate() != SUCCESS:
                return False
        return bool(nodes[-1].autostart())

    return run_nodes("policy_runner", ["policy_runner"], make, start, control)


def _overrides(values: Mapping[str, Any]) -> list[Parameter[Any]]:
    return [Parameter(name, value=value) for name, value in values.items()]


if __name__ == "__main__":
    sys.exit(main())
