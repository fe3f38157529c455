"""A checkpoint of LeRobot as a policy, with its own pre- and postprocessors: the API of LeRobot 0.4.4."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.lerobot_config import (
    ACTION,
    HORIZONS,
    IMAGES,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    LeRobotConfig,
    read_lerobot_config,
)
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy
from robocache_ros.policy.policies.server import options_of, task_of
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

VERSION = "0.4.4"
WEIGHTS = "model.safetensors"
CAMERAS = IMAGES.rstrip(".")  # the feature of all cameras in one tensor
MAX_OBSERVED_TICKS = 16  # of an observation: each is a copy of the images
RUNNABLE = tuple(name for name in HORIZONS if name != "groot")  # its loader leaves out the statistics
QUEUED = ("diffusion", "vqbet")  # they plan from observations that they keep

Shape = tuple[int | None, ...]


def features(spec: FusionSpec) -> dict[str, Shape]:
    """Return the shapes of what `FusedFrame.lerobot` gives for a spec; None where an image has no fixed size."""
    found: dict[str, Shape] = {}
    state = Layout(spec).vectors_of("observation")
    if state:
        found[STATE] = (sum(stream.dim for stream in state),)
    for stream in spec.streams:
        if stream.role == "observation" and stream.rows:
            found[f"observation.window.{stream.name}"] = stream.shape
        elif stream.role == "observation" and stream.image:
            found[f"{IMAGES}{stream.name}"] = (3, *(stream.image.size or (None, None)))
    return found


def checked_config(folder: Path, spec: FusionSpec) -> LeRobotConfig:
    """Read the config of a checkpoint, and compare its features with those of a spec.

    Raises:
        RoboCacheError: a feature is missing or has another shape, or this kind of policy cannot be run.
    """
    config, has = read_lerobot_config(folder), features(spec)
    for key, shape in config.inputs.items():
        if key not in has:
            known = printable(", ".join(has), 90)
            raise RoboCacheError(f"policy: it needs {printable(key, 50)}, and the spec gives {known}; use its spec")
        mine = has[key]
        if len(mine) != len(shape) or any(a not in (b, None) for a, b in zip(mine, shape, strict=True)):
            shapes = f"{_words(mine)} in the spec, but {_words(shape)} in the policy"
            raise RoboCacheError(f"policy: {printable(key, 50)} is {shapes}; use its spec")
    width = sum(stream.dim for stream in Layout(spec).vectors_of("action"))
    if config.action != width:
        raise RoboCacheError(f"policy: its action is {config.action}, but that of the spec {width}; use its spec")
    if config.type not in RUNNABLE:
        names = ", ".join(RUNNABLE)
        raise RoboCacheError(f"policy: LeRobot's {printable(config.type, 30)} cannot be run here; use one of {names}")
    if not 1 <= config.observed_ticks <= (MAX_OBSERVED_TICKS if config.type in QUEUED else 1):
        raise RoboCacheError(
            f"policy: n_obs_steps {config.observed_ticks} is not possible for {config.type}; train with 1"
        )
    return config


def _words(shape: Shape) -> str:
    return "x".join("?" if each is None else str(each) for each in shape)


def check_installed() -> None:
    """Refuse a Python without LeRobot."""
    if find_spec("lerobot") is None:
        python = printable(sys.executable, 60)
        raise RoboCacheError(f"policy: lerobot is not installed in {python}; there: pip install lerobot=={VERSION}")


class LeRobotPolicy(RunnablePolicy):
    """Plans the chunk of a LeRobot policy from the rows of `FusedFrame.lerobot`."""

    def __init__(self, policy: Any, preprocessor: Any, postprocessor: Any, config: LeRobotConfig, task: str) -> None:
        self._policy, self._preprocessor, self._postprocessor = policy, preprocessor, postprocessor
        self._config, self._task = config, task
        self._rtc: Any = getattr(policy.config, "rtc_config", None)  # real-time chunking
        self.takes_prefix = bool(self._rtc and self._rtc.enabled)

    @classmethod
    def load(cls, folder: Path, spec: FusionSpec, device: str = "cpu") -> LeRobotPolicy:
        """Read a checkpoint.

        Raises:
            RoboCacheError: it does not go with the spec, a file is missing, or LeRobot is not installed.
        """
        config = checked_config(folder, spec)
        check_installed()
        for name in (WEIGHTS, PREPROCESSOR, POSTPROCESSOR):
            if not (folder / name).is_file():
                raise RoboCacheError(f"{printable(folder, 80)}: no {name}; save the policy with LeRobot {VERSION}")
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors

        settings = PreTrainedConfig.from_pretrained(folder)
        settings.device = device
        if hasattr(settings, "pretrained_backbone_weights"):
            settings.pretrained_backbone_weights = None  # those of the checkpoint follow: nothing is downloaded
        if options_of(spec).prefix and hasattr(settings, "rtc_config") and config.type != "pi0_fast":
            from lerobot.policies.rtc.configuration_rtc import RTCConfig

            settings.rtc_config = settings.rtc_config or RTCConfig()
            settings.rtc_config.enabled = True
        policy = get_policy_class(config.type).from_pretrained(folder, config=settings)
        placed = {"device_processor": {"device": device}}
        before, after = make_pre_post_processors(settings, pretrained_path=str(folder), preprocessor_overrides=placed)
        return cls(policy, before, after, config, task_of(spec))

    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Plan (horizon, A) actions; RoboCacheError if the frame lacks a feature."""
        batch = self._batch(frame)
        given: dict[str, Any] = {}
        if prefix and self.takes_prefix:
            batch[ACTION] = torch.from_numpy(prefix.rows[: self._config.horizon])[None]
        with torch.no_grad():
            prepared = self._preprocessor(batch)
            before = prepared.pop(ACTION, None)  # normalised
            if prefix and self.takes_prefix:
                given = {
                    "prev_chunk_left_over": before,
                    "inference_delay": prefix.frozen,
                    "execution_horizon": max(self._rtc.execution_horizon, prefix.frozen),
                }
            if self._config.type in QUEUED:
                prepared = self._queued([*(self._preprocessor(self._batch(each)) for each in earlier), prepared])
            actions = self._policy.predict_action_chunk(prepared, **given)
            rows = self._postprocessor(actions[0])  # as a batch: one row is one action
        return Chunk(tick, rows.float().cpu().numpy())

    def _queued(self, batches: list[dict[str, Any]]) -> dict[str, Any]:
        """Make the observations those that the policy keeps; return the newest with its cameras in one tensor."""
        from lerobot.policies.utils import populate_queues

        self._policy.reset()
        for batch in batches:
            batch[CAMERAS] = torch.stack([batch[key] for key in self._policy.config.image_features], dim=-4)
            populate_queues(self._policy._queues, batch, exclude_keys=[ACTION])
        return batches[-1]

    def _batch(self, frame: FusedFrame) -> dict[str, Any]:
        """Return the features of the policy, each with a dimension for the batch, and the task."""
        row = frame.lerobot(self._task)
        batch: dict[str, Any] = {"task": [self._task]}
        for key, shape in self._config.inputs.items():
            value = row.get(key)
            if not isinstance(value, Tensor) or tuple(value.shape) != shape:
                has = _words(tuple(value.shape)) if isinstance(value, Tensor) else "missing"
                raise RoboCacheError(f"{printable(key, 60)}: {has} in the frame, but {_words(shape)} in the policy")
            batch[key] = value[None]
        return batch
