"""A scripted expert that carries the block to the goal, for demonstrations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from robocache_ros.sim.so101 import APART_M, PLACED_M, REACH_M, Float64, So101, model_modules

PERIOD_S = 0.02  # of the commands
SPEED_M_S, CAREFUL_M_S = 0.25, 0.10  # through the air; with the jaws at the block
GRIPPER_RAD_S = 3.0
CLOSED_RAD, OPEN_RAD = 0.25, 1.3  # the block is held at 0.40 to 0.46
EMPTY_RAD = 0.36  # a gripper below it has no block in it
HELD_RAD = 0.56  # the gripper is closed around the block below it
RELEASED_RAD = 1.05
# Above the centre of a block on the table. A grasp from 20 mm on slips, so that there is room for errors.
HOVER_M, LIFT_M, GRASP_M, RELEASE_M = 0.07, 0.075, 0.005, 0.002
NEAR_M = 0.006  # of a target that is reached
GAIN = 0.2  # of the error, per tick
LAG_M = 0.06  # the target leads the gripper by this much at most
TIMEOUT_TICKS = 150  # of a phase, so that a lost block does not stall it
FAILED_M = np.array([[-0.02, -0.02, 0.025], [0.02, 0.02, 0.08]])  # of the gripper from the block, after a failure
SOLUTIONS = 3  # of the joints, each from the one before, as the posture is far from that at home
DOWN = np.array([0.0, 1.0, 0.0])  # direction of the jaws


class Phase(NamedTuple):
    """A part of the motion.

    Attributes:
        name: of the part.
        closed: whether the gripper is closed.
        speed_m_s: of the point between the jaws.
    """

    name: str
    closed: bool
    speed_m_s: float


PHASES = (
    Phase("hover", False, SPEED_M_S),
    Phase("descend", False, CAREFUL_M_S),
    Phase("close", True, 0.0),
    Phase("lift", True, CAREFUL_M_S),
    Phase("traverse", True, SPEED_M_S),
    Phase("lower", True, CAREFUL_M_S),
    Phase("open", False, 0.0),
    Phase("retreat", False, CAREFUL_M_S),
)


class Expert:
    """Hover, descend, close, lift, traverse, lower, open, retreat.

    A phase ends by what can be observed, never by time, so that a policy can learn when: the jaws of a demonstration
    do not pause. A block that was not grasped, lost or placed elsewhere is fetched again. In the end the arm stays.

    Args:
        robot: what it looks at; `command` is called by the user.
    """

    def __init__(self, robot: So101) -> None:
        ik, env = model_modules()
        self._robot, self._ik = robot, ik
        self._site = robot.model.site("gripperframe").id
        self._arm = np.arange(5)
        self._offset: Any = env.grasp_point_offset(robot.model, self._site)
        self.reset()

    def reset(self) -> None:
        """Begin again, as after a reset of the robot."""
        self._number = self._ticks = 0
        self._target = self._grasp()
        self._targets = self._robot.targets

    def begin_after_failure(self, random: np.random.Generator) -> None:
        """Put the robot where a failed grasp, or a failed placement, has left it: open and above the block."""
        robot, block = self._robot, self._robot.block[:2]
        if random.random() < 0.5:
            block = _beside(robot.goal[:2], random)
        above = np.array([*block, robot.goal[2]]) + random.uniform(*FAILED_M)
        for _ in range(SOLUTIONS):
            robot.put(np.array([*self._joints(above), OPEN_RAD]), block)
        self.reset()

    @property
    def is_done(self) -> bool:
        """Whether all phases are over."""
        return self._number >= len(PHASES)

    def act(self) -> Float64:
        """Return the targets of the joints for this tick, (6,) rad; call it `1 / PERIOD_S` times a second."""
        robot = self._robot
        while not self.is_done and (self._has_lost() or self._has_ended() or self._ticks >= TIMEOUT_TICKS):
            self._number, self._ticks = 0 if self._has_lost() else self._number + 1, 0
            self._target = self._grasp()
        if self.is_done:
            return self._targets
        self._ticks += 1
        phase = PHASES[self._number]
        goal = OPEN_RAD if not phase.closed else CLOSED_RAD
        change = GRIPPER_RAD_S * PERIOD_S
        targets = self._targets.copy()  # not those of the robot, which may be disturbed
        targets[5] += np.clip(goal - targets[5], -change, change)
        if phase.speed_m_s:
            # The error is added up, because the servos sag under the weight of the arm.
            self._target = self._target + _at_most((self._goal() - self._grasp()) * GAIN, phase.speed_m_s * PERIOD_S)
            self._target = self._grasp() + _at_most(self._target - self._grasp(), LAG_M)
            targets[:5] = self._joints(self._target)
        self._targets = np.clip(targets, robot.limits[:, 0], robot.limits[:, 1])
        return self._targets

    def _has_lost(self) -> bool:
        name, robot = PHASES[self._number].name, self._robot
        if name in ("lift", "traverse", "lower"):
            return bool(robot.positions[5] < EMPTY_RAD)
        return name == "retreat" and self._has_ended() and not robot.is_success

    def _has_ended(self) -> bool:
        name, gripper = PHASES[self._number].name, self._robot.positions[5]
        if name == "close":
            return bool(gripper < HELD_RAD)
        if name == "open":
            return bool(gripper > RELEASED_RAD)
        return bool(np.linalg.norm(self._goal() - self._grasp()) < NEAR_M)

    def _goal(self) -> Float64:
        """Where the point between the jaws goes, (3,) m. With the block in the jaws, the block itself is steered."""
        grasp, block, goal = self._grasp(), self._robot.block[:3], self._robot.goal
        table = goal[2]
        name = PHASES[self._number].name
        if name == "hover":
            return np.array([*block[:2], table + HOVER_M])
        if name == "descend":
            return np.array([*block[:2], table + GRASP_M])
        if name in ("lift", "retreat"):
            return np.array([*grasp[:2], table + (LIFT_M if name == "lift" else HOVER_M)])
        moved = grasp + goal - block
        return np.array([*moved[:2], table + LIFT_M if name == "traverse" else moved[2] + RELEASE_M])

    def _grasp(self) -> Float64:
        """The point between the jaws, (3,) m."""
        found: Float64 = self._ik.control_point(self._robot.data, self._site, self._offset)
        return found

    def _joints(self, target: Float64) -> Float64:
        """The joints of the arm that bring the point between the jaws to a target, the gripper pointing down."""
        robot = self._robot
        seed = robot.positions[:5]
        seed[4] += self._ik.roll_to_align_axis(robot.data, self._site, robot.model.joint("wrist_roll").id, 2, DOWN)
        seed = np.clip(seed, robot.limits[:5, 0], robot.limits[:5, 1])
        solved: Float64 = self._ik.solve_ik(
            model=robot.model,
            data=robot.data,
            site_id=self._site,
            dof_ids=self._arm,
            target_pos=target,
            ik_method="levenberg_marquardt",
            ik_damping=0.1,
            ik_iterations=20,
            seed_q=seed,
            point_offset=self._offset,
            approach_axis=0,
        )
        return solved


def _beside(goal: Float64, random: np.random.Generator) -> Float64:
    """A place for the block within reach that is too far from the goal, (2,) m, but nearer than a start is."""
    while True:
        angle, distance = random.uniform(0, 2 * np.pi), random.uniform(PLACED_M, APART_M)
        place: Float64 = goal + distance * np.array([np.cos(angle), np.sin(angle)])
        if (REACH_M[0] <= place).all() and (place <= REACH_M[1]).all():
            return place


def _at_most(vector: Float64, length: float) -> Float64:
    """A vector, shortened to a length if it is longer."""
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))
