"""The ROS node that records episodes: the bytes of the topics of a spec, from start to end."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType  # type: ignore[attr-defined]  # its module in Humble
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import Joy
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from robocache_ros.decode import definitions_of
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.nodes import middleware, process
from robocache_ros.nodes.managed_node import (
    ERROR,
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
from robocache_ros.nodes.subscriptions import RawSubscriber, message_class
from robocache_ros.recorder.episodes import (
    EpisodeLabels,
    EpisodeWriter,
    Message,
    RecordedTopic,
    RecordingsFolder,
    describe_session,
)
from robocache_ros.recorder.mcap import definition_text
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec, QosSpec, StreamSpec

ACTIONS = ("start", "success", "failure", "discard", "rerecord", "toggle")
PARAMETERS = (
    Declared("spec", "", "Path of the fusion spec (YAML), whose topics are recorded."),
    Declared("out", "recordings", "Folder of the episodes; discarded ones are moved to its folder trash."),
    Declared("extra", "", "More topics to record.", "<topic> <topic> ..."),
    Declared(
        "runner", "policy_runner", "Policy runner of which the executed commands are recorded too; empty: none is."
    ),
    Declared("robot", "", "Name of the robot, for the metadata."),
    Declared(
        "silent_s", 2.0, "A stream without a message for this long is silent, and no episode starts.", "", (0.1, 600)
    ),
    Declared("joy_topic", "/joy", "Topic of the game pad whose buttons are in joy_buttons."),
    Declared(
        "joy_buttons", "", "Number of the button for each action.", "start=0,success=1,failure=2,discard=3,rerecord=4"
    ),
    Declared("pedal", "", "Foot pedal, or another device with keys.", "/dev/input/by-id/..."),
    Declared(
        "pedal_keys",
        "rerecord=KEY_A,toggle=KEY_B,failure=KEY_C",
        "Key of the pedal for each action; toggle starts an episode, or ends it as a success.",
        "<action>=<key>,...",
    ),
    Declared("autostart", False, "Configure and activate at the start.", read_only=True),
    Declared("task", "", "What the robot does in the next episodes, in words; can be changed at any time."),
    Declared("operator", "", "Who controls the robot in the next episodes; can be changed at any time."),
)
CHANGEABLE = ("task", "operator")
CHECK_S = 0.5  # period at which publishers, the disk and the state are checked
IDLE_NS = 100_000_000  # how often the thread checks whether to stop
BATCH = 64  # messages of a topic in a row
MAX_EXTRA = 1000
SMALL_DEPTH, LARGE_DEPTH = 1000, 60  # messages that the middleware queues for a busy recorder
MAX_LATCHED = 100  # messages of a latched topic that are kept for the next episodes
CLOCK = "/clock"
RUNNER_TOPICS = ("action", "executed", "columns", "intervention")  # of a policy runner


@dataclass
class _Subscribed:
    """A topic, its subscription and what was received.

    Attributes:
        streams: of the spec, by name.
        occasional: whether it may be silent: it is latched, or held, or says how an episode went.
        is_guess: whether no publisher was there to offer the QoS of the subscription.
        wanted: QoS that the receiving thread subscribes with next.
        newest_s: monotonic time of the newest message; None: there is none since it is received as publishers offer.
        latched: newest messages of a latched topic.
    """

    topic: RecordedTopic
    message_class: type[Any]
    streams: tuple[str, ...]
    needed: bool
    occasional: bool
    large: bool
    name: str  # after remapping
    qos: QosSpec
    subscription: Any
    is_guess: bool = True
    wanted: QosSpec | None = None
    newest_s: float | None = None
    latched: deque[Message] = field(default_factory=lambda: deque(maxlen=MAX_LATCHED))


class _Receiver:
    """Receives the serialized messages of topics in a thread, and gives them to an episode while there is one."""

    def __init__(self, node: LifecycleNode, most: int, failed: Callable[[Exception], None]) -> None:
        self.topics: list[_Subscribed] = []
        self.episode: EpisodeWriter | None = None
        self._node = node
        self._subscriber = RawSubscriber()
        self._lock = threading.Lock()  # of `episode`, and of the latched messages
        self._waiter = middleware.Waiter(node, most)
        self._thread = process.Repeated("robocache-recorder", self._step, failed)

    def add(self, name: str, kind: type[Any], kind_name: str, streams: Sequence[StreamSpec] = ()) -> None:
        """Subscribe to a topic."""
        first = streams[0] if streams else None
        qos = first.qos if first and first.qos.reliability != "auto" else QosSpec("best_effort")
        definition = "" if kind_name == TF_TYPE else definition_text(kind_name, definitions_of(kind))
        held = all(stream.on_invalid == "hold" or stream.is_outcome for stream in streams)
        large = first is not None and first.kind != "vector"
        added = _Subscribed(
            RecordedTopic(name, kind_name, definition, name == TF_STATIC),
            kind,
            tuple(stream.name for stream in streams),
            any(not stream.is_outcome for stream in streams) and name != TF_STATIC,
            held,
            large,
            self._node.resolve_topic_name(name),
            qos,
            None,
        )
        offered = self._offered(added)
        self._subscribe(added, offered or replace(qos, depth=_depth(added)))
        added.is_guess = offered is None
        self.topics = [*self.topics, added]

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self, episode: EpisodeWriter) -> None:
        """Give an episode the latched messages, and all that come from now on."""
        with self._lock:
            now_ns = time.time_ns()
            for topic in self.topics:
                for message in topic.latched if topic.topic.latched else ():
                    episode.put(message._replace(topic=topic.topic, log_ns=now_ns))
            self.episode = episode

    def take_episode(self) -> EpisodeWriter | None:
        """Return the episode, which gets no more messages."""
        with self._lock:
            episode, self.episode = self.episode, None
        return episode

    def check_publishers(self) -> None:
        """Have topics subscribed to again whose publishers offer more or less than their subscription asks for."""
        for topic in self.topics:
            self._check(topic)

    def destroy(self) -> None:
        """Stop, and destroy the subscriptions."""
        self._thread.stop()
        self._waiter.destroy()
        for topic in self.topics:
            self._node.destroy_subscription(topic.subscription)
        self.topics = []

    def _check(self, topic: _Subscribed) -> None:
        """Look at the publishers of a topic, and have it subscribed to as they offer.

        Until the new subscription has a message the stream is silent, so that no episode starts in between.
        """
        if self._is_kept(topic):
            return
        offered = self._offered(topic)
        with self._lock:
            topic.is_guess = offered is None
            if offered:
                topic.wanted = offered if offered != topic.qos else None
            if topic.wanted and not topic.occasional:  # the next message of an occasional one may be far away
                topic.newest_s = None

    def _is_kept(self, topic: _Subscribed) -> bool:
        """Whether the subscription stays as it is: an episode would lose messages between two subscriptions."""
        return self.episode is not None and topic.newest_s is not None

    def _offered(self, topic: _Subscribed) -> QosSpec | None:
        """The strictest QoS that all publishers offer; None without publishers."""
        if topic.topic.name == TF_STATIC:
            return QosSpec("reliable", "transient_local", MAX_LATCHED)
        offered = [publisher.qos_profile for publisher in self._node.get_publishers_info_by_topic(topic.name)]
        if not offered:
            return None
        latched = all(each.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in offered)
        reliability = "best_effort" if middleware.any_best_effort(offered) else "reliable"
        return QosSpec(reliability, "transient_local" if latched else "volatile", _depth(topic))

    def _subscribe(self, topic: _Subscribed, qos: QosSpec) -> None:
        latched = qos.durability == "transient_local"
        topic.qos, topic.topic, topic.latched = qos, replace(topic.topic, latched=latched), deque(maxlen=MAX_LATCHED)
        topic.subscription = middleware.raw_subscription(
            self._node, topic.message_class, topic.topic.name, middleware.profile(qos)
        )

    def _subscribe_again(self, topic: _Subscribed, wanted: QosSpec) -> None:
        """Subscribe with another QoS, unless an episode has messages of the topic. For the receiving thread."""
        with self._lock:
            kept = self._is_kept(topic)
        if not kept:
            self._node.destroy_subscription(topic.subscription)
            self._subscribe(topic, wanted)
        with self._lock:
            if topic.wanted == wanted:  # else publishers have changed since
                topic.wanted = None

    def _step(self) -> None:
        topics = self.topics
        if not max([self._receive(topic) for topic in topics], default=False):
            self._waiter.wait(IDLE_NS, [topic.subscription for topic in topics])

    def _receive(self, topic: _Subscribed) -> bool:
        """Receive waiting messages of a topic; returns whether there may be more."""
        received = None
        for _ in range(BATCH):
            received = self._subscriber.take(topic.subscription)
            if received is None:
                break
            if topic.is_guess:  # now there is a publisher
                self._check(topic)
            now_ns = received.received_ns or time.time_ns()
            message = Message(topic.topic, now_ns, received.source_ns or now_ns, received.data)
            with self._lock:
                if self.episode or topic.occasional or not (topic.is_guess or topic.wanted):
                    topic.newest_s = time.monotonic()
                if topic.topic.latched:
                    self._keep(topic, message)
                if self.episode:
                    self.episode.put(message)
        if topic.wanted:
            self._subscribe_again(topic, topic.wanted)
        return received is not None

    def _keep(self, topic: _Subscribed, message: Message) -> None:
        """Keep the newest messages of a latched topic: all of /tf_static, of others one for each publisher."""
        most = MAX_LATCHED
        if topic.topic.name != TF_STATIC:
            most = max(1, self._node.count_publishers(topic.name))
        topic.latched.append(message)
        while len(topic.latched) > most:
            topic.latched.popleft()


def _depth(topic: _Subscribed) -> int:
    return LARGE_DEPTH if topic.large else SMALL_DEPTH


class EpisodeRecorder(ManagedNode):
    """Records episodes on `~/start`, `~/end`, `~/discard` and `~/rerecord`, and publishes its state on `~/state`."""

    def __init__(self, **kwargs: Any) -> None:
        self._spec: FusionSpec | None = None
        self._receiver: _Receiver | None = None  # while the node is active
        super().__init__("episode_recorder", PARAMETERS, CHANGEABLE, **kwargs)
        self._folder: RecordingsFolder | None = None
        self._session: dict[str, str] = {}
        self._classes: dict[str, type[Any]] = {}
        self._extra: list[str] = []  # topics that no publisher has shown the type of yet
        self._last: tuple[Path, str] | None = None  # file and outcome of the last episode
        self._reason = ""  # of the last outcome or refusal
        self._labels = EpisodeLabels()
        self._started_ns = 0
        self._joy_actions: dict[int, str] = {}  # by button
        self._pressed: list[int] = []
        self._pedal_keys: dict[str, str] = {}  # action by key
        self._pedal: Pedal | None = None
        self._lock = threading.RLock()  # of the actions, which services and a terminal call
        self._state = self.create_publisher(String, "~/state", middleware.latched())
        for action in ("start", "discard", "rerecord"):
            self.create_service(Trigger, f"~/{action}", partial(self._serve, getattr(self, action)))
        self.create_service(
            SetBool,
            "~/end",
            lambda request, response: self._serve(partial(self.end, success=bool(request.data)), request, response),
        )
        self._joy: Any = None
        self.create_timer(CHECK_S, self._check, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._publish_state()

    @property
    def configured(self) -> bool:
        """Whether there is a spec."""
        return self._spec is not None

    @property
    def active(self) -> bool:
        """Whether messages are received and episodes can start."""
        return self._receiver is not None

    @property
    def recording(self) -> bool:
        """Whether an episode is being recorded."""
        return self._receiver is not None and self._receiver.episode is not None

    def start(self) -> str:
        """Start an episode; returns a line about it.

        Raises:
            RoboCacheError: the node is not active, an episode is recorded already, a stream of the spec is silent, or
                the file cannot be written.
        """
        with self._lock:
            receiver = self._active()
            if receiver.episode:
                raise RoboCacheError(f"start: {_shown(receiver.episode.path)} is being recorded; end it first")
            receiver.check_publishers()
            if silent := self.silent():
                names = printable(", ".join(silent), 100)
                verb = "is" if len(silent) == 1 else "are"
                raise RoboCacheError(f"start: {names} {verb} silent; start the drivers, or remove them from the spec")
            assert self._folder
            self._labels = EpisodeLabels(
                *(str(read_parameter(self, name)).strip() for name in ("task", "operator", "robot"))
            )
            self._started_ns = time.time_ns()
            metadata = {**self._session, **vars(self._labels)}
            episode = self._folder.start(metadata, [topic.topic for topic in receiver.topics])
            receiver.begin(episode)
            self._reason = ""
            return self._said(f"{_shown(episode.path)}: recording")

    def end(self, *, success: bool) -> str:
        """End the episode; returns a line about it.

        Raises:
            RoboCacheError: no episode is recorded, or its file is incomplete because the disk failed.
        """
        return self._end("success" if success else "failure")

    def discard(self) -> str:
        """Move the episode to the trash; if none is recorded, the last one.

        Raises:
            RoboCacheError: there is none.
        """
        with self._lock:
            if self.recording:
                return self._end("discarded")
            self._active()
            if self._last is None or self._last[1] == "discarded" or not self._folder:
                raise RoboCacheError("discard: no episode was recorded since the last one in the trash; record one")
            self._last = (self._folder.discard(self._last[0]), "discarded")
            return self._said(f"{_shown(self._last[0])}: moved to the trash")

    def rerecord(self) -> str:
        """Discard the episode, or the last one, and start another.

        Raises:
            RoboCacheError: see `start` and `discard`.
        """
        with self._lock:
            self.discard()
            return self.start()

    def silent(self) -> list[str]:
        """The streams of the spec without a message for `silent_s`, with their topics."""
        if self._receiver is None:
            return []
        oldest_s = time.monotonic() - read_parameter(self, "silent_s")
        return [
            f"{', '.join(topic.streams)} ({printable(topic.name, 60)})"
            for topic in self._receiver.topics
            if topic.needed
            and (
                topic.newest_s is None
                or topic.wanted  # the present subscription may lose messages
                or (topic.newest_s < oldest_s and not (topic.occasional or topic.topic.latched))
            )
        ]

    @logs_errors
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, and complete the files that a killed recorder left."""
        path, spec = self.read_spec()
        self._classes = {feed.topic: message_class(feed) for feed in spec.feeds}
        if spec.framed or spec.transforms:
            self._classes[TF_STATIC] = message_class(StreamSpec(TF_STATIC, TF_STATIC, TF_TYPE))
        labels = (spec.dataset.episode_topic, spec.dataset.task_topic) if spec.dataset else ()  # an export reads them
        extra = dict.fromkeys(
            [*read_parameter(self, "extra").split(), *filter(None, labels), *self._topics_of_runner()]
        )
        if read_parameter(self, "use_sim_time"):
            extra[CLOCK] = None
        if len(extra) > MAX_EXTRA:
            raise RoboCacheError(f"parameter extra: {len(extra):,} topics; at most {MAX_EXTRA:,} are recorded")
        self._extra = [name for name in extra if name not in self._classes]
        self._joy_actions = _joy_actions(read_parameter(self, "joy_buttons"))
        self._pedal_keys = {}
        if read_parameter(self, "pedal"):
            self._pedal_keys = read_keys(read_parameter(self, "pedal_keys"), ACTIONS)
        self._folder = RecordingsFolder(Path(read_parameter(self, "out")).expanduser())
        versions = {"rmw": get_rmw_implementation_identifier(), "ros_distro": os.environ.get("ROS_DISTRO", "")}
        self._session = describe_session(spec, versions, Path(path).absolute().parent)
        self._spec = spec
        self.get_logger().info(f"{path}: {number_of(len(self._classes), 'topic')}, to {self._folder.path}")
        return SUCCESS

    @logs_errors
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to receive messages."""
        assert self._spec
        receiver = _Receiver(self, len(self._classes) + len(self._extra), self.fail)
        for name, kind in self._classes.items():
            streams = tuple(feed for feed in self._spec.feeds if feed.topic == name)
            receiver.add(name, kind, streams[0].type if streams else TF_TYPE, streams)
        receiver.start()
        self._receiver = receiver
        if self._joy_actions:
            topic, self._pressed = read_parameter(self, "joy_topic"), []
            self._joy = self.create_subscription(Joy, topic, self._on_joy, middleware.clock(10))
        try:
            if self._pedal_keys:
                self._pedal = Pedal(read_parameter(self, "pedal"), self._pedal_keys, self._on_pedal)
        except RoboCacheError:
            self._stop()
            raise
        self._publish_state()
        return super().on_activate(state)

    @logs_errors
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End an episode, whose outcome is then unknown, and stop to receive messages."""
        self._stop()
        return ERROR if self.failure else super().on_deactivate(state)

    def release(self) -> None:
        """Stop, and forget the spec."""
        self._stop()
        self._spec = None

    def _topics_of_runner(self) -> list[str]:
        runner = read_parameter(self, "runner").strip()
        if runner and not runner.startswith("/"):
            runner = f"{self.get_namespace().rstrip('/')}/{runner}"
        return [f"{runner}/{name}" for name in RUNNER_TOPICS if runner]

    def _active(self) -> _Receiver:
        if self._receiver is None:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()}"
            raise RoboCacheError(f"recorder: it is not active; run: {command} configure, then activate")
        return self._receiver

    def _end(self, outcome: str, reason: str = "") -> str:
        with self._lock:
            episode = self._active().take_episode()
            if episode is None:
                raise RoboCacheError("end: no episode is being recorded; start one first")
            assert self._folder
            self._last = self._folder.end(episode, outcome, reason)
            file, found = self._last
            lost = episode.lost.total()
            said = f"{_shown(file)}: {found}, {number_of(episode.received.total() - lost, 'message')}"
            if lost:
                said += f", {lost:,} lost ({printable(', '.join(episode.lost), 60)})"
            self._reason = episode.error or reason
            self._said(said, is_loss=bool(lost))
            if found == "error":
                raise RoboCacheError(episode.error)
            return said

    def _said(self, line: str, *, is_loss: bool = False) -> str:
        if is_loss:  # a call for each level: rclpy refuses a call site that logs at two
            self.get_logger().warning(line)
        else:
            self.get_logger().info(line)
        self._publish_state()
        return line

    def _serve(self, action: Callable[[], str], request: Any, response: Any) -> Any:
        try:
            response.success, response.message = True, action()
        except RoboCacheError as error:
            response.success, response.message = False, str(error)
        return response

    def _on_joy(self, message: Any) -> None:
        pressed = list(message.buttons)
        before = self._pressed + [0] * (len(pressed) - len(self._pressed))
        self._pressed = pressed
        for button, action in self._joy_actions.items():
            if button < len(pressed) and pressed[button] and not before[button]:
                self.act(action)

    def _on_pedal(self, action: str, pressed: bool) -> None:
        if pressed:
            self.act(action)

    def act(self, action: str) -> None:
        """Do one of ACTIONS; a refusal is logged."""
        if action == "toggle":
            action = "success" if self.recording else "start"
        calls = {"success": partial(self.end, success=True), "failure": partial(self.end, success=False)}
        try:
            calls.get(action, getattr(self, action, self.start))()
        except RoboCacheError as error:
            self._reason = str(error)
            self.get_logger().warning(str(error))
            self._publish_state()

    def _check(self) -> None:
        with self._lock:
            if self._receiver:
                self._subscribe_to_extra(self._receiver)
                self._receiver.check_publishers()
                if self._receiver.episode and self._receiver.episode.error:
                    self.act("failure")  # the file states the error
        self._publish_state()

    def _subscribe_to_extra(self, receiver: _Receiver) -> None:
        there = {topic.topic.name for topic in receiver.topics}
        for name in [name for name in self._extra if name not in there]:
            publishers = self.get_publishers_info_by_topic(self.resolve_topic_name(name))
            kind = publishers[0].topic_type if publishers else ""
            found = middleware.load_message_class(kind) if kind else None
            if found:
                receiver.add(name, found, kind)
            elif kind:
                self._extra.remove(name)
                self.get_logger().error(
                    f"{printable(name, 60)}: {printable(kind, 60)} is not installed, so it is not recorded; "
                    "source the workspace that it is in"
                )

    def _publish_state(self) -> None:
        receiver = self._receiver
        episode = receiver.episode if receiver else None
        content: dict[str, Any] = {
            "state": "recording" if episode else "idle" if receiver else "inactive",
            "silent": self.silent(),
            "reason": self._reason,
        }
        if episode:
            content |= {
                "episode": _shown(episode.path),
                "task": self._labels.task,
                "duration_s": round((time.time_ns() - self._started_ns) / 1e9, 1),
                "messages": episode.received.total(),
                "lost": dict(episode.lost),
            }
        if self._last:
            content["last"] = {"file": str(self._last[0]), "outcome": self._last[1]}
        self._state.publish(String(data=json.dumps(content)))

    def _stop(self) -> None:
        if self._pedal:  # not under the lock, which its thread may wait for
            self._pedal.close()
            self._pedal = None
        with self._lock:
            if self.recording:
                with suppress(RoboCacheError):  # it is logged
                    self._end("unknown", "the recorder was stopped")
            if self._receiver:
                self._receiver.destroy()
                self._receiver = None
            if self._joy:
                self.destroy_subscription(self._joy)
                self._joy = None
            if self.context.ok():
                self._publish_state()

    def _check_change(self, changed: list[Parameter[Any]]) -> SetParametersResult:
        result = super()._check_change(changed)
        for parameter in changed if result.successful else ():
            if parameter.name in (*CHANGEABLE, "robot"):
                try:
                    EpisodeLabels(**{parameter.name: str(parameter.value)})
                except RoboCacheError as error:
                    result = SetParametersResult(successful=False, reason=str(error))
        return result


