"""The simulated robot as its drivers publish it: serialized messages in the order of their publication."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from robocache_ros.bags.source import RawMessage
from robocache_ros.decode.cdr import CdrWriter
from robocache_ros.errors import RoboCacheError
from robocache_ros.sim.expert import Expert
from robocache_ros.sim.so101 import IMAGE_SIZE, JOINTS, STEP_NS, Float64, So101
from robocache_ros.units import NS_PER_S

TICK_NS = 20_000_000  # of commands and poses
START_NS = 1_000 * NS_PER_S
IMAGE_HZ = 30
IMAGE_DELAY_NS, IMAGE_JITTER_NS = 38_000_000, 3_000_000  # from the exposure to the publication; standard deviation
FRAME = "base"
AFTER_NS, LONGEST_NS = 500_000_000, 15 * NS_PER_S  # of an episode: after its success, and in all
STAY_NS = 3 * NS_PER_S // 2  # that the expert stays when it is done, so that a policy learns to

JOINT_STATES, COMMANDS = "/so101/joint_states", "/so101/commands"
BLOCK, GOAL = "/so101/block_pose", "/so101/goal_pose"
IMAGES = "/so101/front/image_raw"
SUCCESS, EPISODE = "/so101/success", "/so101/episode"
OPERATOR = "/so101/operator"  # the commands of the expert while it advises, as those of COMMANDS
# Topic -> message type.
TYPES = {
    JOINT_STATES: "sensor_msgs/msg/JointState",
    BLOCK: "geometry_msgs/msg/PoseStamped",
    GOAL: "geometry_msgs/msg/PoseStamped",
    IMAGES: "sensor_msgs/msg/Image",
    COMMANDS: "sensor_msgs/msg/JointState",  # stamped, so that the tick of a command is exact in a recording
    SUCCESS: "std_msgs/msg/Bool",
    EPISODE: "std_msgs/msg/Bool",  # true inside of an episode
}


@dataclass(frozen=True)
class SimOptions:
    """What is simulated.

    Attributes:
        camera: render images, which takes most of the time.
        image_size: height and width of them.
        disturbance: standard deviation of the noise on the commands of the expert, as they are executed, in rad; the
            recorded ones have none, so that demonstrations show how to correct errors
            (DART, https://arxiv.org/abs/1703.09327).
        recoveries: share of the episodes that begin after a failed grasp or placement: the gripper is open and above
            the block, which in half of them lies beside the goal.
    """

    camera: bool = True
    image_size: tuple[int, int] = IMAGE_SIZE
    disturbance: float = 0.0
    recoveries: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.recoveries <= 1:
            raise RoboCacheError(f"recoveries: {self.recoveries} is not in 0..1; give the share of the episodes")
        if not 0 <= self.disturbance <= 1:
            raise RoboCacheError(f"disturbance: {self.disturbance} is not in 0..1 rad; give a small number")
        if not all(8 <= size <= 4096 for size in self.image_size):
            raise RoboCacheError(f"image_size: {self.image_size} is not in 8..4096; give height and width")


class Simulation:
    """Steps the robot, and returns what its drivers publish.

    Joint states come at 500 Hz, the poses of block and goal at 50 Hz, images at 30 Hz, each published 38 ms after its
    exposure, give or take a seeded jitter.

    Args:
        options: what is simulated.
        start_ns: time of the first message, a multiple of `TICK_NS`.

    Attributes:
        robot: the arm and its scene.
        expert: the scripted expert; it acts while `expert_on`, and publishes what it would do while `advises`.
        now_ns: time of the simulation.
    """

    def __init__(self, options: SimOptions = SimOptions(), start_ns: int = START_NS) -> None:
        if start_ns < 0 or start_ns % TICK_NS:
            raise RoboCacheError(f"start_ns: {start_ns} is not a multiple of {TICK_NS} from 0 on; give one")
        self.options = options
        self.robot = So101(options.image_size)
        self.expert = Expert(self.robot)
        self.expert_on = self.advises = False
        self.now_ns = self._start_ns = start_ns
        self._images = 0  # rendered
        self._waiting: list[tuple[int, int, RawMessage]] = []  # by time of publication
        self._numbers = itertools.count()
        self._shown: dict[str, bool] = {}  # the newest value on each topic of a bool
        self._is_running = False
        self.begin(0, expert=False)

    def begin(self, seed: int, *, expert: bool) -> None:
        """Begin an episode: put the robot and the scene where the seed says. The time goes on."""
        self.robot.reset(seed)
        self.expert.reset()
        random = np.random.default_rng((seed, 2))
        if random.random() < self.options.recoveries:
            self.expert.begin_after_failure(random)
        self.expert_on = expert
        self._random = np.random.default_rng((seed, 1))
        self._noise: Float64 = np.zeros(len(JOINTS))
        self._is_running = True
        self._shown.clear()  # each recording of an episode has them
        self._begun_ns = self._open_ns = self.now_ns  # the newest time at which the task was not done

    def end(self) -> None:
        """End the episode; the robot stays as it is."""
        self._is_running = self.expert_on = False

    def switch_expert(self, *, on: bool) -> None:
        """Let the expert act, from its first phase on, or no longer."""
        if on and not self.expert_on:
            self.expert.reset()
        self.expert_on = on

    def advise(self, *, on: bool) -> None:
        """Let the expert publish its commands for an operator, from its first phase on, or no longer."""
        if on and not self.advises:
            self.expert.reset()
        self.advises = on

    @property
    def episode_has_ended(self) -> bool:
        """Whether a success was `AFTER_NS` ago, the expert done `STAY_NS` ago, or the start `LONGEST_NS` ago."""
        after_ns = STAY_NS if self.expert_on else AFTER_NS
        return self.now_ns - self._open_ns >= after_ns or self.now_ns - self._begun_ns >= LONGEST_NS

    def command(self, targets: Sequence[float] | Float64) -> None:
        """Set the targets of the joints, in rad; RoboCacheError: they are not six finite numbers."""
        self.robot.command(np.asarray(targets, np.float64))

    @property
    def at_tick(self) -> bool:
        """Whether a command is due now."""
        return self.now_ns % TICK_NS == 0

    def publish(self) -> Iterator[RawMessage]:
        """Return the messages of now, and the images that became due since the last step; then commands are due."""
        robot, now_ns = self.robot, self.now_ns
        while self._waiting and self._waiting[0][0] <= now_ns:
            yield heapq.heappop(self._waiting)[2]
        yield _message(JOINT_STATES, now_ns, joint_state_cdr(now_ns, JOINTS, robot.positions, robot.velocities))
        if self.at_tick:
            yield _message(BLOCK, now_ns, pose_cdr(now_ns, FRAME, robot.block))
            yield _message(GOAL, now_ns, pose_cdr(now_ns, FRAME, np.array([*robot.goal, 1, 0, 0, 0])))
        for topic, value in ((EPISODE, self._is_running), (SUCCESS, robot.is_success)):
            if self._shown.get(topic) is not value:
                self._shown[topic] = value
                yield _message(topic, now_ns, bool_cdr(value))
        if self.options.camera and now_ns >= self._start_ns + self._images * NS_PER_S // IMAGE_HZ:
            self._images += 1
            delay_ns = max(0, IMAGE_DELAY_NS + round(self._random.normal() * IMAGE_JITTER_NS))
            due_ns = -(-(now_ns + delay_ns) // STEP_NS) * STEP_NS
            image = _message(IMAGES, due_ns, image_cdr(now_ns, FRAME, robot.image()))
            heapq.heappush(self._waiting, (due_ns, next(self._numbers), image))
        if self.at_tick and (self.expert_on or self.advises):
            targets = self.expert.act()
            commands = joint_state_cdr(now_ns, JOINTS, targets, NO_VALUES)
            yield _message(COMMANDS if self.expert_on else OPERATOR, now_ns, commands)
            if self.expert_on:
                self.command(self._disturbed(targets))

    def step(self) -> None:
        """Go on by one step of the physics."""
        self.robot.step()
        self.now_ns += STEP_NS
        if not (self.expert.is_done if self.expert_on else self.robot.is_success):
            self._open_ns = self.now_ns

    def close(self) -> None:
        """Release the renderer."""
        self.robot.close()

    def _disturbed(self, targets: Float64) -> Float64:
        """Targets with noise that changes slowly, so that it moves the arm."""
        if not self.options.disturbance:
            return targets
        keep = 0.95
        scale = self.options.disturbance * (1 - keep**2) ** 0.5
        self._noise = keep * self._noise + scale * self._random.normal(size=len(JOINTS)) * _DISTURBED
        return targets + self._noise


_DISTURBED = np.array([1, 1, 1, 1, 1, 0])  # not the gripper
NO_VALUES: Float64 = np.zeros(0)


def episode(simulation: Simulation, seed: int) -> Iterator[RawMessage]:
    """Run the expert from a start, and return all messages; `simulation.robot.is_success` then says how it ended."""
    simulation.begin(seed, expert=True)
    while not simulation.episode_has_ended:
        yield from simulation.publish()
        simulation.step()
    simulation.end()


def _message(topic: str, log_ns: int, data: bytes) -> RawMessage:
    return RawMessage(topic, log_ns, data)


def joint_state_cdr(stamp_ns: int, names: Sequence[str], positions: Float64, velocities: Float64) -> bytes:
    """A sensor_msgs/JointState without efforts."""
    cdr = CdrWriter().header(stamp_ns, "").texts(names)
    return cdr.doubles(positions).doubles(velocities).doubles(NO_VALUES).done()


def pose_cdr(stamp_ns: int, frame: str, pose: Float64) -> bytes:
    """A geometry_msgs/PoseStamped of (7,): position, and the quaternion (w, x, y, z)."""
    x, y, z, qw, qx, qy, qz = pose
    return CdrWriter().header(stamp_ns, frame).put("d", x, y, z, qx, qy, qz, qw).done()


def image_cdr(stamp_ns: int, frame: str, pixels: np.typing.NDArray[np.uint8]) -> bytes:
    """A sensor_msgs/Image of (H, W, 3) RGB."""
    height, width, channels = pixels.shape
    cdr = CdrWriter().header(stamp_ns, frame).put("I", height, width).text("rgb8").put("B", 0)
    return cdr.put("I", width * channels).raw(pixels.tobytes()).done()


def bool_cdr(value: bool) -> bytes:
    """A std_msgs/Bool."""
    return CdrWriter().put("B", value).done()
