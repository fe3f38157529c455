"""A trained policy: from ticks in the units of the robot to actions in the units of the robot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from robocache_ros.engine.fused_frame import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops import normalize_image
from robocache_ros.training.checkpoints import check_fit, read_checkpoint
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy import Policy
from robocache_ros.training.training_data import DataInfo


class TrainedPolicy:
    """Applies a policy with the normalisation of its training.

    ```python
    policy = TrainedPolicy.load("run/checkpoint.pt")
    for frame in FusedSubscriber("fusion_node"):  # the node publishes windows of at least `n_obs` ticks
        actions = policy.act(*policy.observation(frame))  # (1, horizon, A)
    ```

    Attributes:
        policy: its weights are those of the average, if there is one.
        info: of the data that it was trained on.
    """

    def __init__(self, policy: Policy, info: DataInfo) -> None:
        check_fit(policy.config, info)
        self.policy, self.info = policy.eval(), info
        device = next(policy.parameters()).device
        scale = {key: torch.tensor([each["mean"], each["std"]]).to(device) for key, each in info.statistics.items()}
        self._proprio, self._actions = scale["proprio"], scale["actions"]
        self._widths = torch.tensor(list(info.streams.values()))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> TrainedPolicy:
        """Read a checkpoint.

        Errors:
            RoboCacheError: the file is not a checkpoint, or is damaged.
        """
        training, config, data, _ = read_checkpoint(path)
        policy = make_policy(config).to(device)
        policy.load_state_dict(training["policy"])
        if training["average_share"]:
            for parameter, average in zip(policy.parameters(), training["average"], strict=True):
                parameter.data.copy_(average / training["average_share"])
        return cls(policy, data)

    def observation(self, frame: FusedFrame) -> tuple[Tensor, Tensor]:
        """Return (1, n_obs, P) float32 proprio and (1, n_obs, N) uint8 valid of a frame of the node or the engine.

        Errors:
            RoboCacheError: the frame lacks a stream, or its window is shorter than `n_obs`.
        """
        for name, columns in self.info.streams.items():
            if name not in frame.tensors or frame.tensors[name].shape[-1] != columns:
                raise RoboCacheError(f"{name}: the frame has no such stream of {columns} columns; use the same spec")
        count = self.policy.config.n_obs
        if len(frame.ticks_ns) < count:
            raise RoboCacheError(f"horizon: {len(frame.ticks_ns)} ticks in a frame; set horizon: {count} in the spec")
        proprio = torch.cat([frame.tensors[name][-count:] for name in self.info.streams], dim=1)
        return proprio[None], torch.stack([frame.valid[name][-count:] for name in self.info.streams], dim=1)[None]

    @torch.no_grad()
    def act(
        self,
        proprio: Tensor,
        valid: Tensor | None = None,
        images: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return (B, horizon, A) float32 actions.

        Args:
            proprio: (B, n_obs, P) float32.
            valid: (B, n_obs, N) of the streams in `info.streams`; None: all are. Invalid values count as the mean, as
                in training.
            images: (B, T, H, W, 3) uint8, or (B, T, C, H, W, 3), by the keys of `info.cameras`; the last T is used.
            generator: see `Policy.predict`.

        Errors:
            RoboCacheError: a value is not of its shape, a valid one is infinite or not a number, or an action would be.
        """
        config = self.policy.config
        shape, streams = (len(proprio), config.n_obs, config.proprio), len(self._widths)
        _check_shape("proprio", proprio, shape)
        mean, std = self._proprio
        scaled = (proprio.to(mean.device) - mean) / std
        if valid is not None:
            _check_shape("valid", valid, (*shape[:2], streams))
            there = torch.repeat_interleave(valid.to(mean.device) > 0, self._widths.to(mean.device), dim=2)
            scaled = scaled.masked_fill(~there, 0)
        observation = {"proprio": scaled}
        for key in self.info.cameras:
            if images is None or key not in images:
                raise RoboCacheError(f"images: no {key}; give the images that the policy was trained on")
            _check_images(key, images[key], shape[0], config.cameras[key])
            channels_first = images[key].to(mean.device).movedim(-1, -3).contiguous()
            observation[key] = normalize_image(channels_first, "imagenet", torch.float32)
        mean, std = self._actions
        actions: Tensor = self.policy.predict(observation, generator).float() * std + mean
        finite = torch.stack([scaled.isfinite().all(), actions.isfinite().all()]).tolist()  # waits for the device once
        for name, is_finite in zip(("proprio", "actions"), finite, strict=True):
            if not is_finite:
                raise RoboCacheError(f"{name}: a value is infinite or not a number; stop, and check where it is from")
        return actions


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise RoboCacheError(f"{name}: has shape {tuple(value.shape)}; give {shape}, as in training")


def _check_images(key: str, images: Tensor, count: int, cameras: int) -> None:
    """Refuse what is not (B, T, H, W, 3) uint8 images of one camera, or (B, T, C, H, W, 3) of several."""
    shape = tuple(images.shape)
    several = len(shape) == 6
    if (
        images.dtype != torch.uint8
        or len(shape) not in (5, 6)
        or (shape[0], shape[-1], shape[2] if several else 1) != (count, 3, cameras)
        or not images.numel()
    ):
        kind = f"{count}, ticks, {f'{cameras}, ' * several}height, width, 3"
        raise RoboCacheError(f"{printable(key, 40)}: {shape} {images.dtype}; give ({kind}) torch.uint8")