def _shown(path: Path) -> str:
    return printable(path.name.partition(".")[0], 60)


def _joy_actions(text: str) -> dict[int, str]:
    """The actions by the number of their button; RoboCacheError if an entry is not action=number."""
    found: dict[int, str] = {}
    for entry in text.split(",") if text.strip() else ():
        action, _, number = (part.strip() for part in entry.partition("="))
        if action not in ACTIONS or not (number.isascii() and number.isdecimal() and len(number) < 4):
            raise RoboCacheError(
                f"parameter joy_buttons: '{printable(entry.strip(), 40)}' is not <action>=<button>; "
                f"the actions are {', '.join(ACTIONS)}"
            )
        found[int(number)] = action
    return found


def main(args: list[str] | None = None, control: Control | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM; returns the exit status.

    Args:
        args: ROS arguments; None: of the command line.
        control: runs in a thread with the active node, and says whether the program ends when it returns.
    """

    def start(nodes: list[EpisodeRecorder]) -> bool:
        started = not (control or read_parameter(nodes[0], "autostart")) or nodes[0].autostart()
        if not (started or control):  # without keys, a node that cannot start waits for the next transition
            nodes[0].warn_that_it_waits()
        return started or not control

    name = "episode_recorder"
    return run_nodes(name, parse(name, __doc__, PARAMETERS, args), lambda: [EpisodeRecorder()], start, control)


if __name__ == "__main__":
    sys.exit(main())
